//! Single codes, where every operation of a kernel can be followed: the CPU knows the bits.

use super::sequences::{How, Part, Sequences};
use crate::DType::{self, Bf16, E4m3, E5m2};
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu};
use crate::dtype::{e4m3_to_f32, e5m2_to_f32, f16_from_f32, f16_to_f32, round_bf16};
use crate::kv_tile::{KvScale::Static, KvShape};
use crate::math::exp;

/// One key: the output is its value, exactly, whatever its code. Every code stands in some value.
pub(super) fn value_codes(gpu: &Gpu, case: &mut Case<'_>) -> Result<(), CudaError> {
    for (dtype, value) in [(E4m3, e4m3_to_f32 as fn(u8) -> f32), (E5m2, e5m2_to_f32)] {
        let shape = KvShape { kv_heads: 2, head_dim: 128, page_len: 1, k: E4m3, v: dtype, scale: Static };
        let mut all = Sequences::new(2, shape, &[1], 1);
        all.append(&[1]);
        let page = all.tables[0][0];
        for code in 0..=u8::MAX {
            let head = usize::from(code) / 128;
            let tile = shape.v_tile(page, head);
            all.bytes[tile][usize::from(code) % 128] = code;
        }
        let on = all.upload(gpu)?;
        let (got, _) = all.run(gpu, &on, &[(0, 0, 1)], How::Together)?;
        // Infinity comes out as NaN: a sum of values that is not finite is.
        let want = (0..=u8::MAX).map(|code| value(code) * all.scales[usize::from(code) / 128]);
        let want: Vec<f32> = want.map(|x| if x.is_finite() { x + 0.0 } else { f32::NAN }).collect(); // -0 becomes 0
        case.same_bits(&format!("{dtype}"), &got, &want);
    }
    Ok(())
}

/// The sum of the parts that a weight is split into beside values of this format.
fn parts(v: DType, p: f32) -> f32 {
    if v == Bf16 {
        let high = round_bf16(p);
        return high + round_bf16(p - high);
    }
    let (p, f16) = (p * 16_384.0, |x: f32| f16_to_f32(f16_from_f32(x)));
    let high = f16(p);
    (high + f16(p - high)) / 16_384.0
}

/// Two keys, zero and one of a single code c: with values 0 and 1 (or a code of 1) the output is the logistic function of c's score. The
/// query and the weights have more digits than one of their parts holds. `rows` 2 has the first key's query in the tile too.
pub(super) fn key_codes(
    gpu: &Gpu,
    head_dim: usize,
    heads: usize,
    rows: usize,
    case: &mut Case<'_>,
) -> Result<(), CudaError> {
    let query = 1.0 + 2.0_f32.powi(-9) + 2.0_f32.powi(-13);
    // All codes where it is cheap, elsewhere some of every exponent.
    let codes: Vec<u8> =
        (0..=u8::MAX).filter(|c| (head_dim, heads) == (16, 1) || c % 11 == 5 || c % 128 == 127).collect();
    for (k, v, value, scale) in [
        (E4m3, Bf16, e4m3_to_f32 as fn(u8) -> f32, 2.0_f32.powi(-6)),
        (E5m2, E4m3, e5m2_to_f32, 2.0_f32.powi(-13)),
        // bf16 holds those numbers too.
        (Bf16, E5m2, e4m3_to_f32, 2.0_f32.powi(-6)),
    ] {
        let shape = KvShape { kv_heads: 1, head_dim, page_len: 4, k, v, scale: Static };
        let mut all = Sequences::new(heads, shape, &vec![2; codes.len()], 1);
        all.scales = vec![scale];
        let one = if v == Bf16 { 1.0 } else { scale }; // a value whose code is 1
        let softmax_scale = all.attention().softmax_scale;
        let at = |code: u8| usize::from(code) * 5 % head_dim;
        for (index, &code) in codes.iter().enumerate() {
            all.k[index].fill(0.0);
            all.k[index][head_dim + at(code)] = value(code) * scale;
            all.v[index].fill(0.0);
            all.v[index][head_dim..].fill(one);
            all.q[index].fill(0.0);
            all.q[index].chunks_exact_mut(head_dim).for_each(|q| q[at(code)] = 4.0 * query);
        }
        all.append(&vec![2; codes.len()]);
        for (index, &code) in codes.iter().enumerate().filter(|_| k != Bf16) {
            let tile = shape.k_tile(all.tables[index][0], 0);
            all.bytes[tile][at(code) * 4 + 1] = code;
        }
        let on = all.upload(gpu)?;
        let batch: Vec<Part> = (0..codes.len()).map(|i| (i, 2 - rows, rows)).collect();
        let (got, _) = all.run(gpu, &on, &batch, How::Together)?;
        let factor = if k == Bf16 { 1.0 } else { scale } * softmax_scale;
        let scaled = if k == Bf16 { scale } else { 1.0 };
        for (got, &code) in got.chunks_exact(rows * heads * head_dim).zip(&codes) {
            // Nothing writes the codes of infinity; what comes of them is open.
            if value(code).is_infinite() {
                continue;
            }
            // The products of both parts of the query with the code are exact, and so is their sum.
            let score = 4.0 * query * (value(code) * scaled) * factor;
            let largest = score.max(0.0);
            let (p0, p1) = (exp(0.0 - largest), exp(score - largest));
            let want = parts(v, p1) / (p0 + p1) * one;
            let got = &got[(rows - 1) * heads * head_dim..];
            case.same_bits(&format!("{k} and {v}, code {code:#04x}"), got, &vec![want; got.len()]);
        }
    }
    Ok(())
}
