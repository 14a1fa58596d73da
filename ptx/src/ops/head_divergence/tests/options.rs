//! Equal inputs, exclusions, ends of the mixtures, and what is refused.

use super::*;

const OUT: f32 = f32::NEG_INFINITY;

#[test]
fn equal_inputs_give_exactly_nothing() {
    for case in CASES {
        let mut models = models(case);
        let own = normals(1, case.vocab.max(case.other) * case.hidden);
        for i in 1..3 {
            models.heads[i] = packed(DType::F32, case.other, case.hidden, &own[..case.other * case.hidden]);
            models.hidden[i] = models.hidden[0].clone();
        }
        for tile in [whole(case), Tile { rows: 2, columns: COLUMNS }] {
            for kind in KINDS.into_iter().filter(|kind| kind.needs_teacher()) {
                let out = call(&Cpu::new(1), kind, tile, case, &models).unwrap();
                for s in &out.stats {
                    let all = [s.loss, s.kl_reverse, s.kl_forward, s.mismatch, s.chi_square];
                    assert_eq!(all, [0.0; 5], "{case:?} {kind:?}");
                    assert_eq!(s.logprob, s.logprob_rollout, "{case:?} {kind:?}");
                }
                assert!(out.dhidden.iter().all(|&x| x == 0.0), "{case:?} {kind:?}");
                assert!(out.dhead.iter().all(|&x| x == 1.0), "{case:?} {kind:?}");
            }
        }
    }
}

#[test]
fn ends_of_mixtures_are_the_plain_divergences() {
    let case = &CASES[3];
    let models = models(case);
    let bits = |kind| call(&Cpu::new(1), kind, whole(case), case, &models).unwrap().bits();
    for (end, plain) in [
        (Kind::Jsd { beta: 0.0 }, Kind::Forward),
        (Kind::Jsd { beta: 1.0 }, Kind::Reverse),
        (Kind::SkewedReverse { alpha: 1.0 }, Kind::Reverse),
        (Kind::SkewedForward { alpha: 1.0 }, Kind::Forward),
        (Kind::Jsd { beta: 1e-60 }, Kind::Forward),
        (Kind::Jsd { beta: 1.0 - 1e-16 }, Kind::Reverse),
    ] {
        assert_eq!(end.plain() == plain, bits(end) == bits(plain), "{end:?}");
    }
    // And they are their limits, to first order in the distance.
    for (near, end) in [(Kind::Jsd { beta: 1e-6 }, Kind::Forward), (Kind::Jsd { beta: 1.0 - 1e-6 }, Kind::Reverse)] {
        let run = |kind| call(&Cpu::new(1), kind, whole(case), case, &models).unwrap();
        for (near, end) in run(near).stats.iter().zip(&run(end).stats) {
            assert!((near.loss - end.loss).abs() < 1e-3 * (1.0 + end.loss), "{near:?} {end:?}");
        }
    }
}

/// Excluded by both sides: as if the token were not there. By one: infinite where nothing bounds the ratio, and then an
/// error that names the row unless its weight is 0.
#[test]
fn exclusions_are_finite_or_named() {
    let (a, b, wide) = ([1.0, OUT, 0.5, 0.0], [0.0, OUT, 0.5, 1.0], [1.0, -2.0, 0.5, 0.0]);
    let without = [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]];
    for kind in KINDS {
        let (stats, gradient) = one_row(kind, [&a, &b, &b], 4, 1.0, 3, 1.0).unwrap();
        let (plain, _) = one_row(kind, [&without[0], &without[1], &without[1]], 3, 1.0, 2, 1.0).unwrap();
        for (got, want) in [(stats.loss, plain.loss), (stats.mismatch, plain.mismatch)] {
            assert!((got - want).abs() < 1e-6, "{kind:?}: {got} want {want}");
        }
        assert!((stats.chi_square - plain.chi_square).abs() < 1e-6, "{kind:?}: {stats:?}");
        assert!(gradient.iter().all(|x| x.is_finite()) && gradient[1] == 0.0, "{kind:?}: {gradient:?}");
        for (student, teacher, is_infinite) in [(&wide, &a, kind == Kind::Reverse), (&a, &wide, kind == Kind::Forward)]
        {
            let of = |weight| one_row(kind, [student, teacher, student], 4, 1.0, 0, weight);
            if is_infinite {
                let error = of(1.0).unwrap_err();
                assert!(matches!(error, HeadError::Logits(LogitError::InfiniteLoss { row: 0 })), "{kind:?}: {error}");
                let (stats, gradient) = of(0.0).unwrap();
                assert_eq!((stats.loss, gradient), (f64::INFINITY, vec![0.0; 4]), "{kind:?}");
            } else {
                let (stats, gradient) = of(1.0).unwrap();
                let z = |x: &[f32; 4]| x.map(f64::from);
                let want = naive::loss(kind, &z(student), &z(teacher), 0);
                assert!((stats.loss - want).abs() < 1e-6 * (1.0 + want), "{kind:?}: {} want {want}", stats.loss);
                for (got, want) in gradient.iter().zip(naive::gradient(kind, &z(student), &z(teacher), 0)) {
                    assert!((f64::from(*got) - want).abs() < 1e-6, "{kind:?}: {got} want {want}");
                }
            }
        }
    }
    // The rollout allows a token that the student excludes: infinite, but no loss and so no error.
    let (stats, _) = one_row(Kind::Reverse, [&a, &a, &wide], 4, 1.0, 0, 1.0).unwrap();
    assert_eq!((stats.mismatch, stats.chi_square), (f64::INFINITY, f64::INFINITY));
    let (stats, _) = one_row(Kind::Reverse, [&wide, &wide, &a], 4, 1.0, 0, 1.0).unwrap();
    let want = naive::chi_square(&a.map(f64::from), &wide.map(f64::from));
    assert!((stats.chi_square - want).abs() < 1e-6, "{stats:?} want {want}");
    // A target that the student excludes.
    let error = one_row(Kind::CrossEntropy, [&a, &a, &a], 4, 1.0, 1, 1.0).unwrap_err();
    assert!(matches!(error, HeadError::Logits(LogitError::InfiniteLoss { row: 0 })), "{error}");
    assert!(one_row(Kind::CrossEntropy, [&a, &a, &a], 4, 1.0, 1, 0.0).unwrap().0.loss.is_infinite());
    // Probabilities below f32's range are no exclusion.
    let far = [0.0, -300.0, 0.0, 0.0];
    for kind in KINDS {
        let (stats, gradient) = one_row(kind, [&far, &[0.0; 4], &[0.0; 4]], 4, 1.0, 0, 1.0).unwrap();
        let want = naive::loss(kind, &far.map(f64::from), &[0.0; 4], 0);
        assert!((stats.loss - want).abs() < 1e-5 * (1.0 + want), "{kind:?}: {} want {want}", stats.loss);
        assert!(gradient.iter().all(|x| x.is_finite()), "{kind:?}: {gradient:?}");
    }
}

/// A broken row is named with its model, wherever the tiles are cut.
#[test]
fn broken_rows_are_named() {
    let case = Case { rows: 4, hidden: 3, vocab: 2100, other: 2200, valid: 2050, inv_temp: 1.0, distance: 0.1 };
    for (i, whose) in ["student", "teacher", "rollout"].into_iter().enumerate() {
        let mut models = models(&case);
        models.hidden[i][2 * 3] = f32::NAN;
        for tile in [whole(&case), Tile { rows: 3, columns: COLUMNS }, Tile { rows: 1, columns: COLUMNS }] {
            for kind in KINDS {
                let error = call(&Cpu::new(1), kind, tile, &case, &models).unwrap_err();
                let HeadError::Logits(LogitError::NotFinite { whose: found, row, column, .. }) = error else {
                    panic!("{error}");
                };
                assert_eq!((found, row, column), (whose, 2, 0), "{kind:?} {tile:?}");
            }
        }
    }
    let mut models = models(&case);
    models.targets[3] = 2050;
    let error = call(&Cpu::new(1), Kind::Reverse, whole(&case), &case, &models).unwrap_err();
    assert!(matches!(error, HeadError::Logits(LogitError::Target { row: 3, target: 2050, .. })), "{error}");
    let none = [OUT; 4];
    let error = one_row(Kind::Reverse, [&none, &none, &none], 4, 1.0, 0, 1.0).unwrap_err();
    assert!(matches!(error, HeadError::Logits(LogitError::NoMass { whose: "student", row: 0, valid: 4 })), "{error}");
}

#[test]
fn tiles_follow_the_bytes() {
    let tile = |bytes, vocab, rows_min| {
        let Tile { rows, columns } = Tile::within(bytes, vocab, rows_min);
        (rows, columns)
    };
    assert_eq!(tile(32 << 20, 32_000, 64), (262, 32_000), "whole rows, as many as fit");
    assert_eq!(tile(32 << 20, 151_936, 32), (55, 151_936));
    assert_eq!(tile(4 << 20, 151_936, 64), (64, 16 * COLUMNS), "too wide: the columns that fit");
    assert_eq!(tile(1, 151_936, 64), (64, COLUMNS), "no less than a tile of sums");
    assert_eq!(tile(1, 100, 64), (64, 100));
}

#[test]
#[should_panic(expected = "cuts sums")]
fn a_tile_does_not_cut_sums() {
    let case = &CASES[6];
    let _ = call(&Cpu::new(1), Kind::Reverse, Tile { rows: 1, columns: 1000 }, case, &models(case));
}

#[test]
#[should_panic(expected = "needs a teacher")]
fn a_divergence_needs_a_teacher() {
    let models = models(&CASES[1]);
    let student = Head { weights: &models.heads[0], hidden: &models.hidden[0] };
    let (targets, weights) = (&models.targets[..], &models.weights[..]);
    let input = Input { student, teacher: None, rollout: None, targets, weights, valid: 5, inv_temp: 1.0 };
    let _ = call_with(&Cpu::new(1), Kind::Jsd { beta: 0.5 }, Tile { rows: 1, columns: 5 }, input);
}
