//! Seeded heads and rows, and calls of the op over them.

mod bits;
mod options;
mod truth;

use super::cases::{CASES, Case};
use super::*;
use crate::ops::linear::WeightScale;
use crate::rng::{Purpose, Stream};
use crate::{DType, Isa};

const KINDS: [Kind; 9] = [
    Kind::Reverse,
    Kind::Forward,
    Kind::Jsd { beta: 0.5 },
    Kind::Jsd { beta: 0.02 },
    Kind::SkewedReverse { alpha: 0.1 },
    Kind::SkewedReverse { alpha: 0.99 },
    Kind::SkewedForward { alpha: 0.1 },
    Kind::SkewedForward { alpha: 0.9 },
    Kind::CrossEntropy,
];

fn normals(seed: u64, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed, Purpose::Test, 77);
    (0..len).map(|_| stream.normal()).collect()
}

fn packed(dtype: DType, n: usize, k: usize, values: &[f32]) -> Packed {
    let mut w = Packed::new(dtype, WeightScale::Channel, n, k);
    w.set_rows(&Cpu::with_isa(1, Isa::Portable), 0, values);
    w
}

/// Heads and hidden rows of a case: student, teacher, rollout.
struct Models {
    heads: [Packed; 3],
    hidden: [Vec<f32>; 3],
    targets: Vec<u32>,
    weights: Vec<f32>,
}

/// The other heads share the student's ids up to their distance; the rollout's is in bf16.
fn models(case: &Case) -> Models {
    let &Case { rows, hidden, vocab, other, valid, distance, .. } = case;
    let own = normals(1, vocab.max(other) * hidden);
    let near = |x: &[f32], seed: u64| -> Vec<f32> {
        x.iter().zip(normals(seed, x.len())).map(|(x, noise)| x + distance * noise).collect()
    };
    let rows_of = normals(2, rows * hidden);
    let heads = [
        packed(DType::F32, vocab, hidden, &own[..vocab * hidden]),
        packed(DType::F32, other, hidden, &near(&own[..other * hidden], 3)),
        packed(DType::Bf16, other, hidden, &own[..other * hidden]),
    ];
    let targets = (0..rows).map(|row| u32::try_from(row * 977 % valid).unwrap()).collect();
    let weights = [0.75, 0.0, -0.5, 2.0, 1.0, 0.1, 3.0][..rows].to_vec();
    let (teacher, rollout) = (near(&rows_of, 4), near(&rows_of, 5));
    Models { heads, hidden: [rows_of, teacher, rollout], targets, weights }
}

/// Everything that a call gives.
#[derive(Debug)]
struct Out {
    stats: Vec<RowStats>,
    dhidden: Vec<f32>,
    dhead: Vec<f32>,
}

impl Out {
    /// The bits of everything.
    fn bits(&self) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
        let floats = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect();
        let of = |s: &RowStats| {
            let logprobs = [f64::from(s.logprob), f64::from(s.logprob_rollout)];
            let sums =
                [s.loss, s.kl_reverse, s.kl_forward, s.entropy_student, s.entropy_teacher, s.mismatch, s.chi_square];
            sums.into_iter().chain(logprobs).map(f64::to_bits).collect::<Vec<_>>()
        };
        (self.stats.iter().flat_map(of).collect(), floats(&self.dhidden), floats(&self.dhead))
    }
}

fn whole(case: &Case) -> Tile {
    Tile { rows: case.rows, columns: case.vocab }
}

/// A call with gradients, the head's added to ones.
fn call(cpu: &Cpu, kind: Kind, tile: Tile, case: &Case, models: &Models) -> Result<Out, HeadError> {
    let head = |i: usize| Head { weights: &models.heads[i], hidden: &models.hidden[i] };
    let input = Input {
        student: head(0),
        teacher: Some(Side::Head(head(1))),
        rollout: Some(Side::Head(head(2))),
        targets: &models.targets,
        weights: &models.weights,
        valid: case.valid,
        inv_temp: case.inv_temp,
    };
    call_with(cpu, kind, tile, input)
}

fn call_with(cpu: &Cpu, kind: Kind, tile: Tile, input: Input<'_>) -> Result<Out, HeadError> {
    let (rows, vocab, hidden) = (input.targets.len(), input.student.weights.n(), input.student.weights.k());
    let mut out = Out {
        stats: vec![RowStats::default(); rows],
        dhidden: vec![f32::NAN; rows * hidden],
        dhead: vec![1.0; vocab * hidden],
    };
    let gradients = Some(Gradients { hidden: &mut out.dhidden, head: &mut out.dhead });
    run(cpu, kind, tile, input, gradients, &mut out.stats, &mut Workspace::default())?;
    Ok(out)
}

/// One row of these logits, `[vocab]` each: heads of one input that is 1, so that the head's gradient is that of the logits.
fn one_row(
    kind: Kind,
    [p, q, mu]: [&[f32]; 3],
    valid: usize,
    inv_temp: f32,
    target: u32,
    weight: f32,
) -> Result<(RowStats, Vec<f32>), HeadError> {
    let heads = [p, q, mu].map(|logits| packed(DType::F32, logits.len(), 1, logits));
    let side = |i: usize| Head { weights: &heads[i], hidden: &[1.0] };
    let input = Input {
        student: side(0),
        teacher: Some(Side::Head(side(1))),
        rollout: Some(Side::Head(side(2))),
        targets: &[target],
        weights: &[weight],
        valid,
        inv_temp,
    };
    let (mut stats, mut dhead) = ([RowStats::default()], vec![0.0; p.len()]);
    let gradients = Some(Gradients { hidden: &mut [0.0], head: &mut dhead });
    let tile = Tile { rows: 1, columns: p.len() };
    run(&Cpu::new(1), kind, tile, input, gradients, &mut stats, &mut Workspace::default())?;
    Ok((stats[0], dhead))
}
