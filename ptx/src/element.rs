//! Elements of K and V tiles: how the codes of each format are read and written, for loops generic over formats.

use crate::DType;
use crate::dtype::{
    E4M3_MAX, E5M2_MAX, bf16_from_f32, bf16_to_f32, e4m3_from_f32, e4m3_to_f32, e5m2_from_f32, e5m2_to_f32,
};

/// How elements of one format are read from bytes and written to them.
pub(crate) trait Element {
    /// Bytes of an element.
    const BYTES: usize;
    /// The value of the code in `bytes`, which has `BYTES` bytes.
    fn read(bytes: &[u8]) -> f32;
    /// The values of 16 codes in a row.
    #[inline(always)]
    fn read16(bytes: &[u8]) -> [f32; 16] {
        let bytes = &bytes[..16 * Self::BYTES];
        std::array::from_fn(|i| Self::read(&bytes[i * Self::BYTES..][..Self::BYTES]))
    }
    /// Writes the code of `x`, rounded, to `bytes`.
    fn write(x: f32, bytes: &mut [u8]);
}

/// What 8-bit formats have beside: magnitudes that matter, after scaling.
pub(crate) trait Element8: Element {
    /// The largest finite value.
    const LARGEST: f32;
    /// From here on rounding would go beyond the largest value, so the code is clipped.
    const CLIPPED_FROM: f32;
    /// Up to here the code is zero.
    const ZERO_UP_TO: f32;
}

/// Element of f32 tiles.
pub(crate) struct F32;
/// Element of bf16 tiles.
pub(crate) struct Bf16;
/// Element of e4m3 tiles.
pub(crate) struct E4m3;
/// Element of e5m2 tiles.
pub(crate) struct E5m2;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    fn write(x: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&x.to_ne_bytes());
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        bf16_to_f32(u16::from_ne_bytes([bytes[0], bytes[1]]))
    }

    #[inline(always)]
    fn write(x: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bf16_from_f32(x).to_ne_bytes());
    }
}

impl Element for E4m3 {
    const BYTES: usize = 1;

    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        e4m3_to_f32(bytes[0])
    }

    #[inline(always)]
    fn write(x: f32, bytes: &mut [u8]) {
        bytes[0] = e4m3_from_f32(x);
    }
}

impl Element8 for E4m3 {
    const LARGEST: f32 = E4M3_MAX;
    // The middle between 448 and 480 goes to 448, whose code is even; that between 0 and 2^-9 to 0.
    const CLIPPED_FROM: f32 = f32::from_bits(464.0_f32.to_bits() + 1);
    const ZERO_UP_TO: f32 = 1.0 / 1024.0;
}

impl Element for E5m2 {
    const BYTES: usize = 1;

    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        e5m2_to_f32(bytes[0])
    }

    #[inline(always)]
    fn write(x: f32, bytes: &mut [u8]) {
        bytes[0] = e5m2_from_f32(x);
    }
}

impl Element8 for E5m2 {
    const LARGEST: f32 = E5M2_MAX;
    // The middle between 57344 and 65536 would go to 65536, whose code is even; that between 0 and 2^-16 goes to 0.
    const CLIPPED_FROM: f32 = 61_440.0;
    const ZERO_UP_TO: f32 = 1.0 / 131_072.0;
}

/// The code, as a number, of element `index` of a tile: the slow way, for references.
pub(crate) fn code(dtype: DType, tile: &[u8], index: usize) -> f32 {
    let bytes = &tile[index * dtype.bytes()..][..dtype.bytes()];
    match dtype {
        DType::F32 => F32::read(bytes),
        DType::Bf16 => Bf16::read(bytes),
        DType::E4m3 => E4m3::read(bytes),
        DType::E5m2 => E5m2::read(bytes),
        DType::F16 => unreachable!("refused by `check`"),
    }
}
