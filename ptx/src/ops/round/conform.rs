//! On a CUDA device: the CPU's codes and scales. NaN is 0x7fff in bf16 and, as a code, NaN of either sign.

use super::cases::{LENGTHS, ROWS};
use super::{cuda, e4m3_rows};
use crate::Cpu;
use crate::conformance::Outcome;
use crate::conformance::data::normals;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};
use crate::dtype::{bf16_from_f32, e4m3_to_f32};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for &len in LENGTHS {
        bf16(gpu, &format!("bf16, {len} elements"), &normals(1, len), each)?;
    }
    // Every 2^14-th float, and the neighbours of every one's midpoint to the next bf16.
    let floats =
        (0..1_u32 << 16).flat_map(|high| [0, 0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(high << 16 | low)));
    bf16(gpu, "bf16, every value and midpoint", &floats.collect::<Vec<f32>>(), each)?;
    for &(rows, width) in ROWS {
        let mut x = normals(2, rows * width);
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            let size = [1.0, 1e-42, 0.0, 3e37, 1e-30, 448.0][row % 6];
            x.iter_mut().for_each(|x| *x *= size);
            if row % 7 == 6 {
                x[width / 2] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][row % 3];
            }
        }
        codes(gpu, &format!("e4m3, [{rows}, {width}]"), width, &x, each)?;
    }
    codes(gpu, "e4m3, as wide as fits registers", 12_288, &normals(3, 2 * 12_288), each)?;
    // The largest is in another warp's columns in every row, and all else is subnormal or just above it.
    let mut x = normals(4, 16 * 12_288);
    for (row, x) in x.chunks_exact_mut(12_288).enumerate() {
        x.iter_mut().for_each(|x| *x *= 0.01);
        x[row * 128 % 1024 + 5 + row / 8 * 1024] = -448.0;
    }
    codes(gpu, "e4m3, one large value among subnormals", 12_288, &x, each)?;
    codes(gpu, "e4m3, just wider", 12_292, &normals(3, 12_292), each)?;
    codes(gpu, "e4m3, every code, midpoint and neighbour", 8, &edges(), each)
}

/// Rows of 8 with the largest magnitude 448, so with the scale 1: every code's value, the midpoints between codes and the
/// floats beside them, of both signs; then rows whose largest magnitude is just at and above powers of two times 448.
fn edges() -> Vec<f32> {
    let mut values: Vec<f32> = (0..=0x7e_u8).map(e4m3_to_f32).collect();
    for code in 0..0x7e_u8 {
        let mid = (e4m3_to_f32(code) + e4m3_to_f32(code + 1)) / 2.0;
        values.extend([mid, mid.next_up(), mid.next_down()]);
    }
    values.extend([f32::MIN_POSITIVE, 1e-45, 1e-40, 2.0_f32.powi(-11)]);
    values.extend(values.clone().iter().map(|x| -x));
    let mut x = vec![];
    for values in values.chunks(7) {
        let mut row = [0.0; 8];
        row[..values.len()].copy_from_slice(values);
        row[7] = 448.0;
        x.extend(row);
    }
    for exponent in [-149, -140, -135, -134, -127, -118, -20, 0, 30, 100, 118] {
        #[allow(clippy::cast_possible_truncation)] // an edge in f32
        let edge = (448.0 * 2.0_f64.powi(exponent)) as f32;
        for top in [edge, edge.next_up(), edge.next_down()] {
            x.extend([top, -top, top / 2.0, top / 3.0, top / 1000.0, 0.0, -0.0, top / 17.0]);
        }
    }
    x
}

fn bf16(gpu: &Gpu, name: &str, x: &[f32], each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let from = Guarded::of(gpu, x)?;
    for skip in [0, 1].into_iter().filter(|&skip| skip <= x.len()) {
        let mut case = Case::new("round", format!("{name}, from {skip}"), each);
        let (y, n) = (Guarded::new(gpu, x.len())?, x.len() - skip);
        cuda::bf16(gpu, n, from.view().part(skip, n), y.view().part(skip, n))?;
        let want = x[skip..].iter().map(|x| if x.is_nan() { 0x7fff } else { bf16_from_f32(*x) });
        let (got, guards) = y.take(gpu)?;
        case.fail("bf16", guards);
        case.equal("bf16", &got[skip..], &want.collect::<Vec<u16>>());
        case.end();
    }
    Ok(())
}

fn codes(gpu: &Gpu, name: &str, width: usize, x: &[f32], each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let rows = x.len() / width;
    let (mut want, mut want_scales) = (vec![0; x.len()], vec![0.0; rows]);
    e4m3_rows(&Cpu::new(1), width, x, &mut want, &mut want_scales);
    let mut case = Case::new("round", name.to_string(), each);
    let (from, to, scales) = (Guarded::of(gpu, x)?, Guarded::new(gpu, x.len())?, Guarded::new(gpu, rows)?);
    cuda::e4m3_rows(gpu, rows, width, from.view(), to.view(), scales.view())?;
    let (got, guards) = to.take(gpu)?;
    case.fail("codes", guards);
    let unsigned_nan =
        |codes: Vec<u8>| -> Vec<u8> { codes.into_iter().map(|c| if c & 0x7f == 0x7f { 0x7f } else { c }).collect() };
    case.equal("codes", &unsigned_nan(got), &unsigned_nan(want));
    let (got, guards) = scales.take(gpu)?;
    case.fail("scales", guards);
    case.same_bits("scales", &got, &want_scales);
    case.end();
    Ok(())
}
