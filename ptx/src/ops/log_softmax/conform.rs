//! On a CUDA device: for equal logits the CPU's bits, lists and errors.

use super::cases::{CASES, Case as Shape, QWEN3, logits};
use super::cuda::{self, Block, Lses};
use super::{LogitError, Normalizers, gather_many, top_k_of_row};
use crate::conformance::Outcome;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu, count};
use crate::rng::{Purpose, Stream};
use crate::{Cpu, Isa};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let one = Shape { rows: 1, ..QWEN3 };
    for shape in CASES.iter().chain([&one]) {
        sums(gpu, shape, each)?;
        tops(gpu, shape, each)?;
    }
    // The last column at every place of a thread's rounds; then rows enough for every rounding to matter in one of them,
    // within a tile and across two.
    for last in 0..8 {
        let valid = 1024 + 16 * last + 1 + last;
        sums(gpu, &Shape { rows: 1, vocab: valid + 2, valid, inv_temp: 1.3, spread: 4.0 }, each)?;
    }
    for valid in [7, 1030] {
        sums(gpu, &Shape { rows: 64, vocab: valid, valid, inv_temp: 0.9, spread: 6.0 }, each)?;
    }
    unknown(gpu, each)?;
    broken(gpu, each)
}

/// A block on the device and what it needs beside it, exactly as long as asked for.
pub(crate) struct OnDevice {
    logits: Guarded<f32>,
    inv_temps: Guarded<f32>,
    partials: Guarded<f32>,
    pub(crate) workspace: Guarded<u64>,
    shape: Shape,
}

impl OnDevice {
    pub(crate) fn new(gpu: &Gpu, shape: &Shape, x: &[f32], inv_temps: &[f32]) -> Result<OnDevice, CudaError> {
        Ok(OnDevice {
            logits: Guarded::of(gpu, x)?,
            inv_temps: Guarded::of(gpu, inv_temps)?,
            partials: Guarded::new(gpu, cuda::partials_len(shape.rows, shape.valid))?,
            workspace: Guarded::new(gpu, cuda::workspace_len(shape.rows, shape.valid))?,
            shape: *shape,
        })
    }

    pub(crate) fn block(&self) -> Block {
        let Shape { rows, vocab, valid, .. } = self.shape;
        let (logits, inv_temps, partials) = (self.logits.view(), self.inv_temps.view(), self.partials.view());
        Block { rows, vocab, valid, logits, inv_temps, partials }
    }

    /// What is wrong with the guards of the kernels' own memory.
    pub(crate) fn guards(&self, gpu: &Gpu, case: &mut Case) -> Result<(), CudaError> {
        case.fail("partials", self.partials.take(gpu)?.1);
        case.fail("workspace", self.workspace.take(gpu)?.1);
        Ok(())
    }
}

/// Rows at their own temperatures.
fn temperatures(shape: &Shape) -> Vec<f32> {
    [shape.inv_temp, 1.0, 0.5].into_iter().cycle().take(shape.rows).collect()
}

fn valid_row<'a>(shape: &Shape, x: &'a [f32], row: usize) -> &'a [f32] {
    &x[row * shape.vocab..][..shape.valid]
}

/// Normalizers, and the logprobs of one id and of lists of them.
fn sums(gpu: &Gpu, shape: &Shape, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let &Shape { rows, vocab, valid, .. } = shape;
    // One row of a real vocabulary is enough.
    for masked in [false, true].into_iter().filter(|masked| !masked || valid < 100_000) {
        let mut case = Case::new("log_softmax", format!("[{rows}, {valid} of {vocab}], masked {masked}"), each);
        let (mut x, inv_temps) = (logits(shape, 1, masked), temperatures(shape));
        let on = OnDevice::new(gpu, shape, &x, &inv_temps)?;
        let out = Guarded::new(gpu, 2 * rows)?;
        cuda::normalizers(gpu, &on.block(), out.view())?;
        let want = (0..rows).flat_map(|row| {
            let of = Normalizers::of(Isa::detect(), valid_row(shape, &x, row), inv_temps[row]).expect("a distribution");
            [of.at_temperature, of.raw]
        });
        let (got, guards) = out.take(gpu)?;
        case.fail("normalizers", guards);
        case.same_bits("normalizers", &got, &want.collect::<Vec<f32>>());

        let targets: Vec<u32> = (0..rows).map(|row| count((row * 7919 + valid - 1) % valid)).collect();
        let each_one: Vec<usize> = (0..=rows).collect();
        let mut want = vec![0.0; rows];
        let cpu = Cpu::new(1);
        gather_many(&cpu, vocab, valid, &inv_temps, &x, &each_one, &targets, &mut want).expect("distributions");
        let (ids, picked, status) = (Guarded::of(gpu, &targets)?, Guarded::new(gpu, rows)?, Guarded::new(gpu, rows)?);
        cuda::gather(gpu, &on.block(), ids.view(), picked.view(), status.view())?;
        let (got, guards) = picked.take(gpu)?;
        case.fail("gather", guards);
        case.same_bits("gather", &got, &want);
        let (got, guards) = status.take(gpu)?;
        case.fail("status", guards);
        case.equal("status", &got, &vec![0; rows]);
        on.guards(gpu, &mut case)?;

        let mut stream = Stream::new(3, Purpose::Test, valid as u64);
        let (mut offsets, mut ids) = (vec![0], vec![]);
        for row in 0..rows {
            ids.extend((0..[3, 0, 1, 300][row % 4]).map(|_| stream.below(count(valid))));
            offsets.push(ids.len());
            if offsets[row] == offsets[row + 1] {
                x[row * vocab..][..valid].fill(f32::NAN); // not to be read
            }
        }
        let mut want = vec![0.0; ids.len()];
        gather_many(&cpu, vocab, valid, &inv_temps, &x, &offsets, &ids, &mut want).expect("distributions");
        let on = OnDevice::new(gpu, shape, &x, &inv_temps)?;
        let offsets: Vec<u32> = offsets.into_iter().map(count).collect();
        let (on_offsets, on_ids) = (Guarded::of(gpu, &offsets)?, Guarded::of(gpu, &ids)?);
        let (picked, status) = (Guarded::new(gpu, ids.len())?, Guarded::new(gpu, rows)?);
        cuda::gather_many(gpu, &on.block(), on_offsets.view(), on_ids.view(), picked.view(), status.view())?;
        let (got, guards) = picked.take(gpu)?;
        case.fail("gather_many", guards);
        case.same_bits("gather_many", &got, &want);
        let (got, guards) = status.take(gpu)?;
        case.fail("status of many", guards);
        case.equal("status of many", &got, &vec![0; rows]);
        on.guards(gpu, &mut case)?;
        case.end();
    }
    Ok(())
}

/// Lists of the largest, with and without ties and minus infinities.
fn tops(gpu: &Gpu, shape: &Shape, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let &Shape { rows, vocab, valid, .. } = shape;
    for ties in [false, true].into_iter().filter(|ties| !ties || valid < 100_000) {
        let (mut x, inv_temps) = (logits(shape, 2, ties), temperatures(shape));
        if ties {
            x.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
            // One row of which most are masked: lists reach into what has no mass, by ascending id.
            x[5.min(valid)..valid].fill(f32::NEG_INFINITY);
        }
        let on = OnDevice::new(gpu, shape, &x, &inv_temps)?;
        let lses = Guarded::new(gpu, 2 * rows)?;
        cuda::normalizers(gpu, &on.block(), lses.view())?;
        let most = if valid < 100_000 { valid.min(4000) } else { 17 };
        for k in [1, 2, 17, 64, 1500, valid].into_iter().filter(|&k| k <= most) {
            let mut case =
                Case::new("log_softmax", format!("top {k} of [{rows}, {valid} of {vocab}], ties {ties}"), each);
            // Each row has its own number of them, some none.
            let mut ends = vec![0];
            (0..rows).for_each(|row| ends.push(ends[row] + [k, k.div_ceil(3), 0, 1][row % 4]));
            let n = ends[rows];
            let offsets = Guarded::of(gpu, &ends.iter().copied().map(count).collect::<Vec<u32>>())?;
            let (ids, logprobs, raw) = (Guarded::new(gpu, n)?, Guarded::new(gpu, n)?, Guarded::new(gpu, n)?);
            let (block, from, workspace) = (on.block(), Lses::Normalizers(lses.view()), on.workspace.view());
            cuda::top_k(gpu, &block, offsets.view(), from, workspace, ids.view(), logprobs.view(), raw.view())?;
            let (mut want_ids, mut want, mut want_raw) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
            for (row, &inv_temp) in inv_temps.iter().enumerate().filter(|(row, _)| ends[*row] < ends[row + 1]) {
                let (of, isa, part) = (valid_row(shape, &x, row), Isa::detect(), ends[row]..ends[row + 1]);
                let normalizers = Normalizers::of(isa, of, inv_temp).expect("a distribution");
                let out = (&mut want_ids[part.clone()], &mut want[part.clone()], &mut want_raw[part]);
                top_k_of_row(isa, of, inv_temp, normalizers, out.0, out.1, out.2);
            }
            let (got, guards) = ids.take(gpu)?;
            case.fail("ids", guards);
            case.equal("ids", &got, &want_ids);
            for (what, on, want) in [("logprobs", logprobs, want), ("raw logprobs", raw, want_raw)] {
                let (got, guards) = on.take(gpu)?;
                case.fail(what, guards);
                case.same_bits(what, &got, &want);
            }
            on.guards(gpu, &mut case)?;
            case.end();
        }
    }
    Ok(())
}

/// An id beyond the vocabulary anywhere in a list is an error of its row alone, whichever warp it falls to.
fn unknown(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let shape = Shape { rows: 6, vocab: 40, valid: 37, inv_temp: 1.0, spread: 3.0 };
    let x = logits(&shape, 4, false);
    let mut ids: Vec<u32> = (0..6 * 140).map(|i| i % 37).collect();
    let places = [3, 40, 70, 100, 139];
    places.iter().enumerate().for_each(|(row, place)| ids[row * 140 + place] = 37);
    let offsets: Vec<u32> = (0..=6).map(|row| row * 140).collect();
    let mut case = Case::new("log_softmax", "unknown ids in lists".to_string(), each);
    let on = OnDevice::new(gpu, &shape, &x, &[1.0; 6])?;
    let (on_offsets, on_ids) = (Guarded::of(gpu, &offsets)?, Guarded::of(gpu, &ids)?);
    let (picked, status) = (Guarded::new(gpu, ids.len())?, Guarded::new(gpu, 6)?);
    cuda::gather_many(gpu, &on.block(), on_offsets.view(), on_ids.view(), picked.view(), status.view())?;
    let (statuses, guards) = status.take(gpu)?;
    case.fail("status", guards);
    for (row, &status) in statuses.iter().enumerate() {
        let got = cuda::error(gpu, &on.block(), row, &ids[row * 140..][..140], status)?;
        let want = (row < places.len()).then_some(LogitError::Target { row, target: 37, valid: 37 });
        case.equal("errors", &[got], &[want]);
    }
    let (got, guards) = picked.take(gpu)?;
    case.fail("logprobs", guards);
    let nan: Vec<bool> = got.iter().map(|x| x.is_nan()).collect();
    case.equal("NaN where there is no such id", &nan, &ids.iter().map(|&id| id == 37).collect::<Vec<bool>>());
    case.end();
    Ok(())
}

/// Rows that are no distribution, and ids beyond the vocabulary: the CPU's errors, and the rows beside them as ever.
fn broken(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let shape = Shape { rows: 7, vocab: 2052, valid: 2049, inv_temp: 1.0, spread: 3.0 };
    let mut x = logits(&shape, 4, false);
    let mut at = |row: usize, column: usize, value: f32| x[row * shape.vocab + column] = value;
    at(1, 2048, f32::NAN);
    at(2, 15, f32::INFINITY);
    at(3, 7, 1e30);
    x[4 * shape.vocab..][..shape.valid].fill(f32::NEG_INFINITY);
    x[5 * shape.vocab..][..shape.valid].fill(f32::NEG_INFINITY);
    x[5 * shape.vocab + 1040] = f32::NAN;
    let inv_temps = [1.0, 0.5, 1.0, 1e10, 1.0, 1.0, 1.0];
    let targets = [0, 1, 2, 3, 4, 5, 2049];
    let mut case = Case::new("log_softmax", "broken rows".to_string(), each);
    let on = OnDevice::new(gpu, &shape, &x, &inv_temps)?;
    let (ids, picked, status) = (Guarded::of(gpu, &targets)?, Guarded::new(gpu, 7)?, Guarded::new(gpu, 7)?);
    cuda::gather(gpu, &on.block(), ids.view(), picked.view(), status.view())?;
    let (statuses, guards) = status.take(gpu)?;
    case.fail("status", guards);
    let (logprobs, guards) = picked.take(gpu)?;
    case.fail("logprobs", guards);
    for row in 0..shape.rows {
        let (of, id) = (valid_row(&shape, &x, row), targets[row]);
        let mut want = [0.0];
        let cpu = gather_many(&Cpu::new(1), of.len(), of.len(), &inv_temps[row..=row], of, &[0, 1], &[id], &mut want);
        let got = cuda::error(gpu, &on.block(), row, &[id], statuses[row])?;
        let want = cpu.err().map(|error| in_row(error, row));
        // NaN is not equal to itself, so errors are compared as they print.
        case.equal("errors", &[format!("{got:?}")], &[format!("{want:?}")]);
        case.equal("NaN where there is an error", &[logprobs[row].is_nan()], &[want.is_some()]);
    }
    let lses = Guarded::new(gpu, 14)?;
    cuda::normalizers(gpu, &on.block(), lses.view())?;
    let offsets = Guarded::of(gpu, &(0..=7).map(|row| 2 * row).collect::<Vec<u32>>())?;
    let (top, logprobs, raw) = (Guarded::new(gpu, 14)?, Guarded::new(gpu, 14)?, Guarded::new(gpu, 14)?);
    let (block, from, workspace) = (on.block(), Lses::Normalizers(lses.view()), on.workspace.view());
    cuda::top_k(gpu, &block, offsets.view(), from, workspace, top.view(), logprobs.view(), raw.view())?;
    for (what, on) in [("logprobs of the top", logprobs), ("raw logprobs of the top", raw)] {
        let (got, guards) = on.take(gpu)?;
        case.fail(what, guards);
        let nan: Vec<bool> = got.iter().map(|x| x.is_nan()).collect();
        case.equal(what, &nan, &(0..14).map(|i| (1..6).contains(&(i / 2))).collect::<Vec<bool>>());
    }
    on.guards(gpu, &mut case)?;
    case.end();
    Ok(())
}

/// The error of a row looked at alone, as that of the block's row.
fn in_row(error: LogitError, row: usize) -> LogitError {
    match error {
        LogitError::NotFinite { whose, column, value, inv_temp, .. } => {
            LogitError::NotFinite { whose, row, column, value, inv_temp }
        }
        LogitError::NoMass { whose, valid, .. } => LogitError::NoMass { whose, row, valid },
        LogitError::Target { target, valid, .. } => LogitError::Target { row, target, valid },
        other => other,
    }
}
