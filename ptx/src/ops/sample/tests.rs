use super::cases::cuts;
use super::*;
use crate::Cpu;
use crate::ops::log_softmax::cases::{CASES, Case, QWEN3};
use crate::ops::log_softmax::gather;
use crate::ops::log_softmax::tests::{logits, lse_tolerance};
use crate::ops::twins::assert_same_bits;
use crate::rng::{Purpose, Stream, sample_uniform};

const PLAIN: Params = Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

fn rows(case: &Case, seed: u64) -> Vec<Vec<f32>> {
    logits(case, seed, true).chunks(case.vocab).map(|row| row[..case.valid].to_vec()).collect()
}

fn log_softmax_at(row: &[f32], inv_temp: f32, token: u32) -> f32 {
    let mut out = [0.0];
    gather(&Cpu::new(1), 1, row.len(), row.len(), inv_temp, row, &[token], &mut out).unwrap();
    out[0]
}

#[test]
fn the_kept_ids_are_the_naive_ones_ties_included() {
    let isa = Isa::detect();
    let (mut checked, mut undecided, mut ids) = (0, 0, vec![]);
    for case in CASES {
        for (seed, rounded) in [(1, false), (2, true)] {
            for mut row in rows(case, seed) {
                if rounded {
                    row.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
                }
                for params in cuts() {
                    let (want, margin) = naive::kept(&params, &row);
                    // Closer than the sums' rounding: either answer is right.
                    if margin < 1e-5 {
                        undecided += 1;
                        continue;
                    }
                    checked += 1;
                    support(isa, &params, &row, &mut ids).unwrap();
                    let want: Vec<u32> = want.iter().map(|&(id, _)| id).collect();
                    assert!(ids == want, "{case:?} {params:?}: {} ids, want {}", ids.len(), want.len());
                    let sampled = draw(isa, &params, &row, 0.5).unwrap();
                    assert_eq!(sampled.support as usize, want.len(), "{case:?} {params:?}");
                }
            }
        }
    }
    assert!(checked > 20 * undecided && checked > 1000, "{checked} checked, {undecided} undecided");
}

#[test]
fn draws_follow_the_inverse_cdf() {
    // A grid of n uniforms hits an id of probability p between n p - 1 and n p + 1 times; rounding moves the CDF by
    // less than 1e-5 at each end.
    const N: u32 = 256;
    let isa = Isa::detect();
    for case in CASES.iter().filter(|case| case.valid < 1100) {
        let row = &rows(case, 3)[0];
        for params in cuts().into_iter().step_by(2) {
            let (kept, margin) = naive::kept(&params, row);
            if margin < 1e-5 {
                continue;
            }
            let mut hits = vec![0_u32; row.len()];
            let mut last = None;
            let mut rank = vec![u32::MAX; row.len()];
            kept.iter().zip(0..).for_each(|(&(id, _), at)| rank[id as usize] = at);
            for i in 0..N {
                #[allow(clippy::cast_precision_loss)]
                let uniform = (i as f32 + 0.5) / N as f32;
                let sampled = draw(isa, &params, row, uniform).unwrap();
                hits[sampled.token as usize] += 1;
                // Ascending ids when nothing is cut, descending probability otherwise.
                let place = if params.truncates(row.len()) { rank[sampled.token as usize] } else { sampled.token };
                assert!(last <= Some(place) && place != u32::MAX, "{case:?} {params:?} at {uniform}");
                last = Some(place);
                let (_, p) = kept[rank[sampled.token as usize] as usize];
                let limit = 2.0 * lse_tolerance(row.len(), p.ln()) + 1e-6;
                let error = (f64::from(sampled.logprob) - p.ln()).abs();
                assert!(error < limit, "{case:?} {params:?}: logprob {} want {}", sampled.logprob, p.ln());
                if i % 32 == 0 {
                    let raw = log_softmax_at(row, 1.0, sampled.token);
                    assert_eq!(sampled.logprob_raw.to_bits(), raw.to_bits(), "{case:?} {params:?}");
                    if !params.truncates(row.len()) {
                        let want = log_softmax_at(row, params.inv_temp(), sampled.token);
                        assert_eq!(sampled.logprob.to_bits(), want.to_bits(), "{case:?} {params:?}");
                    }
                }
            }
            for (id, p) in kept {
                let (hits, want) = (f64::from(hits[id as usize]), f64::from(N) * p);
                assert!(
                    (hits - want).abs() < 1.0 + 2e-5 * f64::from(N),
                    "{case:?} {params:?} id {id}: {hits} of {want}"
                );
            }
        }
    }
}

#[test]
fn frequencies_pass_a_chi_square_test() {
    // Counter-based uniforms, so always the same sum. If chi2 has k degrees of freedom, it exceeds
    // k + 2 sqrt(k t) + 2 t with probability below e^-t (Laurent and Massart, 2000); t = 14 makes that 1e-6.
    const N: u32 = 40_000;
    let row = [1.0, 0.2, -0.5, 1.7, f32::NEG_INFINITY, 0.0, -1.2, 0.9];
    for params in [PLAIN, Params { temperature: 0.8, top_p: 0.9, ..PLAIN }, Params { top_k: 5, min_p: 0.1, ..PLAIN }] {
        let (kept, _) = naive::kept(&params, &row);
        let mut hits = [0_u32; 8];
        for position in 0..N {
            let sampled = draw(Isa::detect(), &params, &row, sample_uniform(9, 4, position)).unwrap();
            hits[sampled.token as usize] += 1;
        }
        let chi2: f64 = kept
            .iter()
            .map(|&(id, p)| (f64::from(hits[id as usize]) - p * f64::from(N)).powi(2) / (p * f64::from(N)))
            .sum();
        let k = f64::from(u32::try_from(kept.len()).unwrap() - 1);
        let bound = k + 2.0 * (k * 14.0).sqrt() + 28.0;
        assert!(chi2 < bound, "{params:?}: chi2 {chi2} of {bound}, {hits:?}");
        let inside: u32 = kept.iter().map(|&(id, _)| hits[id as usize]).sum();
        assert_eq!(inside, N, "{params:?}: {hits:?}");
    }
}

#[test]
fn top_p_biases_the_ratio_by_the_mass_that_it_drops() {
    let row = [0.5_f32, 0.3, 0.15, 0.05].map(crate::math::ln);
    let params = Params { top_p: 0.9, ..PLAIN };
    // E[untruncated / drawn from] over the draws is the mass kept, 0.95, not 1.
    let (mut sum, n) = (0.0, 1000_u32);
    for i in 0..n {
        #[allow(clippy::cast_precision_loss)]
        let sampled = draw(Isa::detect(), &params, &row, (i as f32 + 0.5) / n as f32).unwrap();
        assert_eq!(sampled.support, 3);
        sum += f64::from(sampled.logprob_raw - sampled.logprob).exp();
    }
    assert!((sum / f64::from(n) - 0.95).abs() < 1e-6, "{}", sum / f64::from(n));
}

#[test]
fn greedy_takes_the_lowest_of_the_likeliest() {
    for isa in Isa::available() {
        let mut row = vec![-1.0_f32; 5000];
        for at in [4999, 3333, 3332, 1040] {
            row[at] = 2.5;
            let sampled = draw(isa, &Params { temperature: 0.0, top_k: 3, ..PLAIN }, &row, 0.999).unwrap();
            let logprob = log_softmax_at(&row, 1.0, sampled.token);
            let normalizers = Normalizers::of(isa, &row, 1.0).unwrap();
            let token = u32::try_from(at).unwrap();
            let want = Sampled { token, logprob, logprob_raw: logprob, support: 1, normalizers };
            assert_eq!(sampled, want, "{}", isa.name());
        }
    }
}

#[test]
fn exclusions_and_vanishing_tokens_are_never_drawn() {
    const OUT: f32 = f32::NEG_INFINITY;
    let isa = Isa::detect();
    let mut row = vec![OUT; 3000];
    (row[0], row[1500], row[2900]) = (-200.0, 0.0, -1.0);
    for uniform in [0.0, 0.5, 0.8, 1.0_f32.next_down()] {
        for params in
            [PLAIN, Params { top_k: 7, ..PLAIN }, Params { top_p: 0.999, ..PLAIN }, Params { min_p: 1e-40, ..PLAIN }]
        {
            let sampled = draw(isa, &params, &row, uniform).unwrap();
            assert_eq!(sampled.token, if uniform < 0.73 { 1500 } else { 2900 }, "{params:?} {uniform}");
            assert_eq!(sampled.support, 2, "{params:?}");
        }
    }
    // One token left: certain, whatever the parameters.
    let sure = draw(isa, &Params { top_p: 0.5, ..PLAIN }, &[OUT, -7.5, OUT], 0.99).unwrap();
    let normalizers = Normalizers { at_temperature: -7.5, raw: -7.5 };
    assert_eq!(sure, Sampled { token: 1, logprob: 0.0, logprob_raw: 0.0, support: 1, normalizers });
}

#[test]
fn processed_is_what_a_draw_would_report() {
    for case in CASES.iter().filter(|case| case.valid < 5000) {
        for rounded in [false, true] {
            let mut row = rows(case, 7).swap_remove(0);
            if rounded {
                // Halves, so that cuts fall between equals: the lower id is kept.
                row.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
            }
            let ids: Vec<u32> = (0..u32::try_from(row.len()).unwrap()).collect();
            let (mut got, mut kept) = (vec![0.0; ids.len()], vec![]);
            for params in cuts() {
                processed(Isa::Portable, &params, &row, &ids, &mut got).unwrap();
                for isa in Isa::available() {
                    let mut other = vec![0.0; ids.len()];
                    processed(isa, &params, &row, &ids, &mut other).unwrap();
                    assert_same_bits(&format!("{} {case:?} {params:?}", isa.name()), &other, &got);
                }
                let sampled =
                    [0.0, 0.3, 0.8, 0.999].map(|uniform| draw(Isa::detect(), &params, &row, uniform).unwrap());
                for s in sampled {
                    assert_eq!(got[s.token as usize].to_bits(), s.logprob.to_bits(), "{case:?} {params:?} {s:?}");
                }
                if !params.truncates(row.len()) {
                    for &id in ids.iter().step_by(97) {
                        let want = log_softmax_at(&row, params.inv_temp(), id);
                        assert_eq!(got[id as usize].to_bits(), want.to_bits(), "{case:?} {params:?} id {id}");
                    }
                    continue;
                }
                support(Isa::detect(), &params, &row, &mut kept).unwrap();
                let finite = got.iter().filter(|x| x.is_finite()).count();
                assert_eq!(finite, kept.len(), "{case:?} {params:?}");
                assert!(kept.iter().all(|&id| got[id as usize].is_finite()), "{case:?} {params:?}");
                // ln p summed over the support: the tolerance of one log-sum-exp, and of one exp and rounding each.
                let mass: f64 = kept.iter().map(|&id| f64::from(got[id as usize]).exp()).sum();
                assert!((mass - 1.0).abs() < 2.0 * lse_tolerance(row.len(), 1.0), "{case:?} {params:?}: {mass}");
            }
        }
    }
}

#[test]
fn processed_at_temperature_zero_and_of_bad_input() {
    let isa = Isa::detect();
    let row = [0.5, 2.0, -1.0, 2.0];
    let greedy = Params { temperature: 0.0, top_k: 1, ..PLAIN };
    let mut out = [0.0; 2];
    processed(isa, &greedy, &row, &[2, 1], &mut out).unwrap();
    assert_eq!(out, [log_softmax_at(&row, 1.0, 2), draw(isa, &greedy, &row, 0.0).unwrap().logprob]);
    // Of two equals top-k keeps the lower id.
    processed(isa, &Params { top_k: 1, ..PLAIN }, &row, &[3, 1], &mut out).unwrap();
    assert_eq!(out, [f32::NEG_INFINITY, 0.0]);
    let error = processed(isa, &PLAIN, &row, &[0, 4], &mut out).unwrap_err();
    assert_eq!(error, SampleError::Id { id: 4, valid: 4 });
    for params in [PLAIN, Params { top_k: 2, ..PLAIN }, greedy] {
        let error = processed(isa, &params, &[0.0, f32::NAN, 1.0], &[0, 2], &mut out).unwrap_err();
        assert!(matches!(error, SampleError::NotFinite { id: 1, .. }), "{params:?}");
    }
}

#[test]
fn a_draw_reports_the_rows_normalizers() {
    for case in CASES {
        let row = &rows(case, 8)[0];
        for params in cuts().into_iter().chain([Params { temperature: 0.0, ..PLAIN }]) {
            for isa in Isa::available() {
                let got = draw(isa, &params, row, 0.4).unwrap().normalizers;
                let want = Normalizers::of(Isa::Portable, row, params.inv_temp()).unwrap();
                let bits = |n: Normalizers| [n.at_temperature.to_bits(), n.raw.to_bits()];
                assert_eq!(bits(got), bits(want), "{} {case:?} {params:?}", isa.name());
            }
        }
    }
}

#[test]
fn the_same_bits_on_every_instruction_set() {
    let mut stream = Stream::new(5, Purpose::Test, 77);
    for case in CASES {
        let row = &rows(case, 4)[0];
        for params in cuts() {
            let uniform = stream.uniform();
            let bits = |isa| {
                let s = draw(isa, &params, row, uniform).unwrap();
                (s.token, s.logprob.to_bits(), s.logprob_raw.to_bits(), s.support)
            };
            let want = bits(Isa::Portable);
            for isa in Isa::available() {
                assert_eq!(bits(isa), want, "{} {case:?} {params:?} {uniform}", isa.name());
            }
        }
    }
}

#[test]
fn a_real_vocabulary() {
    let isa = Isa::detect();
    let row = &rows(&QWEN3, 6)[0];
    for params in
        [PLAIN, Params { temperature: 0.7, top_k: 20, top_p: 0.95, min_p: 0.0 }, Params { top_p: 0.9, ..PLAIN }]
    {
        let (kept, margin) = naive::kept(&params, row);
        assert!(margin > 1e-6, "choose another seed");
        for uniform in [0.0, 0.3, 0.999_999] {
            let sampled = draw(isa, &params, row, uniform).unwrap();
            assert_eq!(sampled.support as usize, kept.len(), "{params:?}");
            let walk: Vec<(u32, f64)> = if params.truncates(row.len()) {
                kept.clone()
            } else {
                let mut ascending = kept.clone();
                ascending.sort_by_key(|&(id, _)| id);
                ascending
            };
            // The CDF just before and just after the token encloses the uniform.
            let mut before = 0.0;
            let mut found = None;
            for (id, p) in walk {
                if id == sampled.token {
                    found = Some(p);
                    break;
                }
                before += p;
            }
            let p = found.expect("a token that is kept");
            let uniform = f64::from(uniform);
            assert!(before < uniform + 1e-5 && before + p > uniform - 1e-5, "{params:?} {uniform}: {before} + {p}");
            assert!((f64::from(sampled.logprob) - p.ln()).abs() < 1e-4, "{params:?}");
        }
    }
}

#[test]
fn bad_parameters_and_rows_are_named() {
    let isa = Isa::detect();
    let error = |params: Params, row: &[f32]| draw(isa, &params, row, 0.5).unwrap_err();
    for temperature in [-1.0, f32::NAN, f32::INFINITY, 1e-7] {
        let params = Params { temperature, ..PLAIN };
        assert!(matches!(error(params, &[0.0]), SampleError::Temperature { .. }), "{temperature}");
    }
    for top_p in [0.0, -0.1, 1.1, f32::NAN] {
        assert!(matches!(Params { top_p, ..PLAIN }.check(), Err(SampleError::TopP { .. })), "{top_p}");
    }
    for min_p in [-0.1, 1.1, f32::NAN] {
        assert!(matches!(Params { min_p, ..PLAIN }.check(), Err(SampleError::MinP { .. })), "{min_p}");
    }
    assert_eq!(Params { temperature: 1e-6, top_k: u32::MAX, top_p: 1e-9, min_p: 1.0 }.check(), Ok(()));
    for params in [PLAIN, Params { temperature: 0.0, ..PLAIN }, Params { top_k: 2, ..PLAIN }] {
        assert!(matches!(error(params, &[0.0, 1.0, f32::NAN]), SampleError::NotFinite { id: 2, .. }), "{params:?}");
        assert!(
            matches!(error(params, &[0.0, f32::INFINITY, 1.0]), SampleError::NotFinite { id: 1, .. }),
            "{params:?}"
        );
        assert_eq!(error(params, &[f32::NEG_INFINITY; 3]), SampleError::NoMass { valid: 3 }, "{params:?}");
    }
}
