//! exp, ln, sin, cos, scales and conversions on the simulated devices: the bits of `math.rs` and `dtype.rs`.

use ptx::cuda::simulator;
use ptx::cuda::{Gpu, Kernel, Launch, Module};
use ptx::dtype::{E4M3_MAX, bf16_from_f32, e4m3_from_f32, e4m3_to_f32, e5m2_from_f32, e5m2_to_f32, scale_pow2};
use ptx::math::{exp, ln, sin_cos};

/// The kernel of `tests/math/math.cu`.
static MATH: Module =
    Module { op: "math", sm80: include_str!("math/math.sm80.ptx"), sm89: include_str!("math/math.sm89.ptx") };

/// Floats all over, of both signs; around every code of the 8-bit formats and every midpoint between codes; around where
/// exp overflows, underflows and becomes zero, and where magnitudes take the next scale.
fn floats() -> Vec<f32> {
    let all_over = (0..1_u32 << 16).map(|i| f32::from_bits(i << 16 | i.wrapping_mul(2_654_435_761) >> 16));
    let mut special = vec![88.0, 88.722_84, 88.8, 89.0, 89.1, 87.336_54, 103.9, 103.972_08, 103.972_09, 104.0, 104.1];
    for value in [e4m3_to_f32, e5m2_to_f32] {
        for code in 0..0x7e_u8 {
            special.extend([value(code), (value(code) + value(code + 1)) / 2.0]);
        }
    }
    special.extend([464.0, 480.0, 57_344.0, 61_440.0, 65_536.0, f32::MAX, 0.0, f32::MIN_POSITIVE, 1e-45, 1.0, 1e30]);
    special.extend((-149..=118).map(|e| E4M3_MAX * 2.0_f32.powi(e)));
    let near = special.iter().flat_map(|x| [x.next_down(), *x, x.next_up()]).flat_map(|x| [x, -x]);
    all_over.chain(near).chain([f32::INFINITY, f32::NEG_INFINITY]).collect()
}

/// Equal bits, or both NaN.
fn same(got: f32, want: f32) -> bool {
    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan()
}

fn check(gpu: &Gpu) {
    gpu.add_module(&MATH);
    let x = floats();
    let n = x.len();
    let from = gpu.upload(&x).unwrap();
    let out: [_; 5] = std::array::from_fn(|_| gpu.alloc::<f32>(n).unwrap());
    let codes = gpu.alloc::<u32>(n).unwrap();
    let count = u32::try_from(n).unwrap();
    let launch = Launch { grid: [count.div_ceil(128), 1, 1], threads: 128, shared_bytes: 0 };
    let [exps, lns, sines, cosines, scales] = &out;
    let args = [
        from.view().into(),
        exps.view().into(),
        lns.view().into(),
        sines.view().into(),
        cosines.view().into(),
        scales.view().into(),
        codes.view().into(),
        count.into(),
    ];
    gpu.launch(Kernel { op: "math", entry: "functions" }, launch, &args).unwrap();
    let [exps, lns, sines, cosines, scales] = out.each_ref().map(|out| gpu.download(out.view()).unwrap());
    let codes = gpu.download(codes.view()).unwrap();
    let nan8 = |code: u8| if code & 0x7f == 0x7f { 0x7f } else { code };
    for (i, &x) in x.iter().enumerate() {
        let what = format!("{x:e} ({:#010x})", x.to_bits());
        assert!(same(exps[i], exp(x)), "exp of {what}: {:e}, want {:e}", exps[i], exp(x));
        assert!(same(lns[i], ln(x)), "ln of {what}: {:e}, want {:e}", lns[i], ln(x));
        if x.abs() <= 2.0_f32.powi(30) {
            let (s, c) = sin_cos(x);
            assert!(same(sines[i], s) && same(cosines[i], c), "{what}: {} {}, want {s} {c}", sines[i], cosines[i]);
        }
        if x.is_finite() {
            let want = scale_pow2(x.abs(), E4M3_MAX);
            assert!(same(scales[i], want), "scale of {what}: {:e}, want {want:e}", scales[i]);
        }
        let [e4m3, e5m2, low, high] = codes[i].to_le_bytes();
        assert_eq!(nan8(e4m3), nan8(e4m3_from_f32(x)), "e4m3 of {what}");
        assert_eq!(nan8(e5m2), nan8(e5m2_from_f32(x)), "e5m2 of {what}");
        let want = if x.is_nan() { 0x7fff } else { bf16_from_f32(x) };
        assert_eq!(u16::from_le_bytes([low, high]), want, "bf16 of {what}");
    }
}

#[test]
fn bits_are_the_cpus_on_8_0() {
    check(&simulator::open_sm80().unwrap());
}

#[test]
fn bits_are_the_cpus_on_8_9() {
    check(&simulator::open().unwrap());
}
