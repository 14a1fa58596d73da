//! What a block says about itself, and its header of 128 bytes.

use crate::error::{BlockError, MetaError};
use crate::layout::{ALIGN, BLOCK_HEADER, BLOCK_MAGIC, aligned, get_u32, get_u64, put};

/// What the teacher's scores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows of the teacher's last norm `[rows, width]`; the learner applies the teacher's head.
    Hidden = 1,
    /// Logits `[rows, width]`, width the vocabulary.
    Logits = 2,
    /// Ids and ln q of the `width` likeliest tokens of a row.
    TopK = 3,
    /// The teacher's logprob of the token taken.
    Sampled = 4,
}

/// How hidden rows and logits are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// The upper half of an f32.
    Bf16 = 1,
    /// 32 bits.
    F32 = 2,
}

/// A block without its arrays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meta {
    /// What the scores are.
    pub kind: Kind,
    /// How they are stored; f32 for top-k and sampled scores.
    pub dtype: Dtype,
    /// Rows, one a token.
    pub rows: u32,
    /// Elements of a row: hidden size, vocabulary, k, or 1.
    pub width: u32,
    /// Whether rows have the teacher's log-normaliser.
    pub lse: bool,
    /// Whether top-k rows have ln of the rest of the probability.
    pub tail: bool,
    /// The teacher has no score of these rows: no arrays of scores, and nothing to train on.
    pub missing: bool,
    /// Which sequence the rows are from.
    pub sequence_uid: u64,
    /// Position of the first row in its sequence.
    pub first_position: u64,
    /// Hash of the prompt's ids.
    pub prompt_hash: u64,
    /// Hash of the teacher's weights.
    pub teacher_hash: u64,
    /// Least and greatest weights version among the rows; made from the rows when a block is published.
    pub versions: (u32, u32),
    /// Of the rollout.
    pub temperature: f32,
    /// Which head makes logits of hidden rows, as the peers agreed.
    pub head_descriptor: u32,
}

impl Meta {
    /// One row of width 1, in bf16 with log-normalisers for hidden rows and logits, in f32 without for the others; all
    /// else 0, and temperature 1.
    #[must_use]
    pub fn new(kind: Kind) -> Meta {
        let dense = matches!(kind, Kind::Hidden | Kind::Logits);
        Meta {
            kind,
            dtype: if dense { Dtype::Bf16 } else { Dtype::F32 },
            rows: 1,
            width: 1,
            lse: dense,
            tail: false,
            missing: false,
            sequence_uid: 0,
            first_position: 0,
            prompt_hash: 0,
            teacher_hash: 0,
            versions: (0, 0),
            temperature: 1.0,
            head_descriptor: 0,
        }
    }

    /// Bytes of a row of hidden states or logits, without the gap behind it.
    pub(crate) fn row_bytes(&self) -> u64 {
        u64::from(self.width) * if self.dtype == Dtype::Bf16 { 2 } else { 4 }
    }

    /// Bytes from row to row of hidden states or logits; 0 for the other kinds.
    #[must_use]
    pub fn row_stride(&self) -> u64 {
        let dense = matches!(self.kind, Kind::Hidden | Kind::Logits);
        if dense { self.row_bytes().next_multiple_of(ALIGN) } else { 0 }
    }

    /// Bytes of all arrays and the gaps between them: where a block ends, less its header.
    ///
    /// # Errors
    /// The block cannot be.
    pub fn payload_bytes(&self) -> Result<u64, MetaError> {
        self.check()?;
        let end = self.array_bytes().into_iter().try_fold(0_u64, |end, bytes| match bytes {
            0 => Some(end),
            bytes => aligned(end)?.checked_add(bytes),
        });
        end.ok_or(self.too_large(u64::MAX, u64::MAX))
    }

    /// Bytes of each array in the order of the file; 0 for one that is absent.
    pub(crate) fn array_bytes(&self) -> [u64; 8] {
        let rows = u64::from(self.rows);
        let when = |present: bool, bytes: u64| if present { bytes } else { 0 };
        let (scored, top_k) = (!self.missing, self.kind == Kind::TopK && !self.missing);
        [
            4 * rows,
            4 * rows,
            when(self.lse, 4 * rows),
            rows,
            4 * rows,
            // Rows of hidden states or logits, ids of top-k, or sampled logprobs.
            when(
                scored,
                match self.kind {
                    Kind::Hidden | Kind::Logits => rows.saturating_mul(self.row_stride()),
                    Kind::TopK => 4_u64.saturating_mul(rows * u64::from(self.width)),
                    Kind::Sampled => 4 * rows,
                },
            ),
            when(top_k, 4_u64.saturating_mul(rows * u64::from(self.width))),
            when(top_k && self.tail, 4 * rows),
        ]
    }

    fn check(&self) -> Result<(), MetaError> {
        let Meta { rows, width, .. } = *self;
        let dense = matches!(self.kind, Kind::Hidden | Kind::Logits);
        if rows == 0 || width == 0 {
            return Err(MetaError::Empty { rows, width });
        }
        if self.kind == Kind::Sampled && width != 1 {
            return Err(MetaError::SampledWidth { width });
        }
        if !dense && self.dtype != Dtype::F32 {
            return Err(MetaError::Dtype);
        }
        if self.tail && self.kind != Kind::TopK {
            return Err(MetaError::Tail);
        }
        // The header has 32 bits for the stride.
        if self.row_stride() > u64::from(u32::MAX) {
            return Err(self.too_large(u64::MAX, u64::MAX));
        }
        Ok(())
    }

    fn too_large(&self, needs: u64, slot_bytes: u64) -> MetaError {
        MetaError::TooLarge { rows: self.rows, width: self.width, needs, slot_bytes }
    }

    /// Bytes of the payload, checked against a slot.
    pub(crate) fn fits(&self, slot_bytes: u64) -> Result<u64, MetaError> {
        let payload = self.payload_bytes()?;
        let needs = payload.saturating_add(BLOCK_HEADER);
        if needs > slot_bytes { Err(self.too_large(needs, slot_bytes)) } else { Ok(payload) }
    }
}

/// Offset of a header's field in what a slot's owner sees: all but the state word.
const fn at(offset: usize) -> usize {
    offset - 8
}

const CHECKED: usize = at(124);

/// Writes a block's header; `bytes` begins behind the state word, and its arrays are in place.
pub fn encode(meta: &Meta, number: u64, epoch: u32, payload_bytes: u64, bytes: &mut [u8]) {
    let start = at(128);
    let end = start + usize::try_from(payload_bytes).expect("fits the slot");
    let crc = crc32c::crc32c(&bytes[start..end]);
    bytes[..start].fill(0);
    put(bytes, at(8), number.to_ne_bytes());
    put(bytes, at(16), BLOCK_MAGIC.to_ne_bytes());
    put(bytes, at(20), epoch.to_ne_bytes());
    put(bytes, at(24), [meta.kind as u8, meta.dtype as u8]);
    let flags = u16::from(meta.lse) | u16::from(meta.tail) << 1 | u16::from(meta.missing) << 2;
    put(bytes, at(26), flags.to_ne_bytes());
    put(bytes, at(28), meta.rows.to_ne_bytes());
    put(bytes, at(32), meta.width.to_ne_bytes());
    put(bytes, at(36), u32::try_from(meta.row_stride()).expect("checked").to_ne_bytes());
    put(bytes, at(40), meta.sequence_uid.to_ne_bytes());
    put(bytes, at(48), meta.first_position.to_ne_bytes());
    put(bytes, at(56), meta.prompt_hash.to_ne_bytes());
    put(bytes, at(64), meta.teacher_hash.to_ne_bytes());
    put(bytes, at(72), meta.versions.0.to_ne_bytes());
    put(bytes, at(76), meta.versions.1.to_ne_bytes());
    put(bytes, at(80), meta.temperature.to_ne_bytes());
    put(bytes, at(84), meta.head_descriptor.to_ne_bytes());
    put(bytes, at(88), payload_bytes.to_ne_bytes());
    put(bytes, at(96), crc.to_ne_bytes());
    let crc = crc32c::crc32c(&bytes[..CHECKED]);
    put(bytes, at(124), crc.to_ne_bytes());
}

/// Reads and checks a whole block; gives its meta and the producer's epoch.
pub fn decode(bytes: &[u8], number: u64, slot_bytes: u64) -> Result<(Meta, u32), BlockError> {
    let (expected, found) = (crc32c::crc32c(&bytes[..CHECKED]), get_u32(bytes, at(124)));
    if expected != found {
        return Err(BlockError::HeaderChecksum { found, expected });
    }
    if get_u64(bytes, at(8)) != number {
        return Err(BlockError::Number { found: get_u64(bytes, at(8)) });
    }
    let field = |field, found: u64| BlockError::Field { field, found };
    if get_u32(bytes, at(16)) != BLOCK_MAGIC {
        return Err(field("magic", get_u32(bytes, at(16)).into()));
    }
    let kind = match bytes[at(24)] {
        1 => Kind::Hidden,
        2 => Kind::Logits,
        3 => Kind::TopK,
        4 => Kind::Sampled,
        other => return Err(field("payload kind", other.into())),
    };
    let dtype = match bytes[at(25)] {
        1 => Dtype::Bf16,
        2 => Dtype::F32,
        other => return Err(field("dtype", other.into())),
    };
    let flags = u16::from_ne_bytes([bytes[at(26)], bytes[at(27)]]);
    if flags > 7 {
        return Err(field("flags", flags.into()));
    }
    let meta = Meta {
        kind,
        dtype,
        rows: get_u32(bytes, at(28)),
        width: get_u32(bytes, at(32)),
        lse: flags & 1 != 0,
        tail: flags & 2 != 0,
        missing: flags & 4 != 0,
        sequence_uid: get_u64(bytes, at(40)),
        first_position: get_u64(bytes, at(48)),
        prompt_hash: get_u64(bytes, at(56)),
        teacher_hash: get_u64(bytes, at(64)),
        versions: (get_u32(bytes, at(72)), get_u32(bytes, at(76))),
        temperature: f32::from_bits(get_u32(bytes, at(80))),
        head_descriptor: get_u32(bytes, at(84)),
    };
    let (expected, found) = (meta.fits(slot_bytes)?, get_u64(bytes, at(88)));
    if found != expected {
        return Err(BlockError::PayloadBytes { found, expected });
    }
    let stride = u64::from(get_u32(bytes, at(36)));
    if stride != meta.row_stride() {
        return Err(field("row stride", stride));
    }
    let end = at(128) + usize::try_from(expected).expect("fits the slot");
    let (expected, found) = (crc32c::crc32c(&bytes[at(128)..end]), get_u32(bytes, at(96)));
    if expected != found {
        return Err(BlockError::PayloadChecksum { found, expected });
    }
    let mask = crate::arrays::split(&meta, bytes).mask;
    if let Some(row) = mask.iter().position(|&mask| mask > 1) {
        return Err(BlockError::Mask { row, found: mask[row] });
    }
    Ok((meta, get_u32(bytes, at(20))))
}
