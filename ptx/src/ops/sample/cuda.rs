//! The launcher, and how draws and their results lie in device memory.

use super::{Params, SampleError, Sampled, fault};
use crate::cuda::{Arg, CudaError, Gpu, Kernel, Launch, View, count};
use crate::ops::log_softmax::Normalizers;
use crate::ops::log_softmax::cuda::{Block, ORDER_SHARED, row_of, slots, workspace_len};
use bytemuck::{Pod, Zeroable};

/// How one row is drawn from, on the device; its temperature is in the block's `inv_temps` ([`Params::inv_temp`]).
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Draw {
    greedy: u32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
}

impl Draw {
    /// From parameters, which must be within their ranges.
    pub fn of(params: &Params) -> Result<Draw, SampleError> {
        params.check()?;
        let Params { temperature, top_k, top_p, min_p } = *params;
        Ok(Draw { greedy: u32::from(temperature == 0.0), top_k, top_p, min_p })
    }
}

/// What a draw leaves of its row.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Drawn {
    /// 0: drawn; 1: the row is no distribution; 2: not drawn.
    pub status: u32,
    /// As in [`Sampled`], like the next three.
    pub token: u32,
    /// Nats.
    pub logprob: f32,
    /// Nats.
    pub logprob_raw: f32,
    /// Ids that could have been drawn.
    pub support: u32,
    /// The row's log-sum-exp at the temperature.
    pub lse: f32,
    /// And at temperature 1.
    pub lse_raw: f32,
    /// Sum of exp(z - max) over the ids that a truncated draw kept; 0 for a draw from the whole row.
    pub kept: f32,
}

impl Drawn {
    /// The draw, once it is read back, or why there is none; for that the row is read.
    ///
    /// # Panics
    /// When the row was not drawn from: it is truncated, and the launch was told that none is.
    pub fn result(
        &self,
        gpu: &Gpu,
        block: &Block,
        row: usize,
        params: &Params,
    ) -> Result<Result<Sampled, SampleError>, CudaError> {
        let Drawn { status, token, logprob, logprob_raw, support, lse, lse_raw, .. } = *self;
        let normalizers = Normalizers { at_temperature: lse, raw: lse_raw };
        match status {
            0 => Ok(Ok(Sampled { token, logprob, logprob_raw, support, normalizers })),
            1 => Ok(Err(fault(params, &row_of(gpu, block, row)?))),
            other => panic!("row {row} was not drawn from: status {other}"),
        }
    }
}

/// Draws one token from each row: the CPU's token, logprobs and support for equal logits and uniform. `draws` and
/// `uniforms`, each in [0, 1), are `[rows]`; `drawn` and `tokens` `[rows]` take the results, the tokens once more by
/// themselves, as the next step's ids. `truncated` says whether any row is cut by top-k, top-p or min-p; only then is
/// `workspace` used, which has [`workspace_len`] elements. The block's `partials` are left as
/// [`top_k`](crate::ops::log_softmax::cuda::top_k) reads them.
///
/// # Panics
/// When a view is shorter.
#[allow(clippy::too_many_arguments)]
pub fn draw_rows(
    gpu: &Gpu,
    block: &Block,
    draws: View<Draw>,
    uniforms: View<f32>,
    truncated: bool,
    workspace: View<u64>,
    drawn: View<Drawn>,
    tokens: View<u32>,
) -> Result<(), CudaError> {
    let rows = block.rows;
    block.check();
    assert!(draws.len() >= rows && uniforms.len() >= rows, "one draw and one uniform a row of {rows}");
    assert!(drawn.len() >= rows && tokens.len() >= rows, "one result a row of {rows}");
    assert!(drawn.aligned_16(), "the results are stored 16 bytes at a time");
    if rows == 0 {
        return Ok(());
    }
    block.tile_masses(gpu, None, true)?;
    let [vocab, valid, tiles] = block.columns();
    let [logits, inv_temps, partials]: [Arg; 3] = [block.logits.into(), block.inv_temps.into(), block.partials.into()];
    let [draws, uniforms]: [Arg; 2] = [draws.into(), uniforms.into()];
    let [drawn, tokens]: [Arg; 2] = [drawn.into(), tokens.into()];
    let args = [logits, inv_temps, partials, draws, uniforms, drawn, tokens, vocab, valid, tiles];
    let launch = Launch { grid: [count(rows), 1, 1], threads: 256, shared_bytes: RUNNING_SHARED };
    gpu.launch(Kernel { op: "sample", entry: "draw_whole" }, launch, &args)?;
    if !truncated {
        return Ok(());
    }
    assert!(workspace.len() >= workspace_len(rows, block.valid), "the workspace has {} elements", workspace.len());
    let [workspace, rows_arg]: [Arg; 2] = [workspace.into(), count(rows).into()];
    let args = [logits, inv_temps, partials, draws, uniforms, drawn, tokens, workspace, rows_arg, vocab, valid, tiles];
    let launch = Launch { grid: [count(slots(rows)), 1, 1], threads: 1024, shared_bytes: ORDER_SHARED };
    gpu.launch(Kernel { op: "sample", entry: "draw_cut" }, launch, &args)
}

/// Shared memory of a block of `draw_whole`: some words, and a mass and a running sum for each of 1024 tiles or columns.
const RUNNING_SHARED: u32 = 64 + 1024 * (4 + 8);
