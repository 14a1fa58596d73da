pub(crate) use super::cases::logits;
use super::cases::{CASES, Case, QWEN3};
use super::*;
use crate::Isa;
use crate::ops::twins::assert_same_bits;
use crate::rng::{Purpose, Stream};

/// The bound of the module's documentation.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn lse_tolerance(valid: usize, lse: f64) -> f64 {
    2.0_f64.powi(-24) * (100.0 + 5.0 * valid.div_ceil(1024) as f64 + 2.0 * lse.abs())
}

fn run_lse(cpu: &Cpu, case: &Case, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; case.rows];
    lse(cpu, case.rows, case.vocab, case.valid, case.inv_temp, x, &mut out).unwrap();
    out
}

#[test]
fn lse_and_gather_meet_the_truth() {
    let cpu = Cpu::new(1);
    for case in CASES.iter().chain([&QWEN3]) {
        for masked in [false, true] {
            let x = logits(case, 1, masked);
            let got = run_lse(&cpu, case, &x);
            let targets: Vec<u32> =
                (0..case.rows).map(|row| u32::try_from((row * 7919 + case.valid - 1) % case.valid).unwrap()).collect();
            let mut picked = vec![0.0; case.rows];
            gather(&cpu, case.rows, case.vocab, case.valid, case.inv_temp, &x, &targets, &mut picked).unwrap();
            for (row, z) in naive::scaled(case.vocab, case.valid, case.inv_temp, &x).iter().enumerate() {
                let want = naive::lse(z);
                let tolerance = lse_tolerance(case.valid, want);
                let error = (f64::from(got[row]) - want).abs();
                assert!(error <= tolerance, "{case:?} row {row}: {} want {want}, off by {error}", got[row]);
                let (picked, want) = (f64::from(picked[row]), z[targets[row] as usize] - want);
                let error = if want.is_finite() { (picked - want).abs() } else { f64::from(u8::from(picked != want)) };
                let limit = tolerance + want.abs() * 2.0_f64.powi(-24);
                assert!(want == picked || error <= limit, "{case:?} row {row}: logprob {picked} want {want}");
            }
        }
    }
}

#[test]
fn top_k_meets_the_truth_ties_included() {
    let cpu = Cpu::new(2);
    for case in CASES.iter().chain([&QWEN3]) {
        // Halves only, so that equal logits abound; minus infinity too.
        let mut x = logits(case, 2, true);
        x.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
        for k in [1, 2, 17, 32, 1500, case.valid].into_iter().filter(|&k| k <= case.valid) {
            let (mut ids, mut logprobs) = (vec![0; case.rows * k], vec![0.0; case.rows * k]);
            top_k(&cpu, case.rows, case.vocab, case.valid, case.inv_temp, &x, k, &mut ids, &mut logprobs).unwrap();
            for (row, z) in naive::scaled(case.vocab, case.valid, case.inv_temp, &x).iter().enumerate() {
                assert_eq!(ids[row * k..][..k], naive::order(z)[..k], "{case:?} k {k} row {row}");
            }
            let mut first = vec![0.0; case.rows];
            let targets: Vec<u32> = ids.iter().copied().step_by(k).collect();
            gather(&cpu, case.rows, case.vocab, case.valid, case.inv_temp, &x, &targets, &mut first).unwrap();
            for row in 0..case.rows {
                assert_eq!(first[row].to_bits(), logprobs[row * k].to_bits(), "{case:?} k {k} row {row}");
                assert!(logprobs[row * k..][..k].is_sorted_by(|a, b| a >= b), "{case:?} k {k} row {row}");
            }
        }
    }
}

/// Per row a list of ids: none, one, or some with repeats; the offsets.
fn lists(case: &Case, shift: usize) -> (Vec<usize>, Vec<u32>) {
    let mut stream = Stream::new(shift as u64, Purpose::Test, case.valid as u64);
    let (mut offsets, mut ids) = (vec![0], vec![]);
    for row in 0..case.rows {
        let len = [3, 0, 1, 40][(row + shift) % 4];
        ids.extend((0..len).map(|_| stream.below(u32::try_from(case.valid).unwrap())));
        offsets.push(ids.len());
    }
    (offsets, ids)
}

#[test]
fn gather_many_is_gather_of_each_id() {
    for case in CASES.iter().chain([&QWEN3]) {
        for shift in 0..4 {
            let mut x = logits(case, 5, true);
            let (offsets, ids) = lists(case, shift);
            // Rows at their own temperatures, and a row that nothing is asked of may hold anything.
            let inv_temps: Vec<f32> = [case.inv_temp, 1.0, 0.5].into_iter().cycle().take(case.rows).collect();
            for row in 0..case.rows {
                if offsets[row] == offsets[row + 1] {
                    x[row * case.vocab] = f32::NAN;
                }
            }
            let mut want = vec![0.0; ids.len()];
            let reference = Cpu::with_isa(1, Isa::Portable);
            for row in 0..case.rows {
                let (one, inv_temp) = (&x[row * case.vocab..][..case.vocab], inv_temps[row]);
                for at in offsets[row]..offsets[row + 1] {
                    let out = &mut want[at..=at];
                    gather(&reference, 1, case.vocab, case.valid, inv_temp, one, &ids[at..=at], out).unwrap();
                }
            }
            for isa in Isa::available() {
                for threads in 1..=3 {
                    let (cpu, mut got) = (Cpu::with_isa(threads, isa), vec![0.0; ids.len()]);
                    gather_many(&cpu, case.vocab, case.valid, &inv_temps, &x, &offsets, &ids, &mut got).unwrap();
                    assert_same_bits(&format!("{cpu} {case:?}"), &got, &want);
                }
            }
        }
    }
}

#[test]
fn gather_many_names_the_row() {
    let cpu = Cpu::new(1);
    let mut x = vec![0.0; 4 * 6];
    let call = |x: &[f32], ids: &[u32]| gather_many(&cpu, 6, 5, &[1.0; 4], x, &[0, 2, 2, 3, 5], ids, &mut [0.0; 5]);
    assert_eq!(call(&x, &[0, 1, 2, 3, 4]), Ok(()));
    for (at, row) in [(0, 0), (1, 0), (2, 2), (3, 3), (4, 3)] {
        let mut ids = [0; 5];
        ids[at] = 5;
        assert_eq!(call(&x, &ids), Err(LogitError::Target { row, target: 5, valid: 5 }), "{at}");
    }
    x[2 * 6 + 4] = f32::INFINITY;
    assert!(matches!(call(&x, &[0; 5]), Err(LogitError::NotFinite { row: 2, column: 4, .. })));
    x[2 * 6..3 * 6].fill(f32::NEG_INFINITY);
    assert_eq!(call(&x, &[0; 5]), Err(LogitError::NoMass { whose: "logits", row: 2, valid: 5 }));
}

#[test]
fn the_top_of_a_row_has_both_logprobs() {
    for case in CASES.iter().chain([&QWEN3]) {
        let mut x = logits(case, 6, true);
        x.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
        let row = &x[..case.valid];
        for k in [1, 5, case.valid].into_iter().filter(|&k| k <= case.valid && k < 5000) {
            for inv_temp in [1.0, case.inv_temp, 1.0 / 0.3] {
                let (mut ids, mut logprobs) = (vec![0; k], vec![0.0; k]);
                let cpu = Cpu::with_isa(1, Isa::Portable);
                let n = case.valid;
                top_k(&cpu, 1, n, n, inv_temp, row, k, &mut ids, &mut logprobs).unwrap();
                let mut raw = vec![0.0; k];
                gather_many(&cpu, n, n, &[1.0], row, &[0, k], &ids, &mut raw).unwrap();
                for isa in Isa::available() {
                    let normalizers = Normalizers::of(isa, row, inv_temp).unwrap();
                    let (mut got_ids, mut got, mut got_raw) = (vec![0; k], vec![0.0; k], vec![0.0; k]);
                    top_k_of_row(isa, row, inv_temp, normalizers, &mut got_ids, &mut got, &mut got_raw);
                    let what = format!("{} {case:?} k {k} inv_temp {inv_temp}", isa.name());
                    assert_eq!(got_ids, ids, "{what}");
                    assert_same_bits(&what, &got, &logprobs);
                    assert_same_bits(&what, &got_raw, &raw);
                }
            }
        }
    }
    let broken = Normalizers::of(Isa::Portable, &[0.0, f32::NAN], 0.5);
    assert!(matches!(broken, Err(LogitError::NotFinite { row: 0, column: 1, inv_temp: 0.5, .. })));
}

#[test]
fn the_same_bits_everywhere() {
    for case in CASES {
        let x = logits(case, 3, true);
        let want = run_lse(&Cpu::with_isa(1, Isa::Portable), case, &x);
        for isa in Isa::available() {
            for threads in 1..=3 {
                let cpu = Cpu::with_isa(threads, isa);
                let got = run_lse(&cpu, case, &x);
                for row in 0..case.rows {
                    let one = Case { rows: 1, ..*case };
                    let alone = run_lse(&cpu, &one, &x[row * case.vocab..][..case.vocab]);
                    let bits = [got[row].to_bits(), alone[0].to_bits()];
                    assert_eq!(bits, [want[row].to_bits(); 2], "{cpu} {case:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn the_order_is_the_documented_one() {
    // The same sums written out, column by column, without tiles as slices or blocks.
    let case = CASES[7];
    let x = logits(&case, 4, false);
    let row = &x[..case.valid];
    let z: Vec<f32> = row.iter().map(|x| x * case.inv_temp).collect();
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0_f32);
    for start in (0..case.valid).step_by(1024) {
        let end = case.valid.min(start + 1024);
        let m = z[start..end].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut lanes = [0.0; 16];
        for at in start..end {
            lanes[at % 16] += crate::math::exp(z[at] - m);
        }
        let s = crate::math::tree16(&lanes);
        let new = f32::max(max, m);
        sum = sum.mul_add(crate::math::exp(max - new), s * crate::math::exp(m - new));
        max = new;
    }
    let want = max + crate::math::ln(sum);
    let got = run_lse(&Cpu::new(1), &case, &x)[0];
    assert_eq!(got.to_bits(), want.to_bits());
}

#[test]
fn exp_is_zero_from_the_stated_point_down() {
    assert_eq!(crate::math::exp(cpu::EXP_IS_ZERO), 0.0);
    assert!(crate::math::exp(cpu::EXP_IS_ZERO.next_up()) > 0.0);
}

#[test]
fn broken_rows_are_named() {
    let cpu = Cpu::new(2);
    let call = |x: &[f32], inv_temp: f32| lse(&cpu, 3, 2050, 2049, inv_temp, x, &mut [0.0; 3]);
    let at = |column: usize, value: f32| {
        let mut x = vec![0.5_f32; 3 * 2050];
        x[2 * 2050 + column] = value;
        x
    };
    for value in [f32::NAN, f32::INFINITY] {
        for column in [0, 15, 1023, 1024, 2048] {
            match call(&at(column, value), 1.0) {
                Err(LogitError::NotFinite { whose: "logits", row: 2, column: found, .. }) => assert_eq!(found, column),
                other => panic!("{value} at {column}: {other:?}"),
            }
        }
        assert_eq!(call(&at(2049, value), 1.0), Ok(()), "padding is not read");
    }
    assert_eq!(call(&at(7, f32::NEG_INFINITY), 1.0), Ok(()));
    assert!(matches!(call(&at(7, 1e30), 1e10), Err(LogitError::NotFinite { row: 2, column: 7, .. })));
    // NaN in a row that is minus infinity otherwise is still found; without it there is no mass.
    let mut x = vec![f32::NEG_INFINITY; 3 * 2050];
    assert_eq!(call(&x, 1.0), Err(LogitError::NoMass { whose: "logits", row: 0, valid: 2049 }));
    x[40] = f32::NAN;
    assert!(matches!(call(&x, 1.0), Err(LogitError::NotFinite { row: 0, column: 40, .. })));
    let mut out = [0.0; 2];
    assert_eq!(
        gather(&cpu, 2, 8, 5, 1.0, &[0.0; 16], &[4, 5], &mut out),
        Err(LogitError::Target { row: 1, target: 5, valid: 5 })
    );
}

#[test]
fn a_certain_token_has_logprob_zero() {
    let x = [f32::NEG_INFINITY, 3.5, f32::NEG_INFINITY];
    let mut out = [1.0; 1];
    gather(&Cpu::new(1), 1, 3, 3, 1.0, &x, &[1], &mut out).unwrap();
    assert_eq!(out, [0.0]);
    gather(&Cpu::new(1), 1, 3, 3, 1.0, &x, &[0], &mut out).unwrap();
    assert_eq!(out, [f32::NEG_INFINITY]);
}
