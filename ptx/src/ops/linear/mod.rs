//! Matrix products of activations with packed weights, and their gradients.
//!
//! `forward`: y\[m, n\] = x\[m, k\] W\[n, k\]^T, with the scales of e4m3 weights, then plus bias. `forward_e4m3`: the same of
//! 8-bit x, whose values are code x scale.
//! `backward_input`: dx\[m, k\] = dy\[m, n\] W. `backward_weight`: dw\[n, k\] += dy^T x. `backward_bias`: db\[n\] += sum of dy.
//!
//! order: each element is one f32 chain acc = fma(a, b, acc) in ascending order of the reduced axis, from +0.0, or
//! from what is there where it accumulates. forward: over k, a = x, b = the code's value; the scale of the output or of
//! the matrix and the bias come after the chain, each rounded by itself. With scales by block there is one such chain
//! for each 128 of k, from +0.0, and y = fma(chain, scale, y) over ascending blocks, from +0.0; then comes the bias.
//! forward_e4m3: the same with a = code x scale, which is exact, so the bits are those of forward of these values.
//! backward_input: over n, a = dy, b = code x scale rounded to f32. backward_weight: over m, a = dy, b = x.
//! backward_bias: plain sums over m. Nothing else shows in the bits: not the instruction set, the threads, the number
//! of rows, or what shares the call.
//!
//! bytes: forward reads the weights once (few rows) or once per 264 rows. flops: 2 m n k each.
//! accuracy: within gamma(depth) = depth eps / (1 - depth eps) of the sum of |a b|, eps = 2^-24, of the exact result;
//! with scales by block depth is min(k, 128) + ceil(k / 128).
//! range: sums of products within f32 before the scale, and |x| below 2^120 with e4m3 weights or inputs, since x may
//! carry a factor of 256 through the chain. (One of 2^120 where all |x| are below 256.)

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod cases;
mod conform;
mod cpu;
pub mod cuda;
mod kernel;
pub mod naive;
mod packed;
mod packing;
mod scales;
mod store;
#[cfg(test)]
mod tests;
mod tiles;
mod weights;

pub(crate) use conform::conform;
pub(crate) use kernel::prefetch;
pub use packed::Packed;
pub use scales::{SCALE_BLOCK, WeightScale, amax, larger};

use self::cpu::{Left, Product, Right};
use self::scales::Scales;
use self::tiles::{Source, Tiling};
use crate::parallel::Parts;
use crate::{Cpu, DType, Isa, Scratch, isa::by_isa, scratch};

/// Outputs per panel.
pub const PANEL: usize = 32;

/// Products that share one parallel region; more are taken in turns.
const TOGETHER: usize = 8;
/// Scratch of the calling thread: x, and x times [`kernel::e4m3_factor`].
const PLAIN: usize = 5;
const SCALED: usize = 6;
/// Columns of a task of [`backward_bias`].
const BIAS_COLUMNS: usize = 256;

/// One matrix to multiply by, and where the result goes.
pub struct Job<'a> {
    /// Weights `[n, k]`.
    pub w: &'a Packed,
    /// Added last, `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Output `[m, n]`.
    pub y: &'a mut [f32],
}

/// What [`forward`] keeps per thread for `m` rows of `k` inputs; `e4m3` when weights are that.
#[must_use]
pub fn scratch(isa: Isa, m: usize, k: usize, e4m3: bool) -> Scratch {
    let scaled = if e4m3 { m.min(kernel::direct_rows(isa)) } else { 0 };
    Scratch::default()
        .caller(PLAIN, m.saturating_mul(k))
        .caller(SCALED, scaled * k)
        .every(cpu::SCRATCH, cpu::SCRATCH_LEN)
}

/// Rows of e4m3 codes with a scale each: value = code x scale.
#[derive(Clone, Copy, Debug)]
pub struct Codes8<'a> {
    /// `[m, k]`.
    pub codes: &'a [u8],
    /// `[m]`, powers of two; NaN for a row that was not finite. See [`round::e4m3_rows`](crate::ops::round::e4m3_rows).
    pub scales: &'a [f32],
}

/// y = x W^T + bias for several matrices that share x, `[m, k]`, in one parallel region (q, k and v, or gate and up).
///
/// # Panics
/// When a shape does not fit.
pub fn forward(cpu: &Cpu, m: usize, x: &[f32], jobs: &mut [Job<'_>]) {
    check_jobs(m, x.len(), jobs);
    forward_from(cpu, m, Source::Rows(x), 0, jobs);
}

/// The outputs `first ..` of [`forward`] alone, bit for bit: y\[m, n\] with as many as y has room for, without bias.
///
/// # Panics
/// When a shape does not fit or `first` is no multiple of [`PANEL`].
pub fn forward_part(cpu: &Cpu, m: usize, x: &[f32], w: &Packed, first: usize, y: &mut [f32]) {
    assert_eq!(x.len(), m * w.k(), "x is not [{m}, {}]", w.k());
    check_part(m, w, first, y.len());
    if y.is_empty() {
        return;
    }
    forward_from(cpu, m, Source::Rows(x), first / PANEL, &mut [Job { w, bias: None, y }]);
}

/// As [`forward`] of the values code x scale, bit for bit, without a copy of them.
///
/// # Panics
/// When a shape does not fit or a scale is neither a power of two nor NaN.
pub fn forward_e4m3(cpu: &Cpu, m: usize, x: Codes8<'_>, jobs: &mut [Job<'_>]) {
    assert_eq!(x.scales.len(), m, "the scales of x are not [{m}]");
    for (row, &scale) in x.scales.iter().enumerate() {
        let is_power = scale.is_normal() && scale > 0.0 && scale.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
        assert!(is_power || scale.is_nan(), "row {row} of x: its scale {scale:e} is no power of two");
    }
    check_jobs(m, x.codes.len(), jobs);
    forward_from(cpu, m, Source::Codes(x), 0, jobs);
}

/// Panics unless the jobs take `m` rows out of `len` values and their outputs have room for all that they give.
fn check_jobs(m: usize, len: usize, jobs: &[Job<'_>]) {
    let Some(k) = jobs.first().map(|job| job.w.k()) else { return };
    assert_eq!(len, m * k, "x is not [{m}, {k}]");
    for (i, job) in jobs.iter().enumerate() {
        let n = job.w.n();
        assert_eq!(job.w.k(), k, "job {i}: {:?} does not take rows of {k}", job.w);
        assert_eq!(job.y.len(), m * n, "job {i}: y is not [{m}, {n}]");
        assert!(job.bias.is_none_or(|b| b.len() == n), "job {i}: the bias is not [{n}]");
    }
}

/// Panics unless `len` values are `m` rows of outputs `first ..` of `w`.
fn check_part(m: usize, w: &Packed, first: usize, len: usize) {
    assert!(first.is_multiple_of(PANEL), "output {first} begins no panel");
    assert!(if m == 0 { len == 0 } else { len.is_multiple_of(m) }, "{len} values are no {m} rows");
    let n = len.checked_div(m).unwrap_or(0);
    assert!(first + n <= w.n(), "outputs {first}+{n} of {w:?}");
}

/// The products of `m` rows from anywhere with each job's weights from panel `first` on.
fn forward_from(cpu: &Cpu, m: usize, x: Source<'_>, first: usize, jobs: &mut [Job<'_>]) {
    let Some(k) = jobs.first().map(|job| job.w.k()) else { return };
    if m == 0 {
        return;
    }
    let len = m * k;
    let tiling = Tiling::new(m, kernel::height(cpu.isa()));
    let e4m3 = jobs.iter().any(|job| job.w.dtype() == DType::E4m3);
    // With widened codes the bits are the same, so that it may depend on what else is in the call.
    let few = m <= kernel::direct_rows(cpu.isa()) && !(e4m3 && exceeds(cpu, x, kernel::e4m3_bound(cpu.isa())));
    let scaled = few && e4m3;
    let plain = !few || jobs.iter().any(|job| job.w.dtype() != DType::E4m3);
    scratch::with::<PLAIN, _>(if plain { len } else { 0 }, |plain_pack| {
        scratch::with::<SCALED, _>(if scaled { len } else { 0 }, |scaled_pack| {
            if plain {
                tiles::pack(cpu, tiling, k, x, 1.0, plain_pack);
            }
            if scaled {
                tiles::pack(cpu, tiling, k, x, kernel::e4m3_factor(cpu.isa()), scaled_pack);
            }
            let left = Left { tiling, depth: k, plain: plain_pack, scaled: scaled_pack };
            for jobs in jobs.chunks_mut(TOGETHER) {
                let mut jobs = jobs.iter_mut();
                let products: [_; TOGETHER] = std::array::from_fn(|_| {
                    jobs.next().map(|job| Product {
                        right: Right::Outputs(job.w),
                        first,
                        columns: job.y.len() / m,
                        scales: job.w.product_scales(),
                        bias: job.bias,
                        c: Parts::new(job.y),
                        accumulate: false,
                    })
                });
                if few {
                    cpu::stream(cpu, left, &products);
                } else {
                    cpu::blocks(cpu, left, &products);
                }
            }
        });
    });
}

/// Whether a magnitude of x reaches `bound`; of what is no number yes.
fn exceeds(cpu: &Cpu, x: Source<'_>, bound: f32) -> bool {
    if bound == f32::INFINITY {
        return false;
    }
    let within = match x {
        Source::Rows(x) | Source::Columns(x) => amax(cpu, x) < bound,
        Source::Codes(Codes8 { codes, scales }) => {
            let width = codes.len() / scales.len();
            codes.chunks_exact(width).zip(scales).all(|(row, scale)| {
                let most = row.iter().fold(0, |most, code| most.max(code & 0x7f));
                crate::dtype::e4m3_to_f32(most) * scale < bound
            })
        }
    };
    !within
}

/// dx\[m, k\] = dy\[m, n\] W\[n, k\], or added to dx when `accumulate` says so.
///
/// # Panics
/// When a shape does not fit.
pub fn backward_input(cpu: &Cpu, m: usize, dy: &[f32], w: &Packed, dx: &mut [f32], accumulate: bool) {
    let (n, k) = (w.n(), w.k());
    assert_eq!(dy.len(), m * n, "dy is not [{m}, {n}]");
    assert_eq!(dx.len(), m * k, "dx is not [{m}, {k}]");
    product(cpu, m, n, k, Source::Rows(dy), Right::Inputs(w), 0, dx, accumulate);
}

/// The part of [`backward_input`] that the outputs `first ..` have, dy\[m, n\] being theirs alone. Parts that follow each
/// other in ascending order, all but the first added to dx, leave the bits of the whole.
///
/// # Panics
/// When a shape does not fit or `first` is no multiple of [`PANEL`].
#[allow(clippy::too_many_arguments)]
pub fn backward_input_part(
    cpu: &Cpu,
    m: usize,
    dy: &[f32],
    w: &Packed,
    first: usize,
    dx: &mut [f32],
    accumulate: bool,
) {
    check_part(m, w, first, dy.len());
    assert_eq!(dx.len(), m * w.k(), "dx is not [{m}, {}]", w.k());
    let n = dy.len().checked_div(m).unwrap_or(0);
    product(cpu, m, n, w.k(), Source::Rows(dy), Right::Inputs(w), first / PANEL, dx, accumulate);
}

/// dw\[n, k\] += dy\[m, n\]^T x\[m, k\], row-major.
///
/// # Panics
/// When a shape does not fit.
pub fn backward_weight(cpu: &Cpu, m: usize, n: usize, k: usize, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    assert_eq!(x.len(), m * k, "x is not [{m}, {k}]");
    assert_eq!(dy.len(), m * n, "dy is not [{m}, {n}]");
    assert_eq!(dw.len(), n * k, "dw is not [{n}, {k}]");
    product(cpu, n, m, k, Source::Columns(dy), Right::Rows(x), 0, dw, true);
}

/// One product of f32 `[rows, columns]` over `depth`, with packed weights from panel `first` on.
#[allow(clippy::too_many_arguments)]
fn product(
    cpu: &Cpu,
    rows: usize,
    depth: usize,
    columns: usize,
    left: Source<'_>,
    right: Right<'_>,
    first: usize,
    c: &mut [f32],
    accumulate: bool,
) {
    if rows == 0 || columns == 0 || depth == 0 {
        return;
    }
    let tiling = Tiling::new(rows, kernel::height(cpu.isa()));
    scratch::with::<PLAIN, _>(rows * depth, |pack| {
        tiles::pack(cpu, tiling, depth, left, 1.0, pack);
        let left = Left { tiling, depth, plain: pack, scaled: &[] };
        let product = Product { right, first, columns, scales: Scales::One, bias: None, c: Parts::new(c), accumulate };
        cpu::blocks(cpu, left, &[Some(product)]);
    });
}

/// db\[n\] += sum over m of dy\[m, n\], in ascending order of m.
///
/// # Panics
/// When a shape does not fit.
pub fn backward_bias(cpu: &Cpu, m: usize, n: usize, dy: &[f32], db: &mut [f32]) {
    assert_eq!(dy.len(), m * n, "dy is not [{m}, {n}]");
    assert_eq!(db.len(), n, "db is not [{n}]");
    let parts = Parts::new(db);
    cpu.for_each_if(m * n >= 1 << 16, n.div_ceil(BIAS_COLUMNS), |i| {
        let at = i * BIAS_COLUMNS;
        // SAFETY: each task takes columns of its own.
        let db = unsafe { parts.range(at, BIAS_COLUMNS.min(n - at)) };
        sum_rows(cpu.isa(), dy, n, at, db);
    });
}

by_isa! {
    fn sum_rows(dy: &[f32], n: usize, at: usize, db: &mut [f32]) {
        for row in dy.chunks_exact(n) {
            for (sum, dy) in db.iter_mut().zip(&row[at..]) {
                *sum += dy;
            }
        }
    }
}
