//! What one page of one layer looks like, and how ops are told where a sequence's keys and values are.
//!
//! A page holds `page_len` tokens: all K tiles, one for each kv head, then all V tiles. On the CPU a K tile is
//! dim-major, `[head_dim][page_len]`, so that reading it puts the lanes across keys; a V tile is
//! `[page_len][head_dim]`. Elements are in the machine's byte order and need no alignment.
//!
//! With [`KvScale::Token`] the tiles are followed by exponent bytes, `[kv_heads][page_len]` for K and then for V, each
//! only if that one is 8-bit: byte e says that the token's scale is `2^(e - 127)`, with e from 1 to 254.

use std::ops::Range;

use crate::DType;
use crate::dtype::scale_from_exponent;

/// How the 8-bit keys and values of a layer are scaled; other formats have no scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvScale {
    /// One power of two a kv head for K and one for V, given with the pages.
    Static,
    /// One power of two for each token and kv head, kept in the page as an exponent byte beside the codes.
    Token,
}

/// Shape of one layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Heads of K and V.
    pub kv_heads: usize,
    /// Elements of one head's key or value.
    pub head_dim: usize,
    /// Tokens of a page: a power of two from 1 to 256.
    pub page_len: usize,
    /// Element format of K: f32, bf16, e4m3 or e5m2.
    pub k: DType,
    /// Element format of V: f32, bf16, e4m3 or e5m2.
    pub v: DType,
    /// Scales of K and V where they are 8-bit.
    pub scale: KvScale,
}

impl KvShape {
    /// Bytes of one page: tiles and exponent bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.tiles_bytes() + self.exponent_bytes(self.k) + self.exponent_bytes(self.v)
    }

    /// Where the K tile of `head` in `page` lies in the layer's bytes.
    #[must_use]
    pub fn k_tile(&self, page: u32, head: usize) -> Range<usize> {
        let len = self.tile_bytes(self.k);
        let start = page as usize * self.page_bytes() + head * len;
        start..start + len
    }

    /// Where the V tile of `head` in `page` lies in the layer's bytes.
    #[must_use]
    pub fn v_tile(&self, page: u32, head: usize) -> Range<usize> {
        let len = self.tile_bytes(self.v);
        let start = page as usize * self.page_bytes() + self.kv_heads * self.tile_bytes(self.k) + head * len;
        start..start + len
    }

    /// Where the exponent bytes of the keys of `head` in `page` lie, one for each slot; none where K has no scale for
    /// each token.
    #[must_use]
    pub fn k_exponents(&self, page: u32, head: usize) -> Option<Range<usize>> {
        self.exponents(self.k, self.tiles_bytes(), page, head)
    }

    /// Where the exponent bytes of the values of `head` in `page` lie; none where V has no scale for each token.
    #[must_use]
    pub fn v_exponents(&self, page: u32, head: usize) -> Option<Range<usize>> {
        self.exponents(self.v, self.tiles_bytes() + self.exponent_bytes(self.k), page, head)
    }

    fn exponents(&self, dtype: DType, plane: usize, page: u32, head: usize) -> Option<Range<usize>> {
        let start = page as usize * self.page_bytes() + plane + head * self.page_len;
        self.by_token(dtype).then_some(start..start + self.page_len)
    }

    /// Whether elements of this format have a scale for each token.
    fn by_token(&self, dtype: DType) -> bool {
        self.scale == KvScale::Token && dtype.largest_code().is_some()
    }

    /// Bytes of one head's tile.
    pub(crate) fn tile_bytes(&self, dtype: DType) -> usize {
        self.head_dim * self.page_len * dtype.bytes()
    }

    /// Bytes of all tiles of a page.
    pub(crate) fn tiles_bytes(&self) -> usize {
        self.kv_heads * (self.tile_bytes(self.k) + self.tile_bytes(self.v))
    }

    /// Exponent bytes of a page for K or V, whichever has this format.
    pub(crate) fn exponent_bytes(&self, dtype: DType) -> usize {
        if self.by_token(dtype) { self.kv_heads * self.page_len } else { 0 }
    }
}

/// One layer of the pool, for reading.
#[derive(Clone, Copy, Debug)]
pub struct KvPages<'a> {
    /// Shape of the pages.
    pub shape: KvShape,
    /// Page after page.
    pub bytes: &'a [u8],
    /// Scale of each kv head's keys, a power of two; value = code x scale. Used only when K is 8-bit and
    /// [`KvScale::Static`].
    pub k_scales: &'a [f32],
    /// Scale of each kv head's values, a power of two. Used only when V is 8-bit and [`KvScale::Static`].
    pub v_scales: &'a [f32],
}

/// One layer of the pool, for writing; fields as in [`KvPages`].
pub struct KvPagesMut<'a> {
    /// Shape of the pages.
    pub shape: KvShape,
    /// Page after page.
    pub bytes: &'a mut [u8],
    /// Scale of each kv head's keys.
    pub k_scales: &'a [f32],
    /// Scale of each kv head's values.
    pub v_scales: &'a [f32],
    /// What rounding to 8 bits lost is added here, one entry for each kv head. The codes do not depend on it.
    pub counts: Option<&'a mut [KvCounts]>,
}

/// What was written to 8-bit pages of one kv head; formats of more bits are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Elements of keys.
    pub k: FormatCounts,
    /// Elements of values.
    pub v: FormatCounts,
}

/// How many elements were rounded to an 8-bit format, and how many of them lost more than a rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatCounts {
    /// All, NaN included.
    pub elements: u64,
    /// Infinite, or so large after scaling that rounding would have gone past the largest finite value: beyond 464 in
    /// e4m3, from 61440 in e5m2. They became that value.
    pub saturated: u64,
    /// Not zero, with a code of zero.
    pub underflowed: u64,
}

impl std::ops::AddAssign for FormatCounts {
    fn add_assign(&mut self, other: FormatCounts) {
        self.elements += other.elements;
        self.saturated += other.saturated;
        self.underflowed += other.underflowed;
    }
}

impl std::ops::AddAssign for KvCounts {
    fn add_assign(&mut self, other: KvCounts) {
        self.k += other.k;
        self.v += other.v;
    }
}

/// Consecutive rows of a batch that are consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// First row of the batch.
    pub first_row: usize,
    /// Rows, one for each token.
    pub row_count: usize,
    /// Position of the first of these tokens in its sequence.
    pub first_position: usize,
    /// The sequence's pages in order: position `p` is in slot `p % page_len` of page `block_table[p / page_len]`.
    pub block_table: &'a [u32],
}

impl Span<'_> {
    /// The position after the last of these tokens: how many keys the last one sees.
    #[must_use]
    pub fn end_position(&self) -> usize {
        self.first_position + self.row_count
    }
}

impl KvPages<'_> {
    /// The scale that all key codes of `head` are multiplied by.
    pub(crate) fn k_scale(&self, head: usize) -> f32 {
        scale(&self.shape, self.shape.k, self.k_scales, head)
    }

    /// The scale that all value codes of `head` are multiplied by.
    pub(crate) fn v_scale(&self, head: usize) -> f32 {
        scale(&self.shape, self.shape.v, self.v_scales, head)
    }

    /// The scale of its own that the key in `slot` of `page` has.
    pub(crate) fn k_token_scale(&self, page: u32, head: usize, slot: usize) -> f32 {
        let exponents = self.shape.k_exponents(page, head);
        exponents.map_or(1.0, |range| scale_from_exponent(self.bytes[range][slot]))
    }

    /// The scale of its own that the value in `slot` of `page` has.
    pub(crate) fn v_token_scale(&self, page: u32, head: usize, slot: usize) -> f32 {
        let exponents = self.shape.v_exponents(page, head);
        exponents.map_or(1.0, |range| scale_from_exponent(self.bytes[range][slot]))
    }
}

/// The static scale of a head; 1 where there is none.
pub(crate) fn scale(shape: &KvShape, dtype: DType, scales: &[f32], head: usize) -> f32 {
    if shape.scale == KvScale::Static && dtype.largest_code().is_some() { scales[head] } else { 1.0 }
}

/// Asserts all that ops require of pages and spans; `tokens` is the row count of the batch.
///
/// # Panics
/// When a requirement is broken; the message says which.
pub(crate) fn check(
    shape: &KvShape,
    byte_count: usize,
    k_scales: &[f32],
    v_scales: &[f32],
    spans: &[Span<'_>],
    tokens: usize,
) {
    assert!(
        shape.page_len.is_power_of_two() && shape.page_len <= 256,
        "page_len {} is not a power of two from 1 to 256",
        shape.page_len
    );
    assert!(shape.kv_heads > 0 && shape.head_dim > 0, "pages without heads or dims: {shape:?}");
    for (name, dtype, scales) in [("k", shape.k, k_scales), ("v", shape.v, v_scales)] {
        assert!(dtype != DType::F16, "{name} pages cannot be {dtype}: it must be f32, bf16, e4m3 or e5m2");
        if dtype.largest_code().is_some() && shape.scale == KvScale::Static {
            assert_eq!(scales.len(), shape.kv_heads, "{name} needs one scale for each kv head");
            let good = |s: &f32| s.is_normal() && *s > 0.0 && s.to_bits() & 0x007f_ffff == 0;
            assert!(scales.iter().all(good), "{name} scales must be powers of two: {scales:?}");
        }
    }
    let pages = byte_count / shape.page_bytes();
    let mut row = 0;
    for (index, span) in spans.iter().enumerate() {
        assert!(span.first_row >= row, "span {index} starts in row {}, inside or before the last", span.first_row);
        row = span.first_row + span.row_count;
        assert!(row <= tokens, "span {index} ends at row {row} of {tokens}");
        let need = span.end_position().div_ceil(shape.page_len);
        assert!(need <= span.block_table.len(), "span {index} needs {need} pages, has {}", span.block_table.len());
        for &page in &span.block_table[..need] {
            assert!((page as usize) < pages, "span {index} names page {page} of {pages}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_and_exponents_fill_the_page_without_gap_or_overlap() {
        for (k, v) in [
            (DType::F32, DType::F32),
            (DType::Bf16, DType::E4m3),
            (DType::E4m3, DType::F32),
            (DType::E5m2, DType::E4m3),
        ] {
            for scale in [KvScale::Static, KvScale::Token] {
                let shape = KvShape { kv_heads: 3, head_dim: 48, page_len: 16, k, v, scale };
                let mut at = 0;
                for page in 0..3 {
                    let tiles = (0..3).map(|h| shape.k_tile(page, h)).chain((0..3).map(|h| shape.v_tile(page, h)));
                    let exponents = (0..3).filter_map(|h| shape.k_exponents(page, h));
                    for part in tiles.chain(exponents).chain((0..3).filter_map(|h| shape.v_exponents(page, h))) {
                        assert_eq!(part.start, at, "{shape:?}, page {page}");
                        at = part.end;
                    }
                    assert_eq!(at, (page as usize + 1) * shape.page_bytes());
                }
                let eight = [k, v].iter().filter(|d| d.bytes() == 1 && scale == KvScale::Token).count();
                assert_eq!(shape.page_bytes(), 3 * 16 * (48 * (k.bytes() + v.bytes()) + eight));
            }
        }
    }

    #[test]
    fn broken_contracts_are_refused() {
        let shape =
            KvShape { kv_heads: 2, head_dim: 16, page_len: 4, k: DType::E4m3, v: DType::E4m3, scale: KvScale::Static };
        let good = Span { first_row: 0, row_count: 5, first_position: 0, block_table: &[1, 0] };
        let attempt = |shape: KvShape, scales: &[f32], spans: &[Span<'_>]| {
            let bytes = 2 * shape.page_bytes();
            std::panic::catch_unwind(|| check(&shape, bytes, scales, &[1.0, 0.5], spans, 8)).is_ok()
        };
        assert!(attempt(shape, &[1.0, 0.25], &[good]));
        assert!(!attempt(shape, &[1.0, 0.3], &[good]), "a scale that is no power of two");
        assert!(!attempt(shape, &[1.0], &[good]), "a missing scale");
        assert!(!attempt(KvShape { page_len: 6, ..shape }, &[1.0, 0.25], &[good]), "page_len 6");
        assert!(!attempt(KvShape { k: DType::F16, ..shape }, &[1.0, 0.25], &[good]), "f16 keys");
        assert!(!attempt(KvShape { k: DType::E5m2, ..shape }, &[1.0], &[good]), "a missing scale of e5m2");
        assert!(attempt(KvShape { k: DType::Bf16, ..shape }, &[], &[good]), "bf16 needs no scale");
        assert!(attempt(KvShape { scale: KvScale::Token, v: DType::Bf16, ..shape }, &[], &[good]), "nor do tokens");
        assert!(!attempt(shape, &[1.0, 0.25], &[good, good]), "rows given twice");
        assert!(!attempt(shape, &[1.0, 0.25], &[Span { row_count: 9, ..good }]), "too few rows");
        assert!(!attempt(shape, &[1.0, 0.25], &[Span { first_position: 4, ..good }]), "too few pages");
        assert!(!attempt(shape, &[1.0, 0.25], &[Span { block_table: &[0, 2], ..good }]), "no such page");
    }
}
