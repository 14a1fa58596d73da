//! On a CUDA device: for equal logits and uniforms the CPU's tokens, logprobs and supports, bit for bit.

use super::cases::cuts;
use super::cuda::{Counter, Draw, Drawn, Uniforms, draw_rows};
use super::{Params, draw};
use crate::Isa;
use crate::conformance::Outcome;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};
use crate::ops::log_softmax::OnDevice;
use crate::ops::log_softmax::cases::{CASES, Case as Shape, QWEN3, logits};
use crate::rng::sample_uniform;

const PLAIN: Params = Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

/// Uniforms from the first that there is to the last.
const UNIFORMS: [f32; 7] = [0.0, 1e-7, 0.1, 0.37, 0.5, 0.93, 1.0 - f32::EPSILON / 2.0];

/// Every setting: temperatures alone, greedy, and the cuts.
fn settings() -> Vec<Params> {
    let alone = [1.0, 0.0, 0.6, 1.7, 1e-6].map(|temperature| Params { temperature, ..PLAIN });
    // Greedy ignores the cuts.
    let ignored = Params { temperature: 0.0, top_k: 3, top_p: 0.5, min_p: 0.2 };
    alone.into_iter().chain([ignored]).chain(cuts()).collect()
}

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for (turn, shape) in CASES.iter().enumerate() {
        for ties in [false, true] {
            // A row for a setting, and every setting on a third of the shapes; fewer where rows are long.
            let step = if shape.valid > 4096 { 9 } else { 3 };
            let rows: Vec<Params> =
                settings().into_iter().skip((turn + usize::from(ties)) % step).step_by(step).collect();
            let shape = Shape { rows: rows.len(), ..*shape };
            let mut x = logits(&shape, 6 + u64::from(ties), ties);
            if ties {
                x.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
            }
            check(gpu, &shape, &x, &rows, &format!("ties {ties}"), each)?;
        }
    }
    // All logits equal: sums are whole numbers, so that targets and shares are met exactly, and cuts fall between equals.
    let rows: Vec<Params> = settings().into_iter().filter(|p| p.temperature <= 1.0).step_by(2).collect();
    // Half of 2048 columns is where the first tile ends.
    let flat = Shape { rows: rows.len(), vocab: 2048, valid: 2048, inv_temp: 1.0, spread: 0.0 };
    check(gpu, &flat, &vec![-1.25; flat.rows * flat.vocab], &rows, "flat", each)?;
    // Now and then a tile's sum is rounded up so far that the last uniform lies beyond the columns' running sum; what is
    // drawn then is the last column with any mass, not one of those behind it.
    let last = Shape { rows: 64, vocab: 300, valid: 300, inv_temp: 1.0, spread: 1.0 };
    let mut x = logits(&last, 10, false);
    x.chunks_exact_mut(300).for_each(|row| row[290..].fill(f32::NEG_INFINITY));
    let uniforms = [UNIFORMS[UNIFORMS.len() - 1]; 64];
    check_at(gpu, &last, &x, &[PLAIN; 64], &uniforms, "the last uniform", each)?;
    // Rows enough for every rounding to matter in one of them, within a tile and across two.
    let ways = [PLAIN, Params { top_p: 0.9, ..PLAIN }, PLAIN, Params { top_k: 5, ..PLAIN }];
    let rows: Vec<Params> = ways
        .into_iter()
        .cycle()
        .take(64)
        .enumerate()
        .map(|(i, of)| Params { temperature: [1.0, 0.7, 1.3][i % 3], ..of })
        .collect();
    for valid in [7, 1030] {
        let many = Shape { rows: 64, vocab: valid, valid, inv_temp: 1.0, spread: 6.0 };
        check(gpu, &many, &logits(&many, 11, false), &rows, "many rows", each)?;
    }
    // Columns so close to what min-p keeps that only the mass itself can tell on which side they are.
    let close = Shape { rows: 6, vocab: 90, valid: 90, inv_temp: 1.0, spread: 1.0 };
    let settings: Vec<Params> =
        [0.3, 0.01, 1e-4].into_iter().flat_map(|min_p| [0, 60].map(|top_k| Params { min_p, top_k, ..PLAIN })).collect();
    let mut x = vec![0.0; 6 * 90];
    #[allow(clippy::cast_precision_loss)] // few columns
    for (row, params) in x.chunks_exact_mut(90).zip(&settings) {
        row[1..].iter_mut().enumerate().for_each(|(i, x)| *x = params.min_p.ln() + (i as f32 - 40.0) * 2e-5);
    }
    check(gpu, &close, &x, &settings, "close to min-p", each)?;
    let rows = [PLAIN, Params { top_p: 0.9, ..PLAIN }, Params { top_k: 50, ..PLAIN }, Params { min_p: 1e-3, ..PLAIN }];
    let wide = Shape { rows: rows.len(), ..QWEN3 };
    check(gpu, &wide, &logits(&wide, 8, false), &rows, "", each)?;
    counters(gpu, each)?;
    broken(gpu, each)
}

/// Draws row i by setting i and compares everything with the CPU.
fn check(
    gpu: &Gpu,
    shape: &Shape,
    x: &[f32],
    settings: &[Params],
    what: &str,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), CudaError> {
    let uniforms: Vec<f32> = (0..shape.rows).map(|row| UNIFORMS[(row * 5 + shape.valid) % UNIFORMS.len()]).collect();
    check_at(gpu, shape, x, settings, &uniforms, what, each)
}

fn check_at(
    gpu: &Gpu,
    shape: &Shape,
    x: &[f32],
    settings: &[Params],
    uniforms: &[f32],
    what: &str,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), CudaError> {
    let &Shape { rows, vocab, valid, spread, .. } = shape;
    let mut case = Case::new("sample", format!("{rows} draws of {valid} of {vocab}, spread {spread}, {what}"), each);
    let on_uniforms = Guarded::of(gpu, uniforms)?;
    let (drawn, on) = run(gpu, shape, x, settings, Uniforms::Given(on_uniforms.view()), &mut case)?;
    for (row, (drawn, params)) in drawn.iter().zip(settings).enumerate() {
        let want = draw(Isa::detect(), params, &x[row * vocab..][..valid], uniforms[row]);
        let got = drawn.result(gpu, &on.block(), row, params)?;
        let name = format!("row {row}, {params:?}, uniform {}", uniforms[row]);
        compare(&mut case, &name, &got, &want);
    }
    case.end();
    Ok(())
}

/// Bits of logprobs included: `==` takes the zeros for equal.
fn compare(
    case: &mut Case,
    name: &str,
    got: &Result<super::Sampled, super::SampleError>,
    want: &Result<super::Sampled, super::SampleError>,
) {
    case.equal(name, &[format!("{got:?}")], &[format!("{want:?}")]);
    if let (Ok(got), Ok(want)) = (got, want) {
        let bits = |s: &super::Sampled| [s.logprob, s.logprob_raw, s.normalizers.at_temperature, s.normalizers.raw];
        case.same_bits(name, &bits(got), &bits(want));
    }
}

fn run(
    gpu: &Gpu,
    shape: &Shape,
    x: &[f32],
    settings: &[Params],
    uniforms: Uniforms,
    case: &mut Case,
) -> Result<(Vec<Drawn>, OnDevice), CudaError> {
    let rows = shape.rows;
    let inv_temps: Vec<f32> = settings.iter().map(Params::inv_temp).collect();
    let draws: Vec<Draw> = settings.iter().map(|params| Draw::of(params).expect("within range")).collect();
    let on = OnDevice::new(gpu, shape, x, &inv_temps)?;
    let (on_draws, drawn, tokens) = (Guarded::of(gpu, &draws)?, Guarded::new(gpu, rows)?, Guarded::new(gpu, rows)?);
    let truncated = settings.iter().any(|params| params.temperature != 0.0 && params.truncates(shape.valid));
    let (block, workspace) = (on.block(), on.workspace.view());
    draw_rows(gpu, &block, on_draws.view(), uniforms, truncated, workspace, drawn.view(), tokens.view())?;
    let (drawn, guards) = drawn.take(gpu)?;
    case.fail("results", guards);
    let (tokens, guards) = tokens.take(gpu)?;
    case.fail("tokens", guards);
    case.equal("tokens", &tokens, &drawn.iter().map(|drawn| drawn.token).collect::<Vec<u32>>());
    on.guards(gpu, case)?;
    Ok((drawn, on))
}

/// Uniforms made on the device are those of the CPU: flat logits show their upper bits in the token.
fn counters(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let shape = Shape { rows: 24, vocab: 1024, valid: 1024, inv_temp: 1.0, spread: 0.0 };
    let mut case = Case::new("sample", "uniforms of counters".to_string(), each);
    let counters: Vec<Counter> = (0..24)
        .map(|i: u32| Counter {
            seed: u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            sample: (u64::from(i) << 60) + u64::from(i) * 3,
            position: i.wrapping_mul(0x0100_0193),
            unused: 0,
        })
        .collect();
    let on_counters = Guarded::of(gpu, &counters)?;
    let (x, settings) = (vec![0.5; shape.rows * shape.vocab], vec![PLAIN; shape.rows]);
    let (drawn, _) = run(gpu, &shape, &x, &settings, Uniforms::Counters(on_counters.view()), &mut case)?;
    for (drawn, Counter { seed, sample, position, .. }) in drawn.iter().zip(counters) {
        let uniform = sample_uniform(seed, sample, position);
        let want = draw(Isa::detect(), &PLAIN, &x[..1024], uniform).expect("a distribution");
        case.equal("tokens of counters", &[drawn.token], &[want.token]);
    }
    case.end();
    Ok(())
}

/// Rows that are no distribution: the CPU's errors, whichever way they are drawn from.
fn broken(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let ways =
        [PLAIN, Params { temperature: 0.0, ..PLAIN }, Params { top_p: 0.9, ..PLAIN }, Params { top_k: 3, ..PLAIN }];
    let settings: Vec<Params> = ways.into_iter().flat_map(|params| [params; 4]).collect();
    let shape = Shape { rows: settings.len(), vocab: 1100, valid: 1090, inv_temp: 1.0, spread: 2.0 };
    let mut x = logits(&shape, 9, false);
    for (row, x) in x.chunks_exact_mut(shape.vocab).enumerate() {
        match row % 4 {
            0 => x[1089] = f32::NAN,
            1 => x[3] = f32::INFINITY,
            2 => x[..1090].fill(f32::NEG_INFINITY),
            _ => {}
        }
    }
    check(gpu, &shape, &x, &settings, "broken rows", each)
}
