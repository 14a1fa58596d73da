//! Whole sequences as the trainer runs them: prompt and completion side by side in one forward pass, without padding.

use engine::engine::Feed;
use kv::{KvCache, Sequence};
use ptx::kv_tile::Span;

/// A prompt with a completion; the loss is on the completion's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// All ids.
    pub ids: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt: usize,
    /// Which of a run's teachers scores it: 0 is `teacher`, the others are those of `task.teachers` by name.
    pub teacher: usize,
}

impl Row {
    /// A row whose first `prompt` ids are the prompt, for a run's only teacher.
    #[must_use]
    pub fn new(ids: Vec<u32>, prompt: usize) -> Row {
        Row { ids, prompt, teacher: 0 }
    }

    /// A prompt with its completion, for a run's only teacher.
    #[must_use]
    pub fn of(prompt: &[u32], completion: &[u32]) -> Row {
        Row::new([prompt, completion].concat(), prompt.len())
    }

    /// Tokens that the loss is on.
    #[must_use]
    pub fn targets(&self) -> &[u32] {
        &self.ids[self.prompt..]
    }
}

/// Rows laid end to end, with their places in a cache.
#[derive(Debug, Default)]
pub struct Packed {
    /// Ids, `[tokens]`.
    pub ids: Vec<u32>,
    /// Positions, `[tokens]`.
    pub positions: Vec<u32>,
    /// Token rows whose next token is in a completion, in order.
    pub predicting: Vec<usize>,
    /// That next token, by predicting row.
    pub targets: Vec<u32>,
    firsts: Vec<usize>,
    sequences: Vec<Sequence>, // the first `firsts.len()` are in use, the rest wait empty
}

impl Packed {
    /// Lays `rows` out and reserves their places.
    ///
    /// # Panics
    /// When the cache is too small, or a row has no prompt.
    pub fn fill(&mut self, kv: &mut KvCache, rows: &[Row]) {
        self.clear(kv);
        for row in rows {
            assert!(row.prompt > 0 && row.prompt <= row.ids.len(), "a row starts with a prompt");
            let first = self.ids.len();
            self.firsts.push(first);
            self.ids.extend_from_slice(&row.ids);
            self.positions.extend((0..row.ids.len()).map(|p| u32::try_from(p).expect("positions are u32")));
            self.predicting.extend(row.prompt - 1..row.ids.len() - 1);
            let from = self.predicting.len() - row.targets().len();
            for at in &mut self.predicting[from..] {
                *at += first;
            }
            self.targets.extend_from_slice(row.targets());
            let used = self.firsts.len() - 1;
            if used == self.sequences.len() {
                self.sequences.push(kv.sequence(row.ids.len()));
            }
            kv.append(&mut self.sequences[used], row.ids.len()).expect("the trainer's cache was sized for its batch");
        }
    }

    /// Adds the spans of the forward pass to `into`.
    pub fn spans<'a>(&'a self, into: &mut Vec<Span<'a>>) {
        into.extend(self.sequences.iter().zip(&self.firsts).map(|(sequence, &first_row)| Span {
            first_row,
            row_count: sequence.len(),
            first_position: 0,
            block_table: sequence.block_table(),
        }));
    }

    /// The rows as an engine takes them.
    pub fn feeds(&self) -> impl Iterator<Item = Feed<'_>> {
        self.sequences
            .iter()
            .zip(&self.firsts)
            .map(|(sequence, &first)| Feed { sequence, ids: &self.ids[first..first + sequence.len()] })
    }

    /// Gives the places back.
    pub fn clear(&mut self, kv: &mut KvCache) {
        for sequence in &mut self.sequences[..self.firsts.len()] {
            kv.clear(sequence);
        }
        self.ids.clear();
        self.positions.clear();
        self.predicting.clear();
        self.targets.clear();
        self.firsts.clear();
    }
}

/// What a micro-batch may hold; caches and buffers are made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Micro {
    /// Tokens, unless a single row is longer.
    pub tokens: usize,
    /// Rows: each may leave the rest of a page empty.
    pub rows: usize,
}

/// Splits rows into micro-batches within `most` and of one teacher, in order; a row of more tokens stands alone.
#[must_use]
pub fn micro_batches(rows: &[Row], most: Micro) -> Vec<std::ops::Range<usize>> {
    let mut parts = Vec::new();
    let (mut first, mut held) = (0, 0);
    for (i, row) in rows.iter().enumerate() {
        let full = held + row.ids.len() > most.tokens || i - first == most.rows;
        if i > first && (full || row.teacher != rows[first].teacher) {
            parts.push(first..i);
            (first, held) = (i, 0);
        }
        held += row.ids.len();
    }
    if first < rows.len() {
        parts.push(first..rows.len());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_within_both_limits_and_of_one_teacher() {
        let row = |len, teacher| Row { teacher, ..Row::new(vec![1; len], 1) };
        let rows: Vec<Row> = [3, 3, 3, 9, 1, 1, 1, 1].into_iter().map(|len| row(len, 0)).chain([row(1, 1)]).collect();
        let parts = micro_batches(&rows, Micro { tokens: 8, rows: 3 });
        assert_eq!(parts, [0..2, 2..3, 3..4, 4..7, 7..8, 8..9]);
        assert!(micro_batches(&[], Micro { tokens: 8, rows: 3 }).is_empty());
    }
}
