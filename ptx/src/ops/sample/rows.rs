//! Many rows at a time: rows are independent, so threads share them, and each is what [`draw`] gives alone.

use super::{Params, SampleError, Sampled, draw};
use crate::Cpu;
use crate::parallel::Parts;

/// How one row is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowDraw {
    /// Its distribution.
    pub params: Params,
    /// Its number in [0, 1).
    pub uniform: f32,
}

/// What became of one row; `None` before it was drawn.
pub type Drawn = Option<Result<Sampled, SampleError>>;

/// Columns below which threads cost more than they bring.
const SHARE_FROM: usize = 1 << 14;

/// Draws one token from each row of `logits` `[rows, vocab]`, of whose columns the first `valid` are real, into `out`
/// `[rows]`.
///
/// # Panics
/// When shapes disagree, `valid` is not from 1 to `vocab`, or a uniform is out of range.
pub fn draw_rows(cpu: &Cpu, vocab: usize, valid: usize, logits: &[f32], rows: &[RowDraw], out: &mut [Drawn]) {
    assert_eq!(logits.len(), rows.len() * vocab, "logits are not [{}, {vocab}]", rows.len());
    assert_eq!(out.len(), rows.len(), "one result a row");
    assert!(valid > 0 && valid <= vocab, "{valid} real ids of {vocab}");
    let out = Parts::new(out);
    cpu.for_each_if(rows.len() * valid >= SHARE_FROM, rows.len(), |i| {
        // SAFETY: each task takes the result of its own row.
        let out = unsafe { out.range(i, 1) };
        let row = &logits[i * vocab..][..valid];
        out[0] = Some(draw(cpu.isa(), &rows[i].params, row, rows[i].uniform));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::rng::{Purpose, Stream};

    #[test]
    fn rows_are_drawn_as_each_alone() {
        let (vocab, valid, count) = (3001, 2990, 9);
        let mut stream = Stream::new(4, Purpose::Test, 0);
        let mut logits: Vec<f32> = (0..count * vocab).map(|_| 3.0 * stream.normal()).collect();
        logits[5 * vocab + 17] = f32::NAN;
        logits[6 * vocab + valid] = f32::NAN; // padding
        let settings = [
            Params::default(),
            Params { temperature: 0.0, ..Params::default() },
            Params { temperature: 0.7, top_p: 0.9, ..Params::default() },
        ];
        let rows: Vec<RowDraw> =
            (0..count).map(|i| RowDraw { params: settings[i % 3], uniform: stream.uniform() }).collect();
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let mut out = vec![None; count];
                draw_rows(&Cpu::with_isa(threads, isa), vocab, valid, &logits, &rows, &mut out);
                for (i, (out, row)) in out.iter().zip(&rows).enumerate() {
                    let want = draw(Isa::Portable, &row.params, &logits[i * vocab..][..valid], row.uniform);
                    match (out.as_ref().expect("drawn"), &want) {
                        (Ok(got), Ok(want)) => assert_eq!(got, want, "row {i}"),
                        (Err(_), Err(_)) => assert_eq!(i, 5),
                        other => panic!("row {i}: {other:?}"),
                    }
                }
            }
        }
    }
}
