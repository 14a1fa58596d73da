//! The fast path: cuts a product into tasks of whole panels and runs the tile kernel over them.
//!
//! Few rows: the codes are read once, as one sequential stream per task, and widened in registers. More rows: a block
//! of a panel is used for all tiles of the task, widened once where a tile would spend more on widening; sums rest in C
//! between blocks.

use super::PANEL;
use super::kernel::{self, Ahead, FEW, Form, STRIP, TILE};
use super::packed::{Codes, Packed};
use super::scales::{SCALE_BLOCK, Scales};
use super::tiles::Tiling;
use crate::parallel::Parts;
use crate::{Cpu, DType, Isa, isa::by_isa, scratch};

/// Multiply-adds below which one thread works alone.
const SHARE: usize = 100_000;
/// Depth of a block: in bf16, or in strips of f32, 16 KiB of the first cache. A multiple of the panel, for transposed weights,
/// and of a block of scales.
const BLOCK: usize = 256;
/// Depth of a block whose codes are read by several passes; one block of scales.
const BLOCK_DIRECT: usize = SCALE_BLOCK;
/// Bytes that a single stream is asked for ahead of its use.
const AHEAD: usize = 8 << 10;
/// Bytes of codes in a task of a stream.
const TASK_BYTES: usize = 128 << 10;
/// Rows of a task: with a block's depth 256 KiB of the left side, which stay in the second cache.
const TASK_ROWS: usize = 264;
/// Most panels of a task of many rows.
const TASK_PANELS: usize = 4;
/// Bytes of a task's left side that may be read whole for each panel, so that the panel is one stream.
const LEFT_BYTES: usize = 384 << 10;
/// Scratch of widened blocks, one per thread.
pub(super) const SCRATCH: usize = 7;
/// Its floats.
pub(super) const SCRATCH_LEN: usize = BLOCK * PANEL;

/// The right side of a product, `[depth, columns]`.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// W transposed: columns are outputs, depth the inputs. Values without their scale.
    Outputs(&'a Packed),
    /// W: columns are inputs, depth the outputs. Values with their scale.
    Inputs(&'a Packed),
    /// A row-major matrix.
    Rows(&'a [f32]),
}

/// One product C = A B with the scales of the right side, then per column plus bias.
pub(super) struct Product<'a> {
    pub(super) right: Right<'a>,
    /// The first panel of packed weights that takes part, where not all of their outputs do.
    pub(super) first: usize,
    pub(super) columns: usize,
    pub(super) scales: Scales<'a>,
    pub(super) bias: Option<&'a [f32]>,
    /// Row-major `[rows, columns]`.
    pub(super) c: Parts<'a, f32>,
    /// Chains start from C instead of zero.
    pub(super) accumulate: bool,
}

impl Product<'_> {
    /// The format of the right side's values: f32 once they have their scale.
    fn dtype(&self) -> DType {
        match self.right {
            Right::Outputs(w) => w.dtype(),
            Right::Inputs(_) | Right::Rows(_) => DType::F32,
        }
    }
}

/// The left side A in its packed form.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) tiling: Tiling,
    pub(super) depth: usize,
    /// As `tiles::pack` leaves it.
    pub(super) plain: &'a [f32],
    /// The same times [`kernel::e4m3_factor`], for `stream` alone.
    pub(super) scaled: &'a [f32],
}

impl<'a> Left<'a> {
    /// Tile `tile` of `pack` for depths `at .. at + len`.
    fn tile(&self, pack: &'a [f32], tile: usize, at: usize, len: usize) -> (usize, usize, &'a [f32]) {
        let (start, end) = (self.tiling.start(tile), self.tiling.start(tile + 1));
        let rows = end - start;
        let from = start * self.depth + at * rows;
        (start, end, &pack[from..from + len * rows])
    }
}

/// Runs `task(product, unit)` for every unit of every product, `units(product)` of each.
fn for_each_unit(
    cpu: &Cpu,
    share: bool,
    products: &[Option<Product<'_>>],
    units: impl Fn(&Product<'_>) -> usize + Sync,
    task: impl Fn(&Product<'_>, usize) + Sync,
) {
    let total = products.iter().flatten().map(&units).sum();
    cpu.for_each_if(share, total, |unit| {
        let mut unit = unit;
        for product in products.iter().flatten() {
            let own = units(product);
            if unit < own {
                return task(product, unit);
            }
            unit -= own;
        }
    });
}

/// Few rows against packed weights, every product of [`Right::Outputs`].
pub(super) fn stream(cpu: &Cpu, left: Left<'_>, products: &[Option<Product<'_>>]) {
    let (rows, depth, isa) = (left.tiling.rows(), left.depth, cpu.isa());
    let panels = |product: &Product<'_>| product.columns.div_ceil(PANEL);
    let total: usize = products.iter().flatten().map(panels).sum();
    let share = rows * total * PANEL * depth >= SHARE;
    let per_task = |product: &Product<'_>| {
        let Right::Outputs(w) = product.right else { unreachable!("a stream of packed weights") };
        let fit = TASK_BYTES / (PANEL * depth * w.dtype().bytes());
        fit.min(total / (4 * cpu.threads())).max(1)
    };
    for_each_unit(
        cpu,
        share,
        products,
        |product| panels(product).div_ceil(per_task(product)),
        |product, unit| {
            let Right::Outputs(w) = product.right else { unreachable!("a stream of packed weights") };
            let first = unit * per_task(product);
            for panel in first..panels(product).min(first + per_task(product)) {
                let mut sums = [[0.0; PANEL]; FEW];
                stream_panel(isa, left, w, product.first + panel, &mut sums[..rows]);
                for (row, sums) in sums[..rows].iter_mut().enumerate() {
                    finish(product, panel * PANEL, sums);
                    c_row(product, row, panel).copy_from_slice(&sums[..width(product, panel)]);
                }
            }
        },
    );
}

fn stream_panel(isa: Isa, left: Left<'_>, w: &Packed, panel: usize, sums: &mut [[f32; PANEL]]) {
    let (tiles, depth) = (left.tiling.count(), left.depth);
    let once = tiles == 1 && kernel::one_pass(isa, left.tiling.rows());
    let scales = w.product_scales();
    let block = if once { depth.min(scales.chain()) } else { BLOCK_DIRECT };
    let mut chains = [[0.0; PANEL]; TILE];
    for at in (0..depth).step_by(block) {
        let len = block.min(depth - at);
        let codes = w.codes(panel, at, len);
        let pack = if matches!(codes, Codes::E4m3(_)) { left.scaled } else { left.plain };
        let (place, group) = codes.place();
        for tile in 0..tiles {
            let ahead = if once {
                Ahead { at: place.wrapping_add(AHEAD), step: group }
            } else {
                Ahead::share(place.wrapping_add(len * group), len * group, tile, tiles, len)
            };
            let (start, end, a) = left.tile(pack, tile, at, len);
            let scale = scales.of_block(panel, at);
            advance(isa, a, codes, scale, &mut chains[..end - start], &mut sums[start..end], ahead);
        }
    }
}

/// Continues sums by the products with the groups of `b`: their chains go on, or with a block's `scale` these products
/// are chains of their own that are added when they end. `chains` are zeros before and after.
fn advance(
    isa: Isa,
    a: &[f32],
    b: Codes<'_>,
    scale: Option<f32>,
    chains: &mut [[f32; PANEL]],
    sums: &mut [[f32; PANEL]],
    ahead: Ahead,
) {
    if let Some(scale) = scale {
        kernel::tile(isa, chains.len(), a, b, chains, ahead);
        kernel::fold(isa, chains, scale, sums);
    } else {
        kernel::tile(isa, sums.len(), a, b, sums, ahead);
    }
}

/// Any number of rows against any right side.
pub(super) fn blocks(cpu: &Cpu, left: Left<'_>, products: &[Option<Product<'_>>]) {
    let (tiling, depth) = (left.tiling, left.depth);
    let panels = |product: &Product<'_>| product.columns.div_ceil(PANEL);
    let total: usize = products.iter().flatten().map(panels).sum();
    let share = tiling.rows() * total * PANEL * depth >= SHARE;
    // Row groups of whole tiles: as many as the caches ask for, more when there are few panels to share.
    let want =
        tiling.rows().div_ceil(TASK_ROWS).max((4 * cpu.threads()).div_ceil(total).min(tiling.count().div_ceil(2)));
    let per_group = tiling.count().div_ceil(want);
    let groups = tiling.count().div_ceil(per_group);
    let per_task = (groups * total / (8 * cpu.threads())).clamp(1, TASK_PANELS);
    for_each_unit(
        cpu,
        share,
        products,
        |product| groups * panels(product).div_ceil(per_task),
        |product, unit| {
            let first_panel = unit / groups * per_task;
            let first_tile = unit % groups * per_group;
            block_task(
                cpu.isa(),
                left,
                product,
                first_panel..panels(product).min(first_panel + per_task),
                first_tile..tiling.count().min(first_tile + per_group),
            );
        },
    );
}

fn block_task(
    isa: Isa,
    left: Left<'_>,
    product: &Product<'_>,
    panels: std::ops::Range<usize>,
    tiles: std::ops::Range<usize>,
) {
    let depth = left.depth;
    let rows = left.tiling.start(tiles.end) - left.tiling.start(tiles.start);
    let form = kernel::form(isa, product.dtype());
    let blocks = depth.div_ceil(BLOCK);
    let panel_first = 4 * rows * depth <= LEFT_BYTES;
    let place = |step: usize| {
        let (panel, number) =
            if panel_first { (step / blocks, step % blocks) } else { (step % panels.len(), step / panels.len()) };
        let at = number * BLOCK;
        (panels.start + panel, at, BLOCK.min(depth - at))
    };
    let chain = product.scales.chain().min(BLOCK);
    let (mut sums, mut chains) = ([[0.0; PANEL]; TILE], [[0.0; PANEL]; TILE]);
    scratch::with::<SCRATCH, _>(SCRATCH_LEN, |scratch| {
        let steps = panels.len() * blocks;
        for step in 0..steps {
            let (panel, at, len) = place(step);
            if form == Form::Strips {
                strips(isa, left, product, panel, at, len, tiles.clone(), scratch);
                continue;
            }
            let parts = len.div_ceil(chain);
            let right = match (form, product.right) {
                (Form::Own, Right::Outputs(w)) => w.codes(product.first + panel, at, len),
                (Form::Bf16, Right::Outputs(w)) => {
                    let out = &mut bytemuck::cast_slice_mut::<_, [u16; PANEL]>(&mut *scratch)[..len];
                    kernel::widen_to_bf16(isa, w.codes(product.first + panel, at, len), out);
                    Codes::Bf16(out)
                }
                _ => {
                    let out = &mut scratch.as_chunks_mut::<PANEL>().0[..len];
                    widen(isa, product, panel, at, out);
                    Codes::F32(out)
                }
            };
            // Without a stream to follow, a line that is at hand: asking for no address at all costs a failed translation.
            let (next, bytes) = (step + 1 < steps)
                .then(|| upcoming(product, place(step + 1)))
                .flatten()
                .unwrap_or((left.plain.as_ptr().cast(), 0));
            for tile in tiles.clone() {
                let (start, end, a) = left.tile(left.plain, tile, at, len);
                let sums = &mut sums[..end - start];
                for (row, sums) in (start..end).zip(sums.iter_mut()) {
                    if at > 0 || product.accumulate {
                        load_row(c_row(product, row, panel), sums);
                    } else {
                        *sums = [0.0; PANEL];
                    }
                }
                // C of the next tile: rows far apart, which no stream detector follows.
                let rows_ahead = end..left.tiling.start((tile + 2).min(tiles.end));
                for row in rows_ahead {
                    let at = c_row(product, row, panel).as_ptr().cast::<u8>();
                    kernel::prefetch(at);
                    kernel::prefetch(at.wrapping_add(64));
                }
                for part in 0..parts {
                    let (first, len) = (part * chain, chain.min(len - part * chain));
                    let a = &a[first * sums.len()..][..len * sums.len()];
                    let right = right.part(first, len);
                    let (share, shares) = ((tile - tiles.start) * parts + part, tiles.len() * parts);
                    let ahead = Ahead::share(next, bytes, share, shares, len);
                    let scale = product.scales.of_block(product.first + panel, at + first);
                    advance(isa, a, right, scale, &mut chains[..sums.len()], sums, ahead);
                }
                for (row, sums) in (start..end).zip(sums.iter_mut()) {
                    if at + len == depth {
                        finish(product, panel * PANEL, sums);
                    }
                    store_row(sums, c_row(product, row, panel));
                }
            }
        }
    });
}

/// A block of a panel in strips of [`STRIP`] columns, each for all tiles of the task, so that the first cache holds what is used
/// at a time.
#[allow(clippy::too_many_arguments)]
fn strips(
    isa: Isa,
    left: Left<'_>,
    product: &Product<'_>,
    panel: usize,
    at: usize,
    len: usize,
    tiles: std::ops::Range<usize>,
    scratch: &mut [f32],
) {
    let scratch = &mut scratch.as_chunks_mut::<STRIP>().0[..len * PANEL / STRIP];
    let mut square = [[0.0; PANEL]; PANEL];
    for first in (0..len).step_by(PANEL) {
        let square = &mut square[..PANEL.min(len - first)];
        widen(isa, product, panel, at + first, square);
        for (i, group) in square.iter().enumerate() {
            for (strip, values) in group.as_chunks::<STRIP>().0.iter().enumerate() {
                scratch[strip * len + first + i] = *values;
            }
        }
    }
    let mut sums = [[0.0; STRIP]; TILE];
    for (strip, right) in scratch.chunks_exact(len).enumerate() {
        let first = panel * PANEL + strip * STRIP;
        let width = STRIP.min(product.columns.saturating_sub(first));
        if width == 0 {
            break;
        }
        // SAFETY: a task owns its rows of its panels, and uses one such part at a time.
        let c = |row: usize| unsafe { product.c.range(row * product.columns + first, width) };
        for tile in tiles.clone() {
            let (start, end, a) = left.tile(left.plain, tile, at, len);
            let sums = &mut sums[..end - start];
            for (row, sums) in (start..end).zip(sums.iter_mut()) {
                if at > 0 || product.accumulate {
                    load_row(c(row), sums);
                } else {
                    *sums = [0.0; STRIP];
                }
            }
            for row in end..left.tiling.start((tile + 2).min(tiles.end)) {
                kernel::prefetch(c(row).as_ptr().cast());
            }
            kernel::strip(isa, a, right, sums);
            for (row, sums) in (start..end).zip(sums.iter_mut()) {
                if at + len == left.depth {
                    finish(product, first, sums);
                }
                store_row(sums, c(row));
            }
        }
    }
}

/// A row of a panel or strip, zeros behind its last column. Whole ones are the rule, and their copy is a few registers.
#[inline(always)]
fn load_row<const W: usize>(from: &[f32], to: &mut [f32; W]) {
    if let Ok(from) = <&[f32; W]>::try_from(from) {
        *to = *from;
    } else {
        to[..from.len()].copy_from_slice(from);
        to[from.len()..].fill(0.0);
    }
}

/// The way back from [`load_row`].
#[inline(always)]
fn store_row<const W: usize>(from: &[f32; W], to: &mut [f32]) {
    if let Ok(to) = <&mut [f32; W]>::try_from(&mut *to) {
        *to = *from;
    } else {
        to.copy_from_slice(&from[..to.len()]);
    }
}

/// Columns of the product in `panel`.
fn width(product: &Product<'_>, panel: usize) -> usize {
    PANEL.min(product.columns - panel * PANEL)
}

/// The part of row `row` of C that is in `panel`.
#[allow(clippy::mut_from_ref)]
fn c_row<'a>(product: &Product<'a>, row: usize, panel: usize) -> &'a mut [f32] {
    // SAFETY: a task owns its rows of its panels, and uses one such part at a time.
    unsafe { product.c.range(row * product.columns + panel * PANEL, width(product, panel)) }
}

/// The scale that follows the chain and the bias, each rounded by itself, of columns `first ..`.
fn finish<const W: usize>(product: &Product<'_>, first: usize, sums: &mut [f32; W]) {
    match product.scales {
        Scales::One | Scales::Block128 { .. } => (),
        Scales::Tensor(scale) => sums.iter_mut().for_each(|sum| *sum *= scale),
        Scales::Channel(scales) => {
            for (sum, scale) in sums.iter_mut().zip(&scales[product.first * PANEL + first..][..W]) {
                *sum *= scale;
            }
        }
    }
    if let Some(bias) = product.bias {
        for (sum, bias) in sums.iter_mut().zip(&bias[first..]) {
            *sum += bias;
        }
    }
}

/// Depths `at ..` of a panel of the right side as f32; `at` and all but the last length are multiples of [`BLOCK`].
fn widen(isa: Isa, product: &Product<'_>, panel: usize, at: usize, out: &mut [[f32; PANEL]]) {
    match product.right {
        Right::Outputs(w) => kernel::widen(isa, w.codes(product.first + panel, at, out.len()), out),
        Right::Inputs(w) => {
            let (first, width) = (panel * PANEL, width(product, panel));
            let all = w.product_scales();
            let mut codes = [[0.0; PANEL]; PANEL];
            let mut square = [[0.0; PANEL]; PANEL];
            for (i, out) in out.chunks_mut(PANEL).enumerate() {
                let from = product.first + at / PANEL + i;
                kernel::widen(isa, w.codes(from, first, width), &mut codes[..width]);
                let scales = all.of_panel(from, first);
                if let Ok(out) = out.try_into() {
                    kernel::turn(isa, &codes, scales.as_ref(), out);
                } else {
                    kernel::turn(isa, &codes, scales.as_ref(), &mut square);
                    out.copy_from_slice(&square[..out.len()]);
                }
            }
        }
        Right::Rows(x) => copy_panel(isa, x, product.columns, panel * PANEL, at, out),
    }
}

by_isa! {
    fn copy_panel(x: &[f32], columns: usize, first: usize, at: usize, out: &mut [[f32; PANEL]]) {
        for (out, x) in out.iter_mut().zip(x.chunks_exact(columns).skip(at)) {
            if let Some(x) = x[first..].first_chunk::<PANEL>() {
                *out = *x;
            } else {
                let x = &x[first..];
                out[..x.len()].copy_from_slice(x);
                out[x.len()..].fill(0.0);
            }
        }
    }
}

/// Where the block that follows lies, when it is one stream.
fn upcoming(product: &Product<'_>, (panel, at, len): (usize, usize, usize)) -> Option<(*const u8, usize)> {
    match product.right {
        Right::Outputs(w) => {
            let (place, group) = w.codes(product.first + panel, at, len).place();
            Some((place, group * len))
        }
        Right::Inputs(_) | Right::Rows(_) => None,
    }
}
