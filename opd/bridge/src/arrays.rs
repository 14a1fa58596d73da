//! Views of a block's arrays where they lie: nothing is copied.

use crate::layout::{ALIGN, BLOCK_HEADER};
use crate::meta::{Kind, Meta};

/// Rows of hidden states or logits, in bf16 or f32, each beginning at a multiple of 64 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    stride: usize,
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    /// The bytes of a row; `bytemuck::cast_slice` makes u16 (bf16) or f32 of them.
    #[must_use]
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.stride..][..self.row_bytes]
    }

    /// All rows one after the other, with the gaps of the stride between them.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Rows of hidden states or logits to fill.
#[derive(Debug)]
pub struct RowsMut<'a> {
    bytes: &'a mut [u8],
    stride: usize,
    row_bytes: usize,
}

impl RowsMut<'_> {
    /// The bytes of a row; `bytemuck::cast_slice_mut` makes u16 (bf16) or f32 of them.
    pub fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.bytes[row * self.stride..][..self.row_bytes]
    }

    /// All rows one after the other, with the gaps of the stride between them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// The teacher's scores of a block.
#[derive(Clone, Copy, Debug)]
pub enum Scores<'a> {
    /// Hidden rows or logits `[rows, width]`.
    Dense(Rows<'a>),
    /// The likeliest tokens.
    TopK {
        /// `[rows, k]`.
        ids: &'a [u32],
        /// `[rows, k]`, in nats.
        ln_q: &'a [f32],
        /// ln of the rest of the probability `[rows]`; empty where the block has no tail.
        tail: &'a [f32],
    },
    /// Logprobs of the tokens taken `[rows]`, in nats.
    Sampled(&'a [f32]),
    /// The teacher has none: do not train on these rows.
    Missing,
}

/// The teacher's scores to fill.
#[derive(Debug)]
pub enum ScoresMut<'a> {
    /// Hidden rows or logits `[rows, width]`.
    Dense(RowsMut<'a>),
    /// The likeliest tokens.
    TopK {
        /// `[rows, k]`.
        ids: &'a mut [u32],
        /// `[rows, k]`, in nats.
        ln_q: &'a mut [f32],
        /// ln of the rest of the probability `[rows]`; empty where the block has no tail.
        tail: &'a mut [f32],
    },
    /// Logprobs of the tokens taken `[rows]`, in nats.
    Sampled(&'a mut [f32]),
    /// Nothing to fill.
    Missing,
}

impl<'a> ScoresMut<'a> {
    /// The rows of a hidden or logits block. Panics for another kind.
    #[must_use]
    pub fn dense_mut(self) -> RowsMut<'a> {
        match self {
            ScoresMut::Dense(rows) => rows,
            other => panic!("no dense rows: {other:?}"),
        }
    }

    /// The logprobs of a sampled block. Panics for another kind.
    #[must_use]
    pub fn sampled_mut(self) -> &'a mut [f32] {
        match self {
            ScoresMut::Sampled(logprobs) => logprobs,
            other => panic!("no sampled logprobs: {other:?}"),
        }
    }
}

/// All arrays of a block.
#[derive(Clone, Copy, Debug)]
pub struct Arrays<'a> {
    /// Ids of the tokens taken `[rows]`.
    pub tokens: &'a [u32],
    /// Their logprobs in the rollout `[rows]`, in nats.
    pub logprobs: &'a [f32],
    /// The teacher's log-normalisers `[rows]`, in nats; empty where the block has none.
    pub lse: &'a [f32],
    /// Whether to train on a row, 0 or 1 `[rows]`.
    pub mask: &'a [u8],
    /// Weights version that sampled each row `[rows]`.
    pub versions: &'a [u32],
    /// The teacher's scores.
    pub scores: Scores<'a>,
}

/// All arrays of a block, to fill whole: what is not written is left over from an earlier block.
#[derive(Debug)]
pub struct ArraysMut<'a> {
    /// Ids of the tokens taken `[rows]`.
    pub tokens: &'a mut [u32],
    /// Their logprobs in the rollout `[rows]`, in nats.
    pub logprobs: &'a mut [f32],
    /// The teacher's log-normalisers `[rows]`, in nats; empty where the block has none.
    pub lse: &'a mut [f32],
    /// Whether to train on a row, 0 or 1 `[rows]`.
    pub mask: &'a mut [u8],
    /// Weights version that sampled each row `[rows]`.
    pub versions: &'a mut [u32],
    /// The teacher's scores.
    pub scores: ScoresMut<'a>,
}

fn sizes(meta: &Meta) -> (usize, usize) {
    let size = |bytes: u64| usize::try_from(bytes).expect("fits the slot");
    (size(meta.row_stride()), size(meta.row_bytes()))
}

/// Cuts the arrays out of a slot. `bytes` begins behind the state word.
pub fn split<'a>(meta: &Meta, bytes: &'a [u8]) -> Arrays<'a> {
    let mut at = 0_u64;
    let [tokens, logprobs, lse, mask, versions, first, second, third] = meta.array_bytes().map(|length| {
        let start = usize::try_from(BLOCK_HEADER - 8 + at).expect("fits the slot");
        at = (at + length).next_multiple_of(ALIGN);
        // An absent array may be due behind the end of the slot: an empty one at an aligned place stands for it.
        if length == 0 {
            &bytes[56..56]
        } else {
            &bytes[start..start + usize::try_from(length).expect("fits the slot")]
        }
    });
    let (stride, row_bytes) = sizes(meta);
    let scores = match meta.kind {
        _ if meta.missing => Scores::Missing,
        Kind::Hidden | Kind::Logits => Scores::Dense(Rows { bytes: first, stride, row_bytes }),
        Kind::TopK => Scores::TopK {
            ids: bytemuck::cast_slice(first),
            ln_q: bytemuck::cast_slice(second),
            tail: bytemuck::cast_slice(third),
        },
        Kind::Sampled => Scores::Sampled(bytemuck::cast_slice(first)),
    };
    Arrays {
        tokens: bytemuck::cast_slice(tokens),
        logprobs: bytemuck::cast_slice(logprobs),
        lse: bytemuck::cast_slice(lse),
        mask,
        versions: bytemuck::cast_slice(versions),
        scores,
    }
}

/// Cuts the arrays out of a slot to fill. `bytes` begins behind the state word.
pub fn split_mut<'a>(meta: &Meta, bytes: &'a mut [u8]) -> ArraysMut<'a> {
    let header = usize::try_from(BLOCK_HEADER - 8).expect("small");
    let mut rest = &mut bytes[header..];
    let [tokens, logprobs, lse, mask, versions, first, second, third] = meta.array_bytes().map(|length| {
        let length = usize::try_from(length).expect("fits the slot");
        let padded = length.next_multiple_of(usize::try_from(ALIGN).expect("small")).min(rest.len());
        let (array, behind) = std::mem::take(&mut rest).split_at_mut(padded);
        rest = behind;
        &mut array[..length]
    });
    let (stride, row_bytes) = sizes(meta);
    let scores = match meta.kind {
        _ if meta.missing => ScoresMut::Missing,
        Kind::Hidden | Kind::Logits => ScoresMut::Dense(RowsMut { bytes: first, stride, row_bytes }),
        Kind::TopK => ScoresMut::TopK {
            ids: bytemuck::cast_slice_mut(first),
            ln_q: bytemuck::cast_slice_mut(second),
            tail: bytemuck::cast_slice_mut(third),
        },
        Kind::Sampled => ScoresMut::Sampled(bytemuck::cast_slice_mut(first)),
    };
    ArraysMut {
        tokens: bytemuck::cast_slice_mut(tokens),
        logprobs: bytemuck::cast_slice_mut(logprobs),
        lse: bytemuck::cast_slice_mut(lse),
        mask,
        versions: bytemuck::cast_slice_mut(versions),
        scores,
    }
}
