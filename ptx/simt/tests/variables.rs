//! Variables of a module: constants with their initial values, global ones that keep what launches write, one copy a device.

use simt::{Config, Device, Launch, Module};

const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.const .align 4 .b8 table[8] = {1, 2, 3, 4, 0x10, 0x20, 0x30, 0x40};
.global .align 8 .u64 total = 5;
.visible .entry add(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, table;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.const.u32 %r2, [%rd4];
    add.s64 %rd5, %rd1, %rd3;
    st.global.u32 [%rd5], %r2;
    cvt.u64.u32 %rd6, %r2;
    atom.global.add.u64 %rd7, [total], 1;
    ld.volatile.global.u64 %rd7, [total];
    st.global.u64 [%rd1+8], %rd7;
    ret;
}
";

fn run(device: &mut Device, module: &Module) -> Vec<u8> {
    let out = device.alloc(16).unwrap();
    let launch = Launch { grid: [1; 3], block: [2, 1, 1], shared_bytes: 0 };
    device.launch(module.entry("add").unwrap(), launch, &out.to_le_bytes()).unwrap();
    let mut bytes = vec![0; 16];
    device.read(out, &mut bytes).unwrap();
    bytes
}

#[test]
fn constants_are_there_and_globals_last() {
    let module = Module::load(PTX).unwrap();
    let mut device = Device::new(Config::default());
    assert_eq!(run(&mut device, &module), [1, 2, 3, 4, 0x10, 0x20, 0x30, 0x40, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(run(&mut device, &module)[8..], [9, 0, 0, 0, 0, 0, 0, 0]);
    // Another load of the same text, and another device, begin anew.
    assert_eq!(run(&mut device, &Module::load(PTX).unwrap())[8], 7);
    assert_eq!(run(&mut Device::new(Config::default()), &module)[8], 7);
}
