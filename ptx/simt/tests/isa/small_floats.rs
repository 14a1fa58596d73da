//! Conversions to and from f16, bf16, e4m3 and e5m2: 9.7.9.21 "cvt" and 5.2.3 "Alternate Floating-Point Data Formats".
//!
//! Where two values are packed, the first source goes to the upper half. `.rn` rounds to nearest, ties to even; `.rz`
//! chops; beyond the range of f16 and bf16 lie infinities. `.satfinite` clips to the largest finite value with the
//! input's sign, infinities too, and leaves NaN a NaN. `.relu` makes negative results zero. The formats' values are
//! computed from their definitions (`values::Format`), over all codes, all middles between neighbours and both f32
//! neighbours of each.

use crate::harness::{W, check, check_with, known};
use crate::values::{BF16, E4M3, E5M2, F16, Format, Random, f32_of};
use W::{B16, B32};

fn bits(x: f32) -> u64 {
    u64::from(x.to_bits())
}

/// The code that `.rn` gives; NaN becomes `0x7fff` in the two 16-bit formats.
fn encoded(format: &Format, x: f32, clip: bool) -> u32 {
    if x.is_nan() { 0x7fff } else { format.nearest(f64::from(x), clip) }
}

const NANS: [u32; 5] = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffff_ffff];

fn inputs(format: &Format, stride: u32) -> Vec<u64> {
    let mut random = Random::new(60);
    let mut inputs: Vec<u64> = format.rounding_inputs(stride).into_iter().map(bits).collect();
    inputs.extend((0..2000).map(|_| u64::from(random.word())).filter(|&x| !f32_of(x).is_nan()));
    inputs.extend(NANS.map(u64::from));
    inputs
}

#[test]
fn singles_to_halves() {
    for (op, format) in [("cvt.rn.f16.f32", F16), ("cvt.rn.bf16.f32", BF16)] {
        let rows: Vec<_> =
            inputs(&format, 5).into_iter().map(|a| ([a], u64::from(encoded(&format, f32_of(a), false)))).collect();
        check(op, B16, [B32], &rows);
    }
    // Ties, written out: 1 + 2^-11 is halfway between 1 and the next f16, 1 + 3 * 2^-11 above it.
    let f16 = |x: f32, want: u64| ([bits(x)], want);
    check(
        "cvt.rn.f16.f32",
        B16,
        [B32],
        &[
            f16(1.0 + 2.0_f32.powi(-11), 0x3c00),
            f16(1.0 + 3.0 * 2.0_f32.powi(-11), 0x3c02),
            f16(65504.0, 0x7bff),
            f16(65519.0, 0x7bff),
            f16(65520.0, 0x7c00),
            f16(2.0_f32.powi(-25), 0),
            f16(2.0_f32.powi(-25).next_up(), 1),
            f16(-(2.0_f32.powi(-25)), 0x8000),
        ],
    );
    let bf16 = |x: u64, want: u64| ([x], want);
    check(
        "cvt.rn.bf16.f32",
        B16,
        [B32],
        &[
            bf16(0x3f80_8000, 0x3f80),
            bf16(0x3f81_8000, 0x3f82),
            bf16(0x3f80_8001, 0x3f81),
            bf16(0x7f7f_ffff, 0x7f80),
            bf16(0x0000_8000, 0),
            bf16(0x0000_8001, 1),
        ],
    );
    for (op, format) in [("cvt.rz.f16.f32", F16), ("cvt.rz.bf16.f32", BF16)] {
        if known(op, B16, [B32]) {
            let rows: Vec<_> =
                inputs(&format, 11).into_iter().map(|a| ([a], u64::from(chopped(&format, f32_of(a))))).collect();
            check(op, B16, [B32], &rows);
        }
    }
}

/// Rounds towards zero, which never reaches infinity from a finite value.
fn chopped(format: &Format, x: f32) -> u32 {
    if x.is_nan() || x.is_infinite() {
        return encoded(format, x, false);
    }
    let code = format.nearest(f64::from(x), true);
    let beyond = format.value(code).abs() > f64::from(x).abs();
    code - u32::from(beyond)
}

#[test]
fn halves_to_singles() {
    for (op, format) in [("cvt.f32.f16", F16), ("cvt.f32.bf16", BF16)] {
        if op != "cvt.f32.f16" && !known(op, B32, [B16]) {
            continue;
        }
        let rows: Vec<[u64; 1]> = (0..1 << 16).map(|code| [code]).collect();
        check_with(op, B32, [B16], &rows, |&[code], got| {
            let want = format.value(u32::try_from(code).expect("16 bits")) as f32;
            let same = got == bits(want) || (want.is_nan() && f32_of(got).is_nan());
            if same { Ok(()) } else { Err(format!("{:#x}", want.to_bits())) }
        });
    }
}

#[test]
fn pairs_of_halves() {
    for (op, format) in [("cvt.rn.f16x2.f32", F16), ("cvt.rn.bf16x2.f32", BF16)] {
        let inputs = inputs(&format, 23);
        let rows: Vec<_> = (0..inputs.len())
            .map(|i| {
                let (high, low) = (inputs[i], inputs[(i * 7 + 3) % inputs.len()]);
                let code = |x: u64| u64::from(encoded(&format, f32_of(x), false));
                ([high, low], code(high) << 16 | code(low))
            })
            .collect();
        check(op, B32, [B32, B32], &rows);
    }
    check("cvt.rn.bf16x2.f32", B32, [B32, B32], &[([0x3f80_0000, 0xc000_0000], 0x3f80_c000)]);
    for (op, format) in [("cvt.rz.f16x2.f32", F16), ("cvt.rz.bf16x2.f32", BF16)] {
        if known(op, B32, [B32, B32]) {
            let inputs = inputs(&format, 97);
            let code = |x: u64| u64::from(chopped(&format, f32_of(x)));
            let rows: Vec<_> = inputs.windows(2).map(|x| ([x[0], x[1]], code(x[0]) << 16 | code(x[1]))).collect();
            check(op, B32, [B32, B32], &rows);
        }
    }
    for (op, format) in [("cvt.rn.relu.f16x2.f32", F16), ("cvt.rn.relu.bf16x2.f32", BF16)] {
        if known(op, B32, [B32, B32]) {
            let code = |x: u64| match f32_of(x) {
                x if x.is_nan() => 0x7fff,
                x if x.is_sign_negative() => 0,
                x => u64::from(encoded(&format, x, false)),
            };
            let inputs = inputs(&format, 97);
            let rows: Vec<_> = inputs.windows(2).map(|x| ([x[0], x[1]], code(x[0]) << 16 | code(x[1]))).collect();
            check(op, B32, [B32, B32], &rows);
        }
    }
}

/// Whether a packed byte is right: NaN as any NaN code, the rest exactly.
fn byte_is(format: &Format, want: Option<u32>, got: u32) -> bool {
    match want {
        Some(code) => got == code,
        None => format.value(got).is_nan(),
    }
}

fn judge_pair(format: &Format, high: f32, low: f32, got: u64) -> Result<(), String> {
    let want = |x: f32| (!x.is_nan()).then(|| format.nearest(f64::from(x), true));
    let got = u32::try_from(got).expect("16 bits");
    let right = byte_is(format, want(high), got >> 8) && byte_is(format, want(low), got & 255);
    let text = |x: f32| want(x).map_or("NaN".to_string(), |code| format!("{code:#04x}"));
    if right { Ok(()) } else { Err(format!("({}, {}) for ({high:e}, {low:e})", text(high), text(low))) }
}

#[test]
fn singles_to_eight_bits() {
    for (op, format) in [("cvt.rn.satfinite.e4m3x2.f32", E4M3), ("cvt.rn.satfinite.e5m2x2.f32", E5M2)] {
        let inputs = inputs(&format, 1);
        let rows: Vec<[u64; 2]> = (0..inputs.len()).map(|i| [inputs[i], inputs[(i * 5 + 11) % inputs.len()]]).collect();
        check_with(op, B16, [B32, B32], &rows, |&[a, b], got| judge_pair(&format, f32_of(a), f32_of(b), got));
    }
    // The ends of e4m3 and e5m2, written out: the largest values, what rounds to them, and what is clipped.
    let row = |x: f32, code: u64| ([bits(x), bits(-x)], code << 8 | code | 0x80);
    check(
        "cvt.rn.satfinite.e4m3x2.f32",
        B16,
        [B32, B32],
        &[
            row(448.0, 0x7e),
            row(447.0, 0x7e),
            row(464.0, 0x7e),
            row(1e9, 0x7e),
            row(f32::INFINITY, 0x7e),
            row(432.0, 0x7e),
            row(431.9, 0x7d),
            row(2.0_f32.powi(-9), 0x01),
            row(2.0_f32.powi(-10), 0x00),
            row(3.0 * 2.0_f32.powi(-10), 0x02),
            row(2.0_f32.powi(-6), 0x08),
            row(1.0, 0x38),
        ],
    );
    check(
        "cvt.rn.satfinite.e5m2x2.f32",
        B16,
        [B32, B32],
        &[
            row(57344.0, 0x7b),
            row(61440.0, 0x7b),
            row(f32::INFINITY, 0x7b),
            row(2.0_f32.powi(-16), 0x01),
            row(2.0_f32.powi(-17), 0x00),
            row(1.0, 0x3c),
        ],
    );
}

#[test]
fn eight_bits_to_halves() {
    for (op, format) in [("cvt.rn.f16x2.e4m3x2", E4M3), ("cvt.rn.f16x2.e5m2x2", E5M2)] {
        // All 256 codes at both places.
        let rows: Vec<[u64; 1]> = (0..256).map(|code| [code << 8 | (code * 37 + 5) & 255]).collect();
        check_with(op, B32, [B16], &rows, |&[pair], got| {
            let half = |code: u64, got: u64| {
                let want = format.value(u32::try_from(code).expect("8 bits"));
                let value = F16.value(u32::try_from(got).expect("16 bits"));
                if want.is_nan() { value.is_nan() } else { value == want && (got >> 15 & 1) == (code >> 7) }
            };
            let right = half(pair >> 8, got >> 16) && half(pair & 255, got & 0xffff);
            if right { Ok(()) } else { Err("both values of the format's definition".to_string()) }
        });
    }
}

#[test]
fn halves_to_eight_bits() {
    for (op, format) in [("cvt.rn.satfinite.e4m3x2.f16x2", E4M3), ("cvt.rn.satfinite.e5m2x2.f16x2", E5M2)] {
        if !known(op, B16, [B32]) {
            continue;
        }
        // All codes of f16 at both places.
        let rows: Vec<[u64; 1]> = (0..1 << 16).map(|code| [code << 16 | (code * 40_503 + 1) & 0xffff]).collect();
        check_with(op, B16, [B32], &rows, |&[pair], got| {
            let value = |code: u64| F16.value(u32::try_from(code).expect("16 bits")) as f32;
            judge_pair(&format, value(pair >> 16), value(pair & 0xffff), got)
        });
    }
}
