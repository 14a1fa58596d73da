//! Kernel parameters: 5.1.6.1 "Kernel Function Parameters" and 5.4.5 "Alignment". Parameters stand in order, each at the
//! next multiple of its alignment, which is its size unless `.align` says more; arrays of bytes have `.align` alone.

use simt::{Config, Device, Launch, Mode, Module};

const SOURCE: &str = "\
.version 8.4
.target sm_89
.address_size 64

.visible .entry sizes(
	.param .u8 p0,
	.param .u16 p1,
	.param .u8 p2,
	.param .u32 p3,
	.param .u64 p4,
	.param .f32 p5,
	.param .f64 p6,
	.param .s8 p7,
	.param .s16 p8,
	.param .align 4 .b8 p9[12],
	.param .align 16 .b8 p10[32],
	.param .align 1 .b8 p11[3],
	.param .u64 .ptr .global .align 8 p12
)
.maxntid 32, 1, 1
{
	.reg .b16 %h<8>;
	.reg .b32 %r<8>;
	.reg .f32 %f<2>;
	.reg .b64 %q<8>;
	.reg .f64 %g<2>;
	ld.param.u64 %q0, [p12];
	ld.param.u8 %h0, [p0];
	st.global.u16 [%q0], %h0;
	ld.param.u16 %h1, [p1];
	st.global.u16 [%q0+2], %h1;
	ld.param.u8 %r0, [p2];
	st.global.u32 [%q0+4], %r0;
	ld.param.u32 %r1, [p3];
	st.global.u32 [%q0+8], %r1;
	ld.param.u64 %q1, [p4];
	st.global.u64 [%q0+16], %q1;
	ld.param.f32 %f0, [p5];
	st.global.f32 [%q0+12], %f0;
	ld.param.f64 %g0, [p6];
	st.global.f64 [%q0+24], %g0;
	ld.param.s8 %r2, [p7];
	st.global.u32 [%q0+32], %r2;
	ld.param.s16 %r3, [p8];
	st.global.u32 [%q0+36], %r3;
	ld.param.u32 %r4, [p9+8];
	st.global.u32 [%q0+40], %r4;
	ld.param.b32 %r5, [p9];
	st.global.u32 [%q0+44], %r5;
	ld.param.v2.u64 {%q2, %q3}, [p10+16];
	st.global.v2.u64 [%q0+48], {%q2, %q3};
	ld.param.b64 %q4, [p10];
	st.global.u64 [%q0+64], %q4;
	ld.param.u8 %h2, [p11+2];
	st.global.u16 [%q0+72], %h2;
	ret;
}
";

/// Offset, alignment and bytes of each parameter of `SOURCE`, laid out by hand.
const WANT: [(usize, usize, usize); 13] = [
    (0, 1, 1),
    (2, 2, 2),
    (4, 1, 1),
    (8, 4, 4),
    (16, 8, 8),
    (24, 4, 4),
    (32, 8, 8),
    (40, 1, 1),
    (42, 2, 2),
    (44, 4, 12),
    (64, 16, 32),
    (96, 1, 3),
    (104, 8, 8),
];

#[test]
fn offsets_and_sizes_follow_the_list() {
    let module = Module::load(SOURCE).expect("a module of parameters");
    let entry = module.entry("sizes").expect("its entry");
    let got: Vec<_> = entry.params().iter().map(|p| (p.offset, p.align, p.size)).collect();
    assert_eq!(got, WANT);
    assert_eq!(entry.param_bytes(), 112);
    assert_eq!(entry.max_threads(), Some(32));
}

#[test]
fn every_size_is_read_from_its_place() {
    let module = Module::load(SOURCE).expect("a module of parameters");
    let entry = module.entry("sizes").expect("its entry");
    let mut device = Device::new(Config { mode: Mode::Checked, threads: 1, memory_bytes: 1 << 20, capability: (8, 9) });
    let out = device.alloc(80).expect("room");
    device.write(out, &[0; 80]).expect("a write");
    // Byte i of the block is 0x80 + i, so that every value tells where it came from.
    let mut block: Vec<u8> = (0..112).map(|i| 0x80 + i).collect();
    block[104..112].copy_from_slice(&out.to_le_bytes());
    device
        .launch(entry, Launch { grid: [1; 3], block: [1; 3], shared_bytes: 0 }, &block)
        .unwrap_or_else(|fault| panic!("{fault}"));
    let mut got = [0; 80];
    device.read(out, &mut got).expect("a read");
    let mut want = [0_u8; 80];
    let mut put =
        |at: usize, from: usize, count: usize| want[at..at + count].copy_from_slice(&block[from..from + count]);
    put(0, 0, 1);
    put(2, 2, 2);
    put(4, 4, 1);
    put(8, 8, 4);
    put(12, 24, 4);
    put(16, 16, 8);
    put(24, 32, 8);
    put(32, 40, 1);
    put(36, 42, 2);
    put(40, 52, 4);
    put(44, 44, 4);
    put(48, 80, 16);
    put(64, 64, 8);
    put(72, 98, 1);
    // The signed ones are extended.
    want[33..36].fill(0xff);
    want[38..40].fill(0xff);
    assert_eq!(got, want);
}
