//! The launchers. A first kernel leaves five numbers for each tile of 1024 columns in `partials`, the others fold them.

use super::cpu::TILE;
use super::{LogitError, diagnose};
use crate::cuda::{Arg, CudaError, Gpu, Kernel, Launch, View, count};
use crate::ops::sample::cuda::Drawn;

/// Tiles of a row at most.
const TILES_MAX: usize = 1024;
/// Rows whose largest are looked for at once, each with its own workspace.
const SLOTS: usize = 32;
/// Shared memory of a block that orders a row, as in `order.cuh`.
pub(crate) const ORDER_SHARED: u32 = 4 * 32 * 256 + 256;

/// Rows of logits on the device, at a temperature each.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// How many rows.
    pub rows: usize,
    /// Columns of a row.
    pub vocab: usize,
    /// Columns that are ids; the others are never read.
    pub valid: usize,
    /// `[rows, vocab]`.
    pub logits: View<f32>,
    /// `[rows]`, 1 / temperature: finite and positive.
    pub inv_temps: View<f32>,
    /// [`partials_len`] elements, for the kernels alone.
    pub partials: View<f32>,
}

/// Elements of `partials` for so many rows.
#[must_use]
pub fn partials_len(rows: usize, valid: usize) -> usize {
    rows * 5 * valid.div_ceil(TILE)
}

/// Elements of the workspace of [`top_k`] and of truncated draws: 16 bytes an id, for 32 rows at most.
#[must_use]
pub fn workspace_len(rows: usize, valid: usize) -> usize {
    slots(rows) * 2 * valid
}

pub(crate) fn slots(rows: usize) -> usize {
    rows.min(SLOTS)
}

impl Block {
    /// # Panics
    /// When a view is shorter than the shape says, or a row longer than the kernels take.
    pub(crate) fn check(&self) {
        let Block { rows, vocab, valid, .. } = *self;
        assert!(valid >= 1 && valid <= vocab, "{valid} valid columns of {vocab}");
        assert!(valid <= TILES_MAX * TILE, "{valid} ids are more than {}", TILES_MAX * TILE);
        assert!(self.logits.len() >= rows * vocab, "logits are not [{rows}, {vocab}]");
        assert!(self.inv_temps.len() >= rows, "inv_temps are not [{rows}]");
        assert!(self.partials.len() >= partials_len(rows, valid), "partials have {} elements", self.partials.len());
    }

    pub(crate) fn tiles(&self) -> usize {
        self.valid.div_ceil(TILE)
    }

    /// The kernels' `vocab, valid, tiles`.
    pub(crate) fn columns(&self) -> [Arg; 3] {
        [count(self.vocab).into(), count(self.valid).into(), count(self.tiles()).into()]
    }

    /// Leaves each tile's numbers in `partials`, those of temperature 1 too if asked for, for all rows or for those with a
    /// list of ids.
    pub(crate) fn tile_masses(&self, gpu: &Gpu, offsets: Option<View<u32>>, raw: bool) -> Result<(), CudaError> {
        let grid = [count(self.tiles().div_ceil(8)), count(self.rows), 1];
        let offsets = offsets.map_or(Arg::Pointer(0), Arg::from);
        let [vocab, valid, tiles] = self.columns();
        let args = [
            self.logits.into(),
            self.inv_temps.into(),
            offsets,
            self.partials.into(),
            vocab,
            valid,
            tiles,
            u32::from(raw).into(),
        ];
        let launch = Launch { grid, threads: 128, shared_bytes: 32 << 10 };
        gpu.launch(Kernel { op: "log_softmax", entry: "tile_masses" }, launch, &args)
    }
}

/// Each row's log-sum-exp at its temperature and at temperature 1, into `out` `[rows, 2]`, nats: the bits of
/// [`Normalizers`](super::Normalizers). NaN for a row that is no distribution.
///
/// # Panics
/// When a view is shorter.
pub fn normalizers(gpu: &Gpu, block: &Block, out: View<f32>) -> Result<(), CudaError> {
    block.check();
    assert!(out.len() >= block.rows * 2, "the normalizers are not [{}, 2]", block.rows);
    if block.rows == 0 {
        return Ok(());
    }
    block.tile_masses(gpu, None, true)?;
    let launch = Launch { grid: [count(block.rows), 1, 1], threads: 64, shared_bytes: 0 };
    let args = [block.partials.into(), out.into(), count(block.tiles()).into()];
    gpu.launch(Kernel { op: "log_softmax", entry: "normalizers" }, launch, &args)
}

/// The logprob of each row's target (`targets` `[rows]`), into `logprobs` `[rows]`, nats: the bits of
/// [`gather`](super::gather). `status` `[rows]` is 0 for a row that has one; [`error`] says what else there is.
///
/// # Panics
/// When a view is shorter.
pub fn gather(
    gpu: &Gpu,
    block: &Block,
    targets: View<u32>,
    logprobs: View<f32>,
    status: View<u32>,
) -> Result<(), CudaError> {
    let rows = block.rows;
    block.check();
    assert!(targets.len() >= rows && logprobs.len() >= rows && status.len() >= rows, "one target a row of {rows}");
    if rows == 0 {
        return Ok(());
    }
    block.tile_masses(gpu, None, false)?;
    let [vocab, valid, tiles] = block.columns();
    let args = [
        block.logits.into(),
        block.inv_temps.into(),
        block.partials.into(),
        targets.into(),
        logprobs.into(),
        status.into(),
        vocab,
        valid,
        tiles,
    ];
    let launch = Launch { grid: [count(rows), 1, 1], threads: 128, shared_bytes: 16 };
    gpu.launch(Kernel { op: "log_softmax", entry: "gather" }, launch, &args)
}

/// The logprobs of a list of ids of each row: row r's ids are `ids[offsets[r]..offsets[r + 1]]` and so are its logprobs;
/// `offsets` `[rows + 1]` ascends from 0 to no more than the length of `ids`. The bits of
/// [`gather_many`](super::gather_many). A row without ids is not read; `status` as for [`gather`].
///
/// # Panics
/// When a view is shorter; the offsets are on the device and not checked.
pub fn gather_many(
    gpu: &Gpu,
    block: &Block,
    offsets: View<u32>,
    ids: View<u32>,
    logprobs: View<f32>,
    status: View<u32>,
) -> Result<(), CudaError> {
    let rows = block.rows;
    block.check();
    assert!(offsets.len() > rows, "offsets are not [{rows} + 1]");
    assert!(logprobs.len() >= ids.len() && status.len() >= rows, "{} ids, {rows} rows", ids.len());
    if rows == 0 {
        return Ok(());
    }
    block.tile_masses(gpu, Some(offsets), false)?;
    let [vocab, valid, tiles] = block.columns();
    let args = [
        block.logits.into(),
        block.inv_temps.into(),
        block.partials.into(),
        offsets.into(),
        ids.into(),
        logprobs.into(),
        status.into(),
        vocab,
        valid,
        tiles,
    ];
    let launch = Launch { grid: [count(rows), 1, 1], threads: 128, shared_bytes: 16 };
    gpu.launch(Kernel { op: "log_softmax", entry: "gather_many" }, launch, &args)
}

/// Where rows' log-sum-exps are, and so which distribution logprobs are of.
#[derive(Clone, Copy, Debug)]
pub enum Lses {
    /// `[rows, 2]`, as [`normalizers`] leaves them: the whole row's.
    Normalizers(View<f32>),
    /// `[rows]`, as draws leave them: what each was drawn from.
    Drawn(View<Drawn>),
}

/// The largest of each row, descending, equal z by ascending id: row r's list is `offsets[r]..offsets[r + 1]` of `ids`, of
/// `logprobs`, at the temperature, and of `logprobs_raw`, at temperature 1. `offsets` `[rows + 1]` ascends from 0 to no more
/// than their length, by at most `valid`. The lists and bits of [`top_k_of_row`](super::top_k_of_row); after a truncated draw
/// the logprobs are those of [`processed`](crate::ops::sample::processed), minus infinity for an id that it cut. It reads
/// what [`normalizers`] or [`draw_rows`](crate::ops::sample::cuda::draw_rows) left of the same block, `partials` included. A
/// row that is no distribution has ids 0 and logprobs NaN; one with an empty list is not read. `workspace` has
/// [`workspace_len`] elements.
///
/// # Panics
/// When a view is shorter; the offsets are on the device and not checked.
#[allow(clippy::too_many_arguments)]
pub fn top_k(
    gpu: &Gpu,
    block: &Block,
    offsets: View<u32>,
    lses: Lses,
    workspace: View<u64>,
    ids: View<u32>,
    logprobs: View<f32>,
    logprobs_raw: View<f32>,
) -> Result<(), CudaError> {
    let rows = block.rows;
    block.check();
    assert!(offsets.len() > rows, "offsets are not [{rows} + 1]");
    assert!(logprobs.len() >= ids.len() && logprobs_raw.len() >= ids.len(), "{} ids, fewer logprobs", ids.len());
    assert!(workspace.len() >= workspace_len(rows, block.valid), "the workspace has {} elements", workspace.len());
    let (normalizers, drawn) = match lses {
        Lses::Normalizers(view) => {
            assert!(view.len() >= rows * 2, "the normalizers are not [{rows}, 2]");
            (view.into(), Arg::Pointer(0))
        }
        Lses::Drawn(view) => {
            assert!(view.len() >= rows, "{} draws of {rows} rows", view.len());
            (Arg::Pointer(0), view.into())
        }
    };
    if rows == 0 {
        return Ok(());
    }
    let [vocab, valid, tiles] = block.columns();
    let args = [
        block.logits.into(),
        block.inv_temps.into(),
        block.partials.into(),
        normalizers,
        drawn,
        offsets.into(),
        ids.into(),
        logprobs.into(),
        logprobs_raw.into(),
        workspace.into(),
        count(rows).into(),
        vocab,
        valid,
        tiles,
    ];
    let launch = Launch { grid: [count(slots(rows)), 1, 1], threads: 1024, shared_bytes: ORDER_SHARED };
    gpu.launch(Kernel { op: "log_softmax", entry: "top_k" }, launch, &args)
}

/// What a status says of a row that was asked for `ids`: nothing for 0. It reads the row back, so it is for failures.
///
/// # Panics
/// When the status is none that the kernels write, or an id is blamed that is in order.
pub fn error(gpu: &Gpu, block: &Block, row: usize, ids: &[u32], status: u32) -> Result<Option<LogitError>, CudaError> {
    let valid = block.valid;
    match status {
        0 => Ok(None),
        1 => {
            let mut inv_temp = [0.0];
            gpu.read(block.inv_temps.part(row, 1), &mut inv_temp)?;
            Ok(Some(diagnose("logits", row, &row_of(gpu, block, row)?, inv_temp[0])))
        }
        2 => {
            let target = ids.iter().copied().find(|&id| id as usize >= valid).expect("an id beyond the vocabulary");
            Ok(Some(LogitError::Target { row, target, valid }))
        }
        other => panic!("status {other} of row {row}"),
    }
}

/// The valid columns of a row.
pub(crate) fn row_of(gpu: &Gpu, block: &Block, row: usize) -> Result<Vec<f32>, CudaError> {
    let mut logits = vec![0.0; block.valid];
    gpu.read(block.logits.part(row * block.vocab, block.valid), &mut logits)?;
    Ok(logits)
}
