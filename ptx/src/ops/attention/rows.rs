//! What happens to one row of scores and to its running output.

use super::lanes::GROUP;
use crate::isa::by_isa;
use crate::math::{exp, tree16};

by_isa! {
    /// Scores of `keys` keys to weights in place, `exp(s - largest)`, and their (largest, sum). The rest of the last
    /// vector of 16 becomes zero. Weights are then multiplied by `gain`, a power of two.
    pub(super) fn softmax(scores: &mut [f32], keys: usize, scale: f32, gain: f32) -> (f32, f32) {
        let (scores, _) = scores[..keys.next_multiple_of(GROUP)].as_chunks_mut::<GROUP>();
        // Absent keys get minus infinity: it is never the largest, its exponential is zero, and adding zero to a sum
        // that is not negative changes no bit.
        if !keys.is_multiple_of(GROUP) {
            scores[keys / GROUP][keys % GROUP..].fill(f32::NEG_INFINITY);
        }
        let mut largest = [f32::NEG_INFINITY; GROUP];
        for block in scores.iter_mut() {
            for (s, m) in block.iter_mut().zip(&mut largest) {
                *s *= scale;
                *m = if *s > *m { *s } else { *m };
            }
        }
        let largest = largest.iter().fold(f32::NEG_INFINITY, |m, &s| if s > m { s } else { m });
        let mut sums = [0.0_f32; GROUP];
        for block in scores.iter_mut() {
            for (s, sum) in block.iter_mut().zip(&mut sums) {
                let p = exp(*s - largest);
                *sum += p;
                *s = p * gain;
            }
        }
        (largest, tree16(&sums))
    }
}

by_isa! {
    /// `x = (x * scale) * gain`, element by element.
    pub(super) fn scale_each(row: &mut [f32], scales: &[f32], gain: f32) {
        for (x, &scale) in row.iter_mut().zip(scales) {
            *x = *x * scale * gain;
        }
    }
}

by_isa! {
    /// `O = fma(O, a, o * b)`.
    pub(super) fn combine(total: &mut [f32], chunk: &[f32], a: f32, b: f32) {
        for (t, &o) in total.iter_mut().zip(chunk) {
            *t = t.mul_add(a, o * b);
        }
    }
}

by_isa! {
    /// `out = (O / L) * scale`.
    pub(super) fn finish(total: &[f32], sum: f32, scale: f32, out: &mut [f32]) {
        for (out, &t) in out.iter_mut().zip(total) {
            *out = t / sum * scale;
        }
    }
}
