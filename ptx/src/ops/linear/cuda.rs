//! The products on a CUDA device.
//!
//! order: k is cut into parts of `128 ceil(k / 1024)`, so 8 at most, by k alone. A part is one chain of matrix
//! instructions over ascending k, from +0.0. With scales by block, or with weights and inputs both e4m3, it is one such
//! chain for each 128 of k instead, and `part = fma(chain, scale, part)` over ascending chains, with the block's scale or
//! 1. The parts are added in ascending order. Then, each rounded by itself: times the scale of the row of x; times the
//!    scale of the output; plus the bias; and with [`Epilogue::Add`] y plus all that.
//!
//! Inside one matrix instruction the order is the hardware's. Which kernel runs, how many rows there are and where a row
//! lies among them shows in no bit: each row sees the same instructions in the same order.
//!
//! e4m3 weights meet bf16 inputs, and bf16 weights e4m3 inputs, as bf16, which is exact. Where both are e4m3, devices of
//! 8.9 and later multiply codes; older ones widen both, and their bits may differ from those.
//! range: sums of products of codes within f32.

pub use super::weights::Weights;

use super::WeightScale;
use super::weights::TILE_ROWS;
use crate::DType;
use crate::cuda::{Arg, CudaError, Gpu, Kernel, Launch, View};

/// Parts of k at most, and warps of a block.
const PARTS: usize = 8;
/// Rows up to which the weights stream once.
const FEW_ROWS: usize = 64;

/// Rows of x, `[rows, k]` without gaps.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// bf16 bits.
    Bf16(View<u16>),
    /// e4m3 codes with a power-of-two scale for each row, NaN for a row that was not finite.
    E4m3 {
        /// `[rows, k]`.
        codes: View<u8>,
        /// `[rows]`.
        scales: View<f32>,
    },
}

/// What becomes of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// y is the result.
    Write,
    /// y plus the result, as for the residual stream.
    Add,
}

/// Inputs of one part of k: see the order above.
#[must_use]
pub fn part_len(k: usize) -> usize {
    128 * k.div_ceil(128 * PARTS)
}

/// y = x W^T, scaled, plus bias: `[rows, n]` with `y_stride` elements from row to row.
///
/// Any k and n work. Rows of a multiple of 8 values (16 for e4m3 codes) on addresses of a multiple of 16 bytes go fast;
/// others are read value by value.
///
/// # Panics
/// When a view is too short for the shape or `y_stride` for n.
pub fn forward(
    gpu: &Gpu,
    rows: usize,
    x: Input,
    w: &Weights,
    y: View<f32>,
    y_stride: usize,
    epilogue: Epilogue,
) -> Result<(), CudaError> {
    if rows == 0 {
        return Ok(());
    }
    let (n, k) = (w.n(), w.k());
    let (address, len, x_scales) = match x {
        Input::Bf16(x) => (x.address(), x.len(), None),
        Input::E4m3 { codes, scales } => {
            assert!(scales.len() >= rows, "{} scales for {rows} rows of x", scales.len());
            (codes.address(), codes.len(), Some(scales))
        }
    };
    assert!(len >= rows * k, "x of {len} is not [{rows}, {k}]");
    assert!(y_stride >= n, "rows of {n} every {y_stride}");
    assert!(y.len() >= (rows - 1) * y_stride + n, "y of {} has no {rows} rows of {n} every {y_stride}", y.len());

    let plan = Plan::new(Format::new(w, x), rows, n, k, address);
    let by_block = w.granularity() == Some(WeightScale::Block128);
    let flags = u32::from(epilogue == Epilogue::Add) | u32::from(by_block) << 1;
    let or_null = |view: Option<View<f32>>| Arg::Pointer(view.map_or(0, |view| view.address()));
    let args = [
        y.into(),
        Arg::Pointer(address),
        or_null(x_scales),
        w.codes().into(),
        or_null(w.scales()),
        or_null(w.bias()),
        narrow(rows).into(),
        narrow(n).into(),
        narrow(k).into(),
        narrow(y_stride).into(),
        flags.into(),
    ];
    gpu.launch(Kernel { op: "linear", entry: plan.entry }, plan.launch, &args)
}

/// Which kernels multiply what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    weights: DType,
    by_block: bool,
    input: DType,
}

impl Format {
    fn new(w: &Weights, x: Input) -> Format {
        let input = if matches!(x, Input::Bf16(_)) { DType::Bf16 } else { DType::E4m3 };
        Format { weights: w.dtype(), by_block: w.granularity() == Some(WeightScale::Block128), input }
    }

    /// One chain for each 128 of k.
    fn is_chained(self) -> bool {
        self.weights == DType::E4m3 && (self.by_block || self.input == DType::E4m3)
    }

    /// Kernels for 8, 16, 32, 64 and many rows, and for any alignment.
    fn entries(self) -> [&'static str; 6] {
        macro_rules! entries {
            ($name:literal) => {
                [
                    concat!("linear_", $name, "_8"),
                    concat!("linear_", $name, "_16"),
                    concat!("linear_", $name, "_32"),
                    concat!("linear_", $name, "_64"),
                    concat!("linear_", $name, "_many"),
                    concat!("linear_", $name, "_ragged"),
                ]
            };
        }
        match (self.weights, self.by_block, self.input) {
            (DType::Bf16, _, DType::Bf16) => entries!("bf16_bf16"),
            (DType::Bf16, ..) => entries!("bf16_e4m3"),
            (_, _, DType::E4m3) => entries!("e4m3_e4m3"),
            (_, false, _) => entries!("e4m3_bf16"),
            (_, true, _) => entries!("e4m3_block_bf16"),
        }
    }
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    entry: &'static str,
    launch: Launch,
}

impl Plan {
    fn new(format: Format, rows: usize, n: usize, k: usize, address: u64) -> Plan {
        let [to_8, to_16, to_32, to_64, many, ragged] = format.entries();
        let tiles = n.div_ceil(TILE_ROWS);
        let parts = k.div_ceil(part_len(k));
        // Column tiles of 8 rows of x and tiles of outputs of a block, as in few.cuh.
        let few = |entry, columns: usize, outputs: usize, y: usize| {
            let together = if columns * outputs <= 8 { columns } else { 8 / outputs };
            let shared = 512 * outputs * together * parts + 128 * outputs + 32 * columns;
            let grid = [narrow(tiles.div_ceil(outputs)), narrow(y), 1];
            Plan { entry, launch: Launch { grid, threads: narrow(32 * parts), shared_bytes: narrow(shared) } }
        };
        let run = if format.input == DType::Bf16 { 8 } else { 16 };
        if !k.is_multiple_of(run) || !address.is_multiple_of(16) {
            return few(ragged, 1, 1, rows.div_ceil(8));
        }
        let rare = format.weights == DType::Bf16 && format.input == DType::E4m3;
        match rows {
            ..=8 => few(to_8, 1, 1, 1),
            ..=16 if !rare => few(to_16, 2, 1, 1),
            ..=32 if !rare => few(to_32, 4, 2, 1),
            ..=FEW_ROWS if !rare => few(to_64, 8, if format.is_chained() { 2 } else { 4 }, 1),
            _ => {
                let columns = if format.is_chained() { 4 } else { 8 };
                let grid = [narrow(rows.div_ceil(16 * columns)), narrow(n.div_ceil(128)), 1];
                Plan { entry: many, launch: Launch { grid, threads: 256, shared_bytes: narrow(6144 * columns) } }
            }
        }
    }
}

fn narrow(x: usize) -> u32 {
    u32::try_from(x).expect("shapes of a launch fit 32 bits")
}
