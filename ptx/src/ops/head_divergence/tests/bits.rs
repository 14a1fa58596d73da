//! What the bits depend on: the row, and nothing else.

use super::*;
use crate::ops::divergence::{self, Kind as Plain};
use crate::ops::{linear, log_softmax};

/// Tiles of every kind: whole rows, and columns by one, two and three of 1024.
fn tiles(case: &Case) -> Vec<Tile> {
    let mut tiles = vec![Tile { rows: 1, columns: case.vocab }, Tile { rows: 3, columns: case.vocab + 5 }];
    for columns in [1, 2, 3] {
        for rows in [1, 2, 100] {
            tiles.push(Tile { rows, columns: columns * COLUMNS });
        }
    }
    tiles
}

#[test]
fn tiles_threads_and_instruction_sets_do_not_show() {
    for case in CASES {
        let models = models(case);
        for kind in KINDS {
            let want = call(&Cpu::with_isa(1, Isa::Portable), kind, whole(case), case, &models).unwrap().bits();
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let cpu = Cpu::with_isa(threads, isa);
                    for tile in tiles(case) {
                        let got = call(&cpu, kind, tile, case, &models).unwrap().bits();
                        assert!(got == want, "{cpu} {case:?} {kind:?} {tile:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_is_its_own() {
    let cpu = Cpu::new(1);
    for case in CASES {
        let models = models(case);
        for kind in [Kind::Reverse, Kind::Jsd { beta: 0.5 }] {
            let want = call(&cpu, kind, whole(case), case, &models).unwrap();
            for row in 0..case.rows {
                let at = row * case.hidden..(row + 1) * case.hidden;
                let side = |i: usize| Head { weights: &models.heads[i], hidden: &models.hidden[i][at.clone()] };
                let input = Input {
                    student: side(0),
                    teacher: Some(Side::Head(side(1))),
                    rollout: Some(Side::Head(side(2))),
                    targets: &models.targets[row..=row],
                    weights: &models.weights[row..=row],
                    valid: case.valid,
                    inv_temp: case.inv_temp,
                };
                let got = call_with(&cpu, kind, Tile { rows: 1, columns: COLUMNS.max(case.vocab) }, input).unwrap();
                let of_row =
                    Out { stats: vec![want.stats[row]], dhidden: want.dhidden[at.clone()].to_vec(), dhead: vec![] };
                let got = Out { dhead: vec![], ..got };
                assert!(got.bits() == of_row.bits(), "{case:?} {kind:?} row {row}");
            }
        }
    }
}

/// Logits of `[rows, vocab]`, with those of other models laid out as the student's.
fn logits(cpu: &Cpu, case: &Case, models: &Models, i: usize) -> Vec<f32> {
    let w = &models.heads[i];
    let mut y = vec![0.0; case.rows * w.n()];
    linear::forward(cpu, case.rows, &models.hidden[i], &mut [linear::Job { w, bias: None, y: &mut y }]);
    let row = |y: &[f32]| -> Vec<f32> {
        let mut row = y[..case.valid].to_vec();
        row.resize(case.vocab, f32::NAN);
        row
    };
    y.chunks(w.n()).flat_map(row).collect()
}

/// The ops on whole blocks of logits, one after the other, give the same bits: losses, mismatch, gradients and all.
#[test]
fn bits_are_those_of_the_ops_on_whole_logits() {
    let cpu = Cpu::new(2);
    for case in CASES {
        let models = models(case);
        let &Case { rows, hidden, vocab, valid, inv_temp, .. } = case;
        let [student, teacher, rollout] = [0, 1, 2].map(|i| logits(&cpu, case, &models, i));
        let mut mismatch = vec![0.0; rows];
        divergence::kl(&cpu, rows, vocab, valid, inv_temp, &rollout, &student, &mut mismatch).unwrap();
        let gather = |logits: &[f32], inv_temp: f32| {
            let mut out = vec![0.0; rows];
            log_softmax::gather(&cpu, rows, vocab, valid, inv_temp, logits, &models.targets, &mut out).unwrap();
            out
        };
        let backward = |dlogits: &[f32]| {
            let (mut dhidden, mut dhead) = (vec![0.0; rows * hidden], vec![1.0; vocab * hidden]);
            linear::backward_input(&cpu, rows, dlogits, &models.heads[0], &mut dhidden, false);
            linear::backward_weight(&cpu, rows, vocab, hidden, &models.hidden[0], dlogits, &mut dhead);
            (dhidden, dhead)
        };
        for (kind, plain) in [(Kind::Reverse, Plain::ReverseKl), (Kind::Forward, Plain::ForwardKl)] {
            let mut dlogits = student.clone();
            let mut stats = vec![divergence::RowStats::default(); rows];
            let (weights, stats_out) = (&models.weights, &mut stats);
            divergence::dense(&cpu, plain, rows, vocab, valid, inv_temp, &mut dlogits, &teacher, weights, stats_out)
                .unwrap();
            let (dhidden, dhead) = backward(&dlogits);
            let (own, theirs) = (gather(&student, inv_temp), gather(&rollout, inv_temp));
            let stats = (0..rows).map(|i| {
                let s = stats[i];
                RowStats {
                    loss: if plain == Plain::ReverseKl { s.kl_reverse } else { s.kl_forward },
                    kl_reverse: s.kl_reverse,
                    kl_forward: s.kl_forward,
                    entropy_student: s.entropy_student,
                    entropy_teacher: s.entropy_teacher,
                    logprob: own[i],
                    logprob_rollout: theirs[i],
                    mismatch: mismatch[i],
                    chi_square: 0.0,
                }
            });
            let want = Out { stats: stats.collect(), dhidden, dhead };
            for tile in tiles(case).into_iter().chain([whole(case)]) {
                let mut got = call(&cpu, kind, tile, case, &models).unwrap();
                got.stats.iter_mut().for_each(|s| s.chi_square = 0.0); // the other ops do not give it
                assert!(got.bits() == want.bits(), "{case:?} {kind:?} {tile:?}");
            }
        }
        // Cross-entropy, which the other op has at temperature 1.
        let case = &Case { inv_temp: 1.0, ..*case };
        let (mut dlogits, mut nll) = (student.clone(), vec![0.0; rows]);
        let (targets, weights) = (&models.targets, &models.weights);
        divergence::cross_entropy(&cpu, rows, vocab, valid, &mut dlogits, targets, weights, &mut nll).unwrap();
        let (dhidden, dhead) = backward(&dlogits);
        let got = call(&cpu, Kind::CrossEntropy, Tile { rows: 2, columns: COLUMNS }, case, &models).unwrap();
        assert_eq!(got.stats.iter().map(|s| s.loss).collect::<Vec<_>>(), nll, "{case:?}");
        let gradients = |dhidden, dhead| Out { stats: vec![], dhidden, dhead }.bits();
        assert!(gradients(got.dhidden, got.dhead) == gradients(dhidden, dhead), "{case:?}: cross-entropy");
    }
}

/// Logits from elsewhere, a tile at a time, count as those made here.
#[test]
fn where_logits_come_from_does_not_show() {
    let cpu = Cpu::new(1);
    for case in CASES {
        let models = models(case);
        let [_, teacher, rollout] = [0, 1, 2].map(|i| logits(&cpu, case, &models, i));
        let copy = |from: &[f32], rows: Range<usize>, columns: Range<usize>, out: &mut [f32]| {
            for (row, out) in rows.zip(out.chunks_mut(columns.len())) {
                out.copy_from_slice(&from[row * case.vocab..][columns.clone()]);
            }
            Ok(())
        };
        for tile in tiles(case) {
            let mut of_teacher =
                |rows: Range<usize>, columns: Range<usize>, out: &mut [f32]| copy(&teacher, rows, columns, out);
            let mut of_rollout =
                |rows: Range<usize>, columns: Range<usize>, out: &mut [f32]| copy(&rollout, rows, columns, out);
            let input = Input {
                student: Head { weights: &models.heads[0], hidden: &models.hidden[0] },
                teacher: Some(Side::Fill(&mut of_teacher)),
                rollout: Some(Side::Fill(&mut of_rollout)),
                targets: &models.targets,
                weights: &models.weights,
                valid: case.valid,
                inv_temp: case.inv_temp,
            };
            let got = call_with(&cpu, Kind::Reverse, tile, input).unwrap().bits();
            assert!(got == call(&cpu, Kind::Reverse, tile, case, &models).unwrap().bits(), "{case:?} {tile:?}");
        }
    }
}

/// Without gradients, and without the other models, the rest is as it was.
#[test]
fn what_else_is_asked_for_does_not_show() {
    let cpu = Cpu::new(1);
    for case in CASES {
        let models = models(case);
        let head = |i: usize| Head { weights: &models.heads[i], hidden: &models.hidden[i] };
        for tile in tiles(case) {
            for kind in KINDS {
                let want = call(&cpu, kind, tile, case, &models).unwrap();
                let input = |teacher: bool, rollout: bool| Input {
                    student: head(0),
                    teacher: teacher.then(|| Side::Head(head(1))),
                    rollout: rollout.then(|| Side::Head(head(2))),
                    targets: &models.targets,
                    weights: &models.weights,
                    valid: case.valid,
                    inv_temp: case.inv_temp,
                };
                let mut stats = vec![RowStats::default(); case.rows];
                run(&cpu, kind, tile, input(true, true), None, &mut stats, &mut Workspace::default()).unwrap();
                assert_eq!(stats, want.stats, "{case:?} {kind:?} {tile:?} without gradients");
                let alone = call_with(&cpu, kind, tile, input(kind.needs_teacher(), false)).unwrap();
                let same = alone.dhidden == want.dhidden && alone.dhead == want.dhead;
                assert!(same, "{case:?} {kind:?} {tile:?} without the rollout");
                for (alone, want) in alone.stats.iter().zip(&want.stats) {
                    assert_eq!((alone.loss, alone.logprob), (want.loss, want.logprob), "{case:?} {kind:?} {tile:?}");
                    assert_eq!((alone.mismatch, alone.chi_square, alone.logprob_rollout), (0.0, 0.0, 0.0));
                }
            }
        }
    }
}
