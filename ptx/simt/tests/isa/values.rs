//! Inputs: values at the edges of each type, seeded random ones, and the definitions of the small float formats.

/// A seeded generator, so that every run has the same rows.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
}

/// 16-bit integers at the edges, and some between.
pub fn edges16() -> Vec<u64> {
    let mut values = vec![0, 1, 2, 3, 15, 16, 17, 127, 128, 255, 256, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
    let mut random = Random::new(16);
    values.extend((0..7).map(|_| random.next() & 0xffff));
    values
}

/// 32-bit integers at the edges, and some between.
pub fn edges32() -> Vec<u64> {
    let mut values = vec![
        0,
        1,
        2,
        3,
        7,
        31,
        32,
        33,
        63,
        64,
        65,
        127,
        128,
        255,
        256,
        0x7fff,
        0x8000,
        0xffff,
        0x1_0000,
        0x7fff_fffe,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_8000,
        0xffff_fffe,
        0xffff_ffff,
    ];
    let mut random = Random::new(32);
    values.extend((0..10).map(|_| random.next() & 0xffff_ffff));
    values
}

/// 64-bit integers at the edges, and some between.
pub fn edges64() -> Vec<u64> {
    let mut values = vec![
        0,
        1,
        2,
        3,
        31,
        32,
        63,
        64,
        65,
        255,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x7fff_ffff_ffff_fffe,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        0x8000_0000_0000_0001,
        0xffff_ffff_0000_0000,
        0xffff_ffff_8000_0000,
        0xffff_ffff_ffff_fffe,
        0xffff_ffff_ffff_ffff,
    ];
    let mut random = Random::new(64);
    values.extend((0..10).map(|_| random.next()));
    values
}

/// All pairs of two lists.
pub fn pairs(a: &[u64], b: &[u64]) -> Vec<[u64; 2]> {
    a.iter().flat_map(|&a| b.iter().map(move |&b| [a, b])).collect()
}

/// Triples: edges in turn against seeded partners.
pub fn triples(values: &[u64], seed: u64) -> Vec<[u64; 3]> {
    let mut random = Random::new(seed);
    let pick = |random: &mut Random| values[(random.next() % values.len() as u64) as usize];
    let mut rows = Vec::new();
    for &a in values {
        for _ in 0..40 {
            rows.push([a, pick(&mut random), pick(&mut random)]);
        }
    }
    rows
}

/// f32 at every edge: zeros, subnormals, the ends of the range, NaNs of each kind, and random bits.
pub fn floats32() -> Vec<u64> {
    let mut bits: Vec<u32> = vec![
        0x0000_0000,
        0x0000_0001,
        0x0000_0002,
        0x0040_0000,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x0100_0000,
        0x3300_0000,
        0x337f_ffff,
        0x3380_0000,
        0x3380_0001,
        0x3f00_0000,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x3fc0_0000,
        0x4000_0000,
        0x4040_0000,
        0x3eaa_aaab,
        0x4b00_0000,
        0x4b7f_ffff,
        0x4b80_0000,
        0x4b80_0001,
        0x5f80_0000,
        0x7e80_0000,
        0x7f00_0000,
        0x7f7f_ffff,
        0x7f80_0000,
    ];
    bits.extend(bits.clone().iter().map(|x| x | 0x8000_0000));
    bits.extend([0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0xffff_ffff, 0x7fd5_5555]);
    let mut random = Random::new(320);
    bits.extend((0..24).map(|_| random.word()));
    // Near one another, so that sums cancel and products stay in range.
    bits.extend((0..16).map(|_| 0x3f00_0000 + (random.word() >> 8)));
    bits.into_iter().map(u64::from).collect()
}

/// f64 likewise.
pub fn floats64() -> Vec<u64> {
    let mut values: Vec<f64> = vec![
        0.0,
        f64::from_bits(1),
        f64::from_bits(0x000f_ffff_ffff_ffff),
        f64::MIN_POSITIVE,
        0.5,
        1.0 - f64::EPSILON / 2.0,
        1.0,
        1.0 + f64::EPSILON,
        1.5,
        2.0,
        3.0,
        1.0 / 3.0,
        9_007_199_254_740_992.0,
        9_007_199_254_740_993.0,
        1e300,
        f64::MAX,
        f64::INFINITY,
        f64::from(f32::MAX),
        f64::from(f32::MIN_POSITIVE),
        f64::from(f32::from_bits(1)),
    ];
    values.extend(values.clone().iter().map(|x| -x));
    let mut bits: Vec<u64> = values.into_iter().map(f64::to_bits).collect();
    bits.extend([0x7ff8_0000_0000_0000, 0xfff8_0000_0000_0000, 0x7ff0_0000_0000_0001, 0xffff_ffff_ffff_ffff]);
    let mut random = Random::new(640);
    bits.extend((0..16).map(|_| random.next()));
    bits.extend((0..12).map(|_| 0x3fe0_0000_0000_0000 + (random.next() >> 11)));
    bits
}

pub fn f32_of(bits: u64) -> f32 {
    f32::from_bits(u32::try_from(bits).expect("32 bits"))
}

/// The bits of a result; every NaN that single-precision arithmetic makes is 0x7fffffff.
pub fn canonical(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
}

/// Subnormals become zeros of the same sign.
pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// A binary float format of at most 16 bits.
pub struct Format {
    pub exponent_bits: u32,
    pub mantissa_bits: u32,
    /// Whether the highest exponent means infinity and NaN, as in IEEE 754; e4m3 has only one NaN code of each sign.
    pub ieee: bool,
}

pub const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, ieee: true };
pub const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, ieee: true };
pub const E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, ieee: true };
pub const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, ieee: false };

impl Format {
    pub fn bits(&self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    /// Codes of one sign.
    pub fn codes(&self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The largest finite code without its sign.
    pub fn largest(&self) -> u32 {
        if self.ieee { self.codes() - (1 << self.mantissa_bits) - 1 } else { self.codes() - 2 }
    }

    /// The value of a code, by the definition of the format; exact, as f64 holds every value of them.
    pub fn value(&self, code: u32) -> f64 {
        let magnitude = code & (self.codes() - 1);
        let sign = if code >> (self.exponent_bits + self.mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
        if magnitude > self.largest() {
            let infinite = self.ieee && magnitude == self.largest() + 1;
            return if infinite { sign * f64::INFINITY } else { f64::NAN };
        }
        let exponent = magnitude >> self.mantissa_bits;
        let mantissa = f64::from(magnitude & ((1 << self.mantissa_bits) - 1)) / f64::from(1_u32 << self.mantissa_bits);
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let exponent = i32::try_from(exponent).expect("an exponent of few bits");
        sign * if exponent == 0 {
            mantissa * 2.0_f64.powi(1 - bias)
        } else {
            (1.0 + mantissa) * 2.0_f64.powi(exponent - bias)
        }
    }

    /// The nearest code, ties to the even code; beyond the range infinity, or with `clip` the largest finite code. NaN has
    /// no code here.
    pub fn nearest(&self, x: f64, clip: bool) -> u32 {
        assert!(!x.is_nan(), "NaN has no nearest code");
        let sign = if x.is_sign_negative() { self.codes() } else { 0 };
        let x = x.abs();
        let top = self.largest();
        // Halfway beyond the largest value lies where one more step of the last interval would.
        let step = self.value(top) - self.value(top - 1);
        if x >= self.value(top) + step / 2.0 {
            return sign | if clip || !self.ieee { top } else { top + 1 };
        }
        // Magnitudes grow with their codes.
        let (mut low, mut high) = (0, top);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.value(middle) <= x { low = middle } else { high = middle - 1 }
        }
        if low == top {
            return sign | top;
        }
        let (below, above) = (x - self.value(low), self.value(low + 1) - x);
        let up = above < below || (above == below && low % 2 == 1);
        sign | (low + u32::from(up))
    }

    /// f32 inputs that matter for rounding to this format: every `stride`th code's value, the middle between it and the
    /// next, and both of f32's neighbours of each; of both signs; the ends of f32's range and what lies beyond this one's.
    pub fn rounding_inputs(&self, stride: u32) -> Vec<f32> {
        let mut inputs = vec![0.0, f32::from_bits(1), f32::MIN_POSITIVE, f32::MAX, f32::INFINITY];
        let top = self.largest();
        let near = |code: u32, inputs: &mut Vec<f32>| {
            let value = self.value(code);
            let next = if code < top { self.value(code + 1) } else { value + (value - self.value(code - 1)) };
            for centre in [value, (value + next) / 2.0] {
                // The middle of two values is an f32, or lies beyond its range.
                let centre = centre as f32;
                inputs.extend([centre.next_down().max(0.0), centre, centre.next_up()]);
            }
        };
        (0..=top).step_by(stride as usize).for_each(|code| near(code, &mut inputs));
        (top - 3..=top).for_each(|code| near(code, &mut inputs));
        (0..4).for_each(|code| near(code, &mut inputs));
        ((1 << self.mantissa_bits) - 2..(1 << self.mantissa_bits) + 2).for_each(|code| near(code, &mut inputs));
        let negative: Vec<f32> = inputs.iter().map(|x| -x).collect();
        inputs.extend(negative);
        inputs
    }
}

#[test]
fn formats_have_the_values_of_their_definitions() {
    assert_eq!(E4M3.value(E4M3.largest()), 448.0);
    assert_eq!(E5M2.value(E5M2.largest()), 57344.0);
    assert_eq!(F16.value(F16.largest()), 65504.0);
    assert_eq!(BF16.value(0x3f80), 1.0);
    assert_eq!(E4M3.value(0x81), -(2.0_f64.powi(-9)));
    assert!(E4M3.value(0x7f).is_nan() && E5M2.value(0x7c).is_infinite() && E5M2.value(0x7d).is_nan());
    assert_eq!((E4M3.nearest(19.0, true), E4M3.nearest(17.0, true)), (0x5a, 0x58), "ties go to the even code");
}
