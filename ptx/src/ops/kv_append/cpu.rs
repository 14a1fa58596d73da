//! One task for each kv head: heads own their tiles, exponent bytes and counts, whatever the spans are. A token's row is
//! encoded with the lanes across dims and then laid into the dim-major K tile.

use crate::dtype::{scale_exponent, scale_from_exponent};
use crate::element::{Bf16, E4m3, E5m2, Element, Element8, F32};
use crate::isa::by_isa;
use crate::kv_tile::{FormatCounts, KvPagesMut, Span, scale};
use crate::parallel::Parts;
use crate::{Cpu, DType};

/// Elements below which threads cost more than they bring.
const SHARE_FROM: usize = 1 << 14;
/// Dims encoded at a time.
const BLOCK: usize = 64;

pub(super) fn forward(cpu: &Cpu, pages: &mut KvPagesMut<'_>, spans: &[Span<'_>], k: &[f32], v: &[f32]) {
    let shape = pages.shape;
    let (dims, page_len) = (shape.head_dim, shape.page_len);
    let width = shape.kv_heads * dims;
    let (k_scales, v_scales) = (pages.k_scales, pages.v_scales);
    let bytes = Parts::new(pages.bytes);
    let counts = pages.counts.as_deref_mut().map(Parts::new);
    let rows: usize = spans.iter().map(|s| s.row_count).sum();
    cpu.for_each_if(rows * width >= SHARE_FROM, shape.kv_heads, |head| {
        let k_scale = scale(&shape, shape.k, k_scales, head);
        let v_scale = scale(&shape, shape.v, v_scales, head);
        // SAFETY: each task takes the entry of its own head, once.
        let mut counts = counts.as_ref().map(|counts| unsafe { counts.range(head, 1) });
        for span in spans {
            let mut done = 0;
            while done < span.row_count {
                let position = span.first_position + done;
                let (page, slot) = (span.block_table[position / page_len], position % page_len);
                let run = (page_len - slot).min(span.row_count - done);
                let at = (span.first_row + done) * width + head * dims;
                let mut counts = counts.as_deref_mut().map(|counts| &mut counts[0]);
                let part = |range: std::ops::Range<usize>| {
                    // SAFETY: tiles and exponents of different heads are disjoint. This task drops its parts of K
                    // before it takes those of V, and both before it goes on.
                    unsafe { bytes.range(range.start, range.len()) }
                };
                let rows = Rows { rows: &k[at..], width, run, dims, slot, scale: k_scale };
                let exponents = shape.k_exponents(page, head).map(part);
                let count = counts.as_deref_mut().map(|c| &mut c.k);
                put_keys(cpu.isa(), shape.k, rows, part(shape.k_tile(page, head)), exponents, count);
                let rows = Rows { rows: &v[at..], width, run, dims, slot, scale: v_scale };
                let exponents = shape.v_exponents(page, head).map(part);
                let count = counts.map(|c| &mut c.v);
                put_values(cpu.isa(), shape.v, rows, part(shape.v_tile(page, head)), exponents, count);
                done += run;
            }
        }
    });
}

/// `run` rows of `dims` elements, `width` apart, for slots `slot..` of one page.
#[derive(Clone, Copy)]
struct Rows<'a> {
    rows: &'a [f32],
    width: usize,
    run: usize,
    dims: usize,
    slot: usize,
    /// The static scale, a power of two; 1 where there is none.
    scale: f32,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [f32] {
        &self.rows[i * self.width..][..self.dims]
    }
}

by_isa! {
    /// Rows into a `[dims][page_len]` tile.
    fn put_keys(dtype: DType, rows: Rows<'_>, tile: &mut [u8], exponents: Option<&mut [u8]>, counts: Option<&mut FormatCounts>) {
        match dtype {
            DType::F32 => keys::<F32, _>(rows, tile, &mut Plain),
            DType::Bf16 => keys::<Bf16, _>(rows, tile, &mut Plain),
            DType::E4m3 => keys8::<E4m3>(rows, tile, exponents, counts),
            DType::E5m2 => keys8::<E5m2>(rows, tile, exponents, counts),
            DType::F16 => unreachable!("refused by `check`"),
        }
    }
}

by_isa! {
    /// Rows into a `[page_len][dims]` tile.
    fn put_values(dtype: DType, rows: Rows<'_>, tile: &mut [u8], exponents: Option<&mut [u8]>, counts: Option<&mut FormatCounts>) {
        match dtype {
            DType::F32 => values::<F32, _>(rows, tile, &mut Plain),
            DType::Bf16 => values::<Bf16, _>(rows, tile, &mut Plain),
            DType::E4m3 => values8::<E4m3>(rows, tile, exponents, counts),
            DType::E5m2 => values8::<E5m2>(rows, tile, exponents, counts),
            DType::F16 => unreachable!("refused by `check`"),
        }
    }
}

#[inline(always)]
fn keys8<E: Element8>(
    rows: Rows<'_>,
    tile: &mut [u8],
    exponents: Option<&mut [u8]>,
    counts: Option<&mut FormatCounts>,
) {
    match counts {
        None => keys::<E, _>(rows, tile, &mut Scaled::<false>::new::<E>(rows.scale, exponents)),
        Some(counts) => {
            let mut encoder = Scaled::<true>::new::<E>(rows.scale, exponents);
            keys::<E, _>(rows, tile, &mut encoder);
            *counts += encoder.counts;
        }
    }
}

#[inline(always)]
fn values8<E: Element8>(
    rows: Rows<'_>,
    tile: &mut [u8],
    exponents: Option<&mut [u8]>,
    counts: Option<&mut FormatCounts>,
) {
    match counts {
        None => values::<E, _>(rows, tile, &mut Scaled::<false>::new::<E>(rows.scale, exponents)),
        Some(counts) => {
            let mut encoder = Scaled::<true>::new::<E>(rows.scale, exponents);
            values::<E, _>(rows, tile, &mut encoder);
            *counts += encoder.counts;
        }
    }
}

#[inline(always)]
fn keys<E: Element, C: Encoder<E>>(rows: Rows<'_>, tile: &mut [u8], encoder: &mut C) {
    let page_bytes = tile.len() / rows.dims; // of one dim
    for i in 0..rows.run {
        let row = rows.row(i);
        encoder.begin(rows.slot + i, row);
        for (n, row) in row.chunks(BLOCK).enumerate() {
            let mut codes = [0_u8; 4 * BLOCK];
            encoder.encode(row, &mut codes[..row.len() * E::BYTES]);
            let lines = tile[n * BLOCK * page_bytes..].chunks_exact_mut(page_bytes);
            for (line, code) in lines.zip(codes.chunks_exact(E::BYTES).take(row.len())) {
                line[(rows.slot + i) * E::BYTES..][..E::BYTES].copy_from_slice(code);
            }
        }
    }
}

#[inline(always)]
fn values<E: Element, C: Encoder<E>>(rows: Rows<'_>, tile: &mut [u8], encoder: &mut C) {
    let size = rows.dims * E::BYTES;
    for i in 0..rows.run {
        let row = rows.row(i);
        encoder.begin(rows.slot + i, row);
        encoder.encode(row, &mut tile[(rows.slot + i) * size..][..size]);
    }
}

/// How rows become codes.
trait Encoder<E: Element> {
    /// A token's whole row, before its parts are encoded.
    fn begin(&mut self, slot: usize, row: &[f32]);
    /// Part of that row.
    fn encode(&mut self, row: &[f32], codes: &mut [u8]);
}

/// Formats without a scale.
struct Plain;

impl<E: Element> Encoder<E> for Plain {
    #[inline(always)]
    fn begin(&mut self, _slot: usize, _row: &[f32]) {}

    #[inline(always)]
    fn encode(&mut self, row: &[f32], codes: &mut [u8]) {
        for (&x, code) in row.iter().zip(codes.chunks_exact_mut(E::BYTES)) {
            E::write(x, code);
        }
    }
}

/// 8-bit formats, counted or not.
struct Scaled<'a, const COUNT: bool> {
    /// One over the scale. Both are powers of two, so that the product is the quotient, bit for bit.
    inverse: f32,
    /// Bits of the least magnitude that is clipped under the scale, and of the largest whose code is zero.
    clipped_from: u32,
    zero_up_to: u32,
    /// Where the scales of tokens go; without it the scale is static.
    exponents: Option<&'a mut [u8]>,
    counts: FormatCounts,
}

impl<'a, const COUNT: bool> Scaled<'a, COUNT> {
    #[inline(always)]
    fn new<E: Element8>(scale: f32, exponents: Option<&'a mut [u8]>) -> Self {
        let counts = FormatCounts::default();
        let mut new = Scaled { inverse: 1.0, clipped_from: 0, zero_up_to: 0, exponents, counts };
        new.set::<E>(scale);
        new
    }

    /// The products are exact, or infinite where nothing finite is clipped.
    #[inline(always)]
    fn set<E: Element8>(&mut self, scale: f32) {
        self.inverse = 1.0 / scale;
        self.clipped_from = (E::CLIPPED_FROM * scale).to_bits();
        self.zero_up_to = (E::ZERO_UP_TO * scale).to_bits();
    }
}

impl<E: Element8, const COUNT: bool> Encoder<E> for Scaled<'_, COUNT> {
    #[inline(always)]
    fn begin(&mut self, slot: usize, row: &[f32]) {
        if let Some(exponents) = &mut self.exponents {
            let exponent = scale_exponent(largest(row), E::LARGEST);
            exponents[slot] = exponent;
            self.set::<E>(scale_from_exponent(exponent));
        }
    }

    #[inline(always)]
    fn encode(&mut self, row: &[f32], codes: &mut [u8]) {
        let (mut top, mut lost) = (0_u32, 0_u32);
        let (inverse, zero_up_to) = (self.inverse, self.zero_up_to);
        for (&x, code) in row.iter().zip(codes.chunks_exact_mut(1)) {
            E::write(x * inverse, code);
            if COUNT {
                let magnitude = x.to_bits() & 0x7fff_ffff;
                top = top.max(magnitude);
                lost += u32::from(magnitude.wrapping_sub(1) < zero_up_to); // zero itself wraps beyond it
            }
        }
        if COUNT {
            self.counts.elements += row.len() as u64;
            self.counts.underflowed += u64::from(lost);
            // Rare, so it is looked for by the largest alone.
            if top >= self.clipped_from {
                let clipped = |x: &&f32| (self.clipped_from..=INFINITY).contains(&(x.to_bits() & 0x7fff_ffff));
                self.counts.saturated += row.iter().filter(clipped).count() as u64;
            }
        }
    }
}

/// Bits of infinity; those of NaN are larger.
const INFINITY: u32 = f32::INFINITY.to_bits();

/// The largest magnitude of a row, NaN left out.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let mut largest = 0;
    for &x in row {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        largest = largest.max(if magnitude > INFINITY { 0 } else { magnitude });
    }
    f32::from_bits(largest)
}
