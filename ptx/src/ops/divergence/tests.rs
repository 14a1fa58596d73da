use super::cases::{Case, cases};
use super::*;
use crate::Isa;
use crate::ops::log_softmax::cases::{Case as Block, QWEN3};
use crate::ops::log_softmax::naive::{logprobs, lse, scaled};
use crate::ops::log_softmax::tests::{logits, lse_tolerance};
use crate::rng::{Purpose, Stream};

const KINDS: [Kind; 2] = [Kind::ReverseKl, Kind::ForwardKl];

struct Input {
    student: Vec<f32>,
    teacher: Vec<f32>,
    weights: Vec<f32>,
}

/// A teacher at the case's distance from the student; both exclude the same ids. Weights differ by row, one is 0.
fn input(case: &Case, seed: u64) -> Input {
    let student = logits(&case.block, seed, true);
    let mut stream = Stream::new(seed, Purpose::Test, 1 << 40);
    let teacher = student.iter().map(|x| x + case.distance * stream.normal()).collect();
    let weights = [0.75, 0.0, -0.5, 2.0, 1.0][..case.block.rows].to_vec();
    Input { student, teacher, weights }
}

fn run(cpu: &Cpu, kind: Kind, block: &Block, input: &Input) -> (Vec<f32>, Vec<RowStats>) {
    let mut student = input.student.clone();
    let mut stats = vec![RowStats::default(); block.rows];
    let Block { rows, vocab, valid, inv_temp, .. } = *block;
    dense(cpu, kind, rows, vocab, valid, inv_temp, &mut student, &input.teacher, &input.weights, &mut stats).unwrap();
    (student, stats)
}

fn run_kl(cpu: &Cpu, block: &Block, p: &[f32], q: &[f32]) -> Vec<f64> {
    let mut out = vec![-1.0; block.rows];
    kl(cpu, block.rows, block.vocab, block.valid, block.inv_temp, p, q, &mut out).unwrap();
    out
}

const U: f64 = 1.0 / 16_777_216.0;

/// The bounds of the module's documentation, for one row.
struct Bounds {
    lse: f64,
    kl_pq: f64,
    kl_qp: f64,
}

fn bounds(p: &[f64], q: &[f64]) -> Bounds {
    let (lse_p, lse_q) = (lse(p), lse(q));
    let lse_error = lse_tolerance(p.len(), lse_p).max(lse_tolerance(p.len(), lse_q));
    let (mut log, mut absolute) = (0.0_f64, 4.0 * lse_error * lse_error);
    for (&zp, &zq) in p.iter().zip(q) {
        let (lp, lq) = (zp - lse_p, zq - lse_q);
        if lp.max(lq) == f64::NEG_INFINITY {
            continue;
        }
        if lp.max(lq) > 1e-9_f64.ln() {
            log = log.max(lp.abs()).max(lq.abs());
        }
        let rounding = U * ((zq - zp).abs() + (lse_q - lse_p).abs() + (lq - lp).abs());
        absolute += (lp.exp() - lq.exp()).abs() * rounding;
    }
    let relative = lse_error + U * (110.0 + 2.0 * log);
    Bounds {
        lse: lse_error,
        kl_pq: relative * super::naive::kl(p, q) + absolute,
        kl_qp: relative * super::naive::kl(q, p) + absolute,
    }
}

#[track_caller]
fn close(what: std::fmt::Arguments, got: f64, want: f64, limit: f64) {
    assert!(
        got == want || (got - want).abs() <= limit,
        "{what}: {got} want {want}, off by {} of {limit}",
        (got - want).abs()
    );
}

#[test]
fn losses_entropies_and_gradients_meet_the_truth() {
    let cpu = Cpu::new(1);
    for case in cases().chain([Case { block: Block { rows: 1, ..QWEN3 }, distance: 0.3 }]) {
        let Block { vocab, valid, inv_temp, .. } = case.block;
        let input = input(&case, 5);
        let (p, q) = (scaled(vocab, valid, inv_temp, &input.student), scaled(vocab, valid, inv_temp, &input.teacher));
        for kind in KINDS {
            let (gradient, stats) = run(&cpu, kind, &case.block, &input);
            for (row, stats) in stats.iter().enumerate() {
                let (p, q, weight) = (&p[row], &q[row], f64::from(input.weights[row]));
                macro_rules! at {
                    ($what:literal) => {
                        format_args!("{case:?} {kind:?} row {row}: {}", format_args!($what))
                    };
                }
                let bounds = bounds(p, q);
                close(at!("reverse"), stats.kl_reverse, naive::kl(p, q), bounds.kl_pq);
                close(at!("forward"), stats.kl_forward, naive::kl(q, p), bounds.kl_qp);
                let limit = |entropy: f64| bounds.lse * (1.0 + entropy) + U * (110.0 + 60.0) * entropy;
                let (hp, hq) = (naive::entropy(p), naive::entropy(q));
                close(at!("student's entropy"), stats.entropy_student, hp, limit(hp));
                close(at!("teacher's entropy"), stats.entropy_teacher, hq, limit(hq));
                let of_kind = if kind == Kind::ReverseKl { stats.kl_reverse } else { stats.kl_forward };
                assert_eq!(stats.loss, weight * of_kind, "{}", at!("loss"));
                let got = &gradient[row * vocab..][..vocab];
                assert!(got[valid..].iter().all(|&x| x.to_bits() == 0), "{}", at!("padding"));
                let (lp, lq, kl) = (logprobs(p), logprobs(q), naive::kl(p, q));
                for (i, want) in naive::gradient(kind, p, q).into_iter().enumerate() {
                    let scale = weight * f64::from(inv_temp);
                    // The error of a probability: relative, and below f32's normal range a step, which e^4 may multiply.
                    let error = |l: f64| l.exp() * (2.0 * bounds.lse + U * (20.0 + 2.0 * l.abs().min(200.0))) + 1e-43;
                    let x = if lp[i] == f64::NEG_INFINITY { 0.0 } else { (lp[i] - lq[i]).abs() };
                    let limit = scale.abs() * ((x + kl).max(1.0) * error(lp[i]) + error(lq[i]));
                    close(at!("gradient {i}"), f64::from(got[i]), scale * want, limit);
                }
            }
        }
        let out = run_kl(&cpu, &case.block, &input.student, &input.teacher);
        let (_, stats) = run(&cpu, Kind::ForwardKl, &case.block, &input);
        for row in 0..case.block.rows {
            assert_eq!(out[row].to_bits(), stats[row].kl_reverse.to_bits(), "{case:?} row {row}: kl and dense");
            assert!(out[row] >= 0.0 && (case.distance > 0.0 || out[row] == 0.0), "{case:?} row {row}: {}", out[row]);
        }
    }
}

#[test]
fn gradients_meet_finite_differences() {
    let block = Block { rows: 2, vocab: 9, valid: 7, inv_temp: 1.0 / 0.7, spread: 1.5 };
    let case = Case { block, distance: 1.0 };
    let mut input = input(&case, 11);
    input.weights = vec![1.25, -0.5];
    input.student.iter_mut().chain(&mut input.teacher).for_each(|x| *x = x.max(-20.0));
    for kind in KINDS {
        let (got, _) = run(&Cpu::new(1), kind, &block, &input);
        for row in 0..block.rows {
            let logits = |x: &[f32]| -> Vec<f64> { x[row * 9..][..7].iter().map(|&x| f64::from(x)).collect() };
            let (student, teacher) = (logits(&input.student), logits(&input.teacher));
            let loss = |student: &[f64]| {
                let over_t = |x: &[f64]| x.iter().map(|x| x * f64::from(block.inv_temp)).collect::<Vec<_>>();
                f64::from(input.weights[row]) * naive::loss(kind, &over_t(student), &over_t(&teacher))
            };
            for i in 0..block.valid {
                let step = 1e-5;
                let (mut up, mut down) = (student.clone(), student.clone());
                up[i] += step;
                down[i] -= step;
                // Truncation is of order step^2, f64 rounding of order 1e-16 / step; f32 gives 1e-6 of terms near 1.
                let want = (loss(&up) - loss(&down)) / (2.0 * step);
                close(format_args!("{kind:?} row {row} column {i}"), f64::from(got[row * 9 + i]), want, 3e-6);
            }
        }
    }
}

fn ln(p: &[f32]) -> Vec<f32> {
    p.iter().map(|&p| crate::math::ln(p)).collect()
}

fn plain(vocab: usize) -> Block {
    Block { rows: 1, vocab, valid: vocab, inv_temp: 1.0, spread: 0.0 }
}

#[test]
fn known_values_fix_the_direction() {
    let cpu = Cpu::new(1);
    // From logits rounded to f32, so within 1e-6 of the values worked out by hand to six digits.
    let check = |teacher: &[f32], student: &[f32], forward: f64, reverse: f64| {
        let block = plain(teacher.len());
        let (teacher, student) = (ln(teacher), ln(student));
        close(format_args!("forward"), run_kl(&cpu, &block, &teacher, &student)[0], forward, 1e-6);
        close(format_args!("reverse"), run_kl(&cpu, &block, &student, &teacher)[0], reverse, 1e-6);
        let input = Input { student, teacher, weights: vec![1.0] };
        for (kind, loss) in [(Kind::ForwardKl, forward), (Kind::ReverseKl, reverse)] {
            let (_, stats) = run(&cpu, kind, &block, &input);
            close(format_args!("loss"), stats[0].loss, loss, 1e-6);
        }
    };
    check(&[0.5, 0.3, 0.15, 0.05], &[0.25, 0.25, 0.1, 0.4], 0.358_118, 0.572_363);
    check(&[0.6, 0.25, 0.1, 0.05], &[0.3, 0.4, 0.1, 0.2], 0.229_073, 0.257_316);
    check(&[0.9, 0.1], &[0.6, 0.4], 0.9 * 1.5_f64.ln() + 0.1 * 0.25_f64.ln(), 0.311_239);

    let input = Input { student: ln(&[0.3, 0.4, 0.1, 0.2]), teacher: ln(&[0.6, 0.25, 0.1, 0.05]), weights: vec![1.0] };
    for (kind, want) in
        [(Kind::ReverseKl, [-0.285_139, 0.085_075, -0.025_732, 0.225_796]), (Kind::ForwardKl, [-0.3, 0.15, 0.0, 0.15])]
    {
        let (got, _) = run(&cpu, kind, &plain(4), &input);
        (0..4).for_each(|i| close(format_args!("gradient"), f64::from(got[i]), want[i], 1e-6));
    }
}

#[test]
fn temperature_belongs_to_both_sides() {
    let cpu = Cpu::new(1);
    let (student, teacher) = ([2.0, 1.0, 0.0], [1.0, 2.0, 0.0]);
    let warm = Block { inv_temp: 1.0 / 0.7, ..plain(3) };
    close(format_args!("at 0.7"), run_kl(&cpu, &warm, &student, &teacher)[0], 0.837_427, 1e-6);
    // The mistake that the shared temperature rules out: the teacher left at 1.
    let over_t: Vec<f32> = student.iter().map(|x| x / 0.7).collect();
    close(format_args!("student alone"), run_kl(&cpu, &plain(3), &over_t, &teacher)[0], 0.616_550, 1e-6);
    close(format_args!("equal models, student alone"), run_kl(&cpu, &plain(3), &over_t, &student)[0], 0.030_351, 1e-6);
    assert_eq!(run_kl(&cpu, &warm, &student, &student), [0.0]);
}

#[test]
fn padding_has_no_mass() {
    let cpu = Cpu::new(1);
    // A student padded with zero logits is no other model than one without them.
    let block = Block { vocab: 4, valid: 3, ..plain(4) };
    let (student, teacher) = ([2.0, 1.0, 0.0, 0.0], [2.0, 1.0, 0.0, -10.0]);
    assert_eq!(run_kl(&cpu, &block, &teacher, &student), [0.0]);
    close(format_args!("were the padding an id"), run_kl(&cpu, &plain(4), &teacher, &student)[0], 0.086_161, 1e-6);
    let input = Input { student: student.to_vec(), teacher: teacher.to_vec(), weights: vec![1.0] };
    for kind in KINDS {
        assert_eq!(run(&cpu, kind, &block, &input).0, [0.0; 4]);
    }
}

#[test]
fn exclusions_give_no_nan() {
    const OUT: f32 = f32::NEG_INFINITY;
    let cpu = Cpu::new(1);
    let block = plain(4);
    // Excluded by both: as if the token were not there.
    let (a, b) = ([1.0, OUT, 0.5, 0.0], [0.0, OUT, 0.5, 1.0]);
    let without = run_kl(&cpu, &plain(3), &[1.0, 0.5, 0.0], &[0.0, 0.5, 1.0])[0];
    close(format_args!("excluded by both"), run_kl(&cpu, &block, &a, &b)[0], without, 1e-7);
    for kind in KINDS {
        let input = Input { student: a.to_vec(), teacher: b.to_vec(), weights: vec![1.0] };
        let (gradient, _) = run(&cpu, kind, &block, &input);
        assert!(gradient.iter().all(|x| x.is_finite()) && gradient[1] == 0.0, "{kind:?}: {gradient:?}");
    }
    // Excluded by one: infinite where the mean is taken over the other, finite the other way round.
    let wide = [1.0, -2.0, 0.5, 0.0];
    assert_eq!(run_kl(&cpu, &block, &wide, &a), [f64::INFINITY]);
    assert!(run_kl(&cpu, &block, &a, &wide)[0].is_finite());
    let loss = |kind, student: &[f32; 4], teacher: &[f32; 4], weight: f32| {
        let mut gradient = *student;
        let mut stats = [RowStats::default()];
        let result = dense(&cpu, kind, 1, 4, 4, 1.0, &mut gradient, teacher, &[weight], &mut stats);
        result.map(|()| (gradient, stats[0]))
    };
    let infinite = Err(LogitError::InfiniteLoss { row: 0 });
    assert_eq!(loss(Kind::ReverseKl, &wide, &a, 1.0), infinite);
    assert_eq!(loss(Kind::ForwardKl, &a, &wide, 1.0), infinite);
    let (gradient, stats) = loss(Kind::ReverseKl, &a, &wide, 1.0).unwrap();
    assert!(gradient.iter().all(|x| x.is_finite()) && gradient[1] == 0.0, "{gradient:?}");
    assert!(stats.loss.is_finite() && stats.kl_forward == f64::INFINITY, "{stats:?}");
    let (gradient, stats) = loss(Kind::ReverseKl, &wide, &a, 0.0).unwrap();
    assert_eq!((gradient, stats.loss, stats.kl_reverse), ([0.0; 4], 0.0, f64::INFINITY));
    // Probabilities below f32's range are no exclusion: every figure stays finite.
    let (gradient, stats) = loss(Kind::ForwardKl, &[0.0, -300.0, 0.0, 0.0], &[0.0; 4], 1.0).unwrap();
    close(format_args!("far tail"), stats.loss, naive::kl(&[0.0; 4], &[0.0, -300.0, 0.0, 0.0]), 1e-4);
    close(format_args!("its gradient"), f64::from(gradient[1]), -0.25, 1e-7);
}

#[test]
fn tiny_divergences_keep_their_digits() {
    // Half the variance of the log-ratio x, right to third order in x: from 1e-11 up, where sum p (ln p - ln q) in f32
    // would be noise of 1e-7 and as often negative. The errors of the two lse, 5e-7 at most here, enter squared.
    let block = Block { rows: 1, vocab: 3000, valid: 3000, inv_temp: 1.0, spread: 3.0 };
    let p = logits(&block, 21, false);
    for step in [1 << 6, 1 << 9, 1 << 12] {
        let q: Vec<f32> = p
            .iter()
            .enumerate()
            .map(|(i, &x)| if i % 3 == 0 { f32::from_bits(x.to_bits() + step) } else { x })
            .collect();
        let got = run_kl(&Cpu::new(1), &block, &p, &q)[0];
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (p, q) = (wide(&p), wide(&q));
        let (lp, x) = (logprobs(&p), q.iter().zip(&p).map(|(q, p)| q - p).collect::<Vec<f64>>());
        let mean: f64 = lp.iter().zip(&x).map(|(lp, x)| lp.exp() * x).sum();
        let want = 0.5 * lp.iter().zip(&x).map(|(lp, x)| lp.exp() * (x - mean) * (x - mean)).sum::<f64>();
        close(format_args!("{step} ulp"), got, want, 1e-3 * want + 2.5e-13);
        assert!(got > 0.0 && want > 1e-12 && want < 1e-6, "{got} {want}");
    }
}

#[test]
fn cross_entropy_meets_the_truth_and_gather() {
    let cpu = Cpu::new(2);
    for case in cases().filter(|case| case.distance == 0.0) {
        let Block { rows, vocab, valid, .. } = case.block;
        let Input { student, weights, .. } = input(&case, 8);
        let targets: Vec<u32> = (0..rows).map(|row| u32::try_from((row * 31) % valid).unwrap()).collect();
        let targets: Vec<u32> = targets
            .iter()
            .enumerate()
            .map(|(row, &t)| if student[row * vocab + t as usize].is_finite() { t } else { 0 })
            .collect();
        let mut picked = vec![0.0; rows];
        crate::ops::log_softmax::gather(&cpu, rows, vocab, valid, 1.0, &student, &targets, &mut picked).unwrap();
        let (mut gradient, mut nll) = (student.clone(), vec![0.0; rows]);
        cross_entropy(&cpu, rows, vocab, valid, &mut gradient, &targets, &weights, &mut nll).unwrap();
        for (row, z) in scaled(vocab, valid, 1.0, &student).iter().enumerate() {
            assert_eq!(nll[row], -f64::from(picked[row]), "{case:?} row {row}");
            let error = lse_tolerance(valid, lse(z));
            let weight = f64::from(weights[row]);
            for (i, lp) in logprobs(z).into_iter().enumerate() {
                let want = if i == targets[row] as usize { lp.exp_m1() } else { lp.exp() };
                let limit = weight.abs()
                    * (lp.exp() * (error + U * (10.0 + 2.0 * lp.abs().min(200.0))) + 4.0 * U * want.abs() + 1e-44);
                close(
                    format_args!("{case:?} row {row} column {i}"),
                    f64::from(gradient[row * vocab + i]),
                    weight * want,
                    limit,
                );
            }
            assert!(gradient[row * vocab + valid..(row + 1) * vocab].iter().all(|&x| x == 0.0), "{case:?} row {row}");
        }
    }
    let mut x = [0.0, f32::NEG_INFINITY];
    let mut nll = [0.0];
    assert_eq!(cross_entropy(&cpu, 1, 2, 2, &mut x, &[1], &[1.0], &mut nll), Err(LogitError::InfiniteLoss { row: 0 }));
}

#[test]
fn the_same_bits_everywhere() {
    let bits = |(gradient, stats): (Vec<f32>, Vec<RowStats>)| {
        let stats =
            stats.iter().flat_map(|s| [s.loss, s.kl_reverse, s.kl_forward, s.entropy_student, s.entropy_teacher]);
        (gradient.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), stats.map(f64::to_bits).collect::<Vec<_>>())
    };
    for case in cases().filter(|case| [0.05, 4.0].contains(&case.distance) && case.block.valid < 4000) {
        let input = input(&case, 6);
        let vocab = case.block.vocab;
        for kind in KINDS {
            let want = bits(run(&Cpu::with_isa(1, Isa::Portable), kind, &case.block, &input));
            for isa in Isa::available() {
                for threads in 1..=3 {
                    let cpu = Cpu::with_isa(threads, isa);
                    assert!(bits(run(&cpu, kind, &case.block, &input)) == want, "{cpu} {case:?} {kind:?}");
                }
                let cpu = Cpu::with_isa(1, isa);
                for row in 0..case.block.rows {
                    let part = |x: &[f32]| x[row * vocab..][..vocab].to_vec();
                    let alone = Input {
                        student: part(&input.student),
                        teacher: part(&input.teacher),
                        weights: vec![input.weights[row]],
                    };
                    let (gradient, stats) = bits(run(&cpu, kind, &Block { rows: 1, ..case.block }, &alone));
                    assert!(gradient[..] == want.0[row * vocab..][..vocab], "{cpu} {case:?} {kind:?} row {row} alone");
                    assert!(stats[..] == want.1[row * 5..][..5], "{cpu} {case:?} {kind:?} row {row} alone");
                }
            }
        }
    }
}

#[test]
fn broken_rows_are_named() {
    let cpu = Cpu::new(1);
    let fine = vec![0.25_f32; 2 * 40];
    let mut broken = fine.clone();
    broken[40 + 33] = f32::NAN;
    let found = |whose| move |error: LogitError| matches!(error, LogitError::NotFinite { whose: w, row: 1, column: 33, .. } if w == whose);
    let call = |student: &[f32], teacher: &[f32]| {
        let mut stats = [RowStats::default(); 2];
        dense(&cpu, Kind::ReverseKl, 2, 40, 35, 1.0, &mut student.to_vec(), teacher, &[1.0, 0.0], &mut stats)
            .unwrap_err()
    };
    assert!(found("student")(call(&broken, &fine)));
    assert!(found("teacher")(call(&fine, &broken)));
    assert!(found("q")(kl(&cpu, 2, 40, 35, 1.0, &fine, &broken, &mut [0.0; 2]).unwrap_err()));
    assert!(found("logits")(
        cross_entropy(&cpu, 2, 40, 35, &mut broken.clone(), &[0, 0], &[1.0; 2], &mut [0.0; 2]).unwrap_err()
    ));
}
