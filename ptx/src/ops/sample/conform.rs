//! On a CUDA device: for equal logits and uniforms the CPU's tokens, logprobs and supports, bit for bit.

use super::cases::cuts;
use super::cuda::{Draw, Drawn, draw_rows};
use super::{Params, draw, processed};
use crate::Isa;
use crate::conformance::Outcome;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu, View, count};
use crate::ops::log_softmax::cases::{CASES, Case as Shape, QWEN3, logits};
use crate::ops::log_softmax::cuda::{Lses, top_k};
use crate::ops::log_softmax::{Normalizers, OnDevice, top_k_of_row};

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
    let inv_temps: Vec<f32> = settings.iter().map(Params::inv_temp).collect();
    let on = OnDevice::new(gpu, shape, x, &inv_temps)?;
    let drawn = run(gpu, &on, settings, uniforms, &mut case)?;
    let results = drawn.view();
    let (drawn, guards) = drawn.take(gpu)?;
    case.fail("results", guards);
    for (row, (drawn, params)) in drawn.iter().zip(settings).enumerate() {
        let want = draw(Isa::detect(), params, &x[row * vocab..][..valid], uniforms[row]);
        let got = drawn.result(gpu, &on.block(), row, params)?;
        let name = format!("row {row}, {params:?}, uniform {}", uniforms[row]);
        compare(&mut case, &name, &got, &want);
    }
    likeliest(gpu, &on, shape, x, settings, &drawn, results, &mut case)?;
    case.end();
    Ok(())
}

/// Of each row as many of the likeliest as the turn has, under the distribution that was drawn from.
#[allow(clippy::too_many_arguments)]
fn likeliest(
    gpu: &Gpu,
    on: &OnDevice,
    shape: &Shape,
    x: &[f32],
    settings: &[Params],
    drawn: &[Drawn],
    results: View<Drawn>,
    case: &mut Case,
) -> Result<(), CudaError> {
    let &Shape { rows, vocab, valid, .. } = shape;
    let mut ends = vec![0];
    (0..rows).for_each(|row| ends.push(ends[row] + [5, 50, 0, 1][row % 4].min(valid)));
    let n = ends[rows];
    let offsets = Guarded::of(gpu, &ends.iter().copied().map(count).collect::<Vec<u32>>())?;
    let (ids, logprobs, raw) = (Guarded::new(gpu, n)?, Guarded::new(gpu, n)?, Guarded::new(gpu, n)?);
    let (block, from, workspace) = (on.block(), Lses::Drawn(results), on.workspace.view());
    top_k(gpu, &block, offsets.view(), from, workspace, ids.view(), logprobs.view(), raw.view())?;
    // A row that is no distribution has ids 0 and NaN, whose bits are of no meaning.
    let (mut want_ids, mut want, mut want_raw) = (vec![0; n], vec![f32::NAN; n], vec![f32::NAN; n]);
    for (row, params) in settings.iter().enumerate() {
        let (of, part) = (&x[row * vocab..][..valid], ends[row]..ends[row + 1]);
        if part.is_empty() || drawn[row].status != 0 {
            continue;
        }
        let Drawn { lse, lse_raw, .. } = drawn[row];
        let lses = Normalizers { at_temperature: lse, raw: lse_raw };
        let (isa, inv_temp) = (Isa::detect(), params.inv_temp());
        let (ids, out) = (&mut want_ids[part.clone()], &mut want[part.clone()]);
        top_k_of_row(isa, of, inv_temp, lses, ids, out, &mut want_raw[part]);
        processed(isa, params, of, ids, out).expect("a distribution");
    }
    let (got, guards) = ids.take(gpu)?;
    case.fail("the likeliest", guards);
    case.equal("the likeliest", &got, &want_ids);
    let plain = |list: &[f32]| list.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }).collect::<Vec<_>>();
    for (what, on, want) in [("their logprobs", logprobs, want), ("their raw logprobs", raw, want_raw)] {
        let (got, guards) = on.take(gpu)?;
        case.fail(what, guards);
        case.same_bits(what, &plain(&got), &plain(&want));
    }
    on.guards(gpu, case)
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

/// The draws' results, on the device.
fn run(
    gpu: &Gpu,
    on: &OnDevice,
    settings: &[Params],
    uniforms: &[f32],
    case: &mut Case,
) -> Result<Guarded<Drawn>, CudaError> {
    let (block, workspace) = (on.block(), on.workspace.view());
    let (rows, valid) = (block.rows, block.valid);
    let draws: Vec<Draw> = settings.iter().map(|params| Draw::of(params).expect("within range")).collect();
    let (on_draws, on_uniforms) = (Guarded::of(gpu, &draws)?, Guarded::of(gpu, uniforms)?);
    let (drawn, tokens) = (Guarded::new(gpu, rows)?, Guarded::new(gpu, rows)?);
    let truncated = settings.iter().any(|params| params.temperature != 0.0 && params.truncates(valid));
    draw_rows(gpu, &block, on_draws.view(), on_uniforms.view(), truncated, workspace, drawn.view(), tokens.view())?;
    let (drew, _) = drawn.take(gpu)?;
    let (tokens, guards) = tokens.take(gpu)?;
    case.fail("tokens", guards);
    case.equal("tokens", &tokens, &drew.iter().map(|drawn| drawn.token).collect::<Vec<u32>>());
    on.guards(gpu, case)?;
    Ok(drawn)
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
