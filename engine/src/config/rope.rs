//! Rotary position embedding: the inverse frequencies of every variant the supported families use.
//!
//! The arithmetic follows transformers' f32 steps one by one (exponent, power, reciprocal, then the variant), so that
//! a checkpoint meets the frequencies it was trained with. The power itself is computed in f64 from plain additions
//! and multiplications, not by the platform's `pow`, so the bits are the same on every machine.

use std::f64::consts::{LN_2, PI};

/// How far positions are stretched, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeKind {
    /// As trained.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Stretch, at least 1.
        factor: f64,
    },
    /// NTK scaling whose frequencies depend on the current length once that exceeds `original`.
    ///
    /// A frequency that changes while a text grows would give one token different bits depending on when it is
    /// scored, so this engine keeps to lengths up to `original`, where the variant equals [`RopeKind::Default`].
    Dynamic {
        /// Stretch beyond `original`; not used up to it.
        factor: f64,
        /// Positions the model was trained with.
        original: usize,
    },
    /// YaRN: high frequencies kept, low ones divided by `factor`, a ramp between.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Positions the model was trained with.
        original: usize,
        /// Rotations over `original` above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over `original` below which a frequency is divided.
        beta_slow: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// Llama 3.1: by wavelength, with a linear blend between the two limits.
    Llama3 {
        /// Stretch of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Positions the model was trained with.
        original: usize,
    },
}

/// A model's rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the powers.
    pub theta: f64,
    /// Variant.
    pub kind: RopeKind,
}

impl Rope {
    /// Radians per position of each rotary pair, `[head_dim / 2]`; pair `i` is dimensions `(i, i + head_dim / 2)`.
    ///
    /// # Panics
    /// When `head_dim` is odd or zero.
    #[must_use]
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        assert!(head_dim > 0 && head_dim.is_multiple_of(2), "rotary pairs need an even head_dim, not {head_dim}");
        let theta = f64::from(f32_of(self.theta));
        let dim = count(head_dim);
        let power = |pair: usize| f32_of(pow(theta, f64::from(f32_of(count(2 * pair)) / f32_of(dim))));
        let pairs = head_dim / 2;
        match self.kind {
            RopeKind::Default | RopeKind::Dynamic { .. } => (0..pairs).map(|i| 1.0 / power(i)).collect(),
            RopeKind::Linear { factor } => (0..pairs).map(|i| 1.0 / power(i) / f32_of(factor)).collect(),
            RopeKind::Llama3 { factor, low_freq_factor, high_freq_factor, original } => (0..pairs)
                .map(|i| llama3(1.0 / power(i), factor, low_freq_factor, high_freq_factor, count(original)))
                .collect(),
            RopeKind::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                // The (fractional) dimension whose pair turns `rotations` times over the original length.
                let turning = |rotations: f64| dim * ln(count(original) / (rotations * 2.0 * PI)) / (2.0 * ln(theta));
                let (mut low, mut high) = (turning(beta_fast), turning(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001; // the ramp divides by its width
                }
                (0..pairs)
                    .map(|i| {
                        let ramp = ((f32_of(count(i)) - f32_of(low)) / f32_of(high - low)).clamp(0.0, 1.0);
                        let kept = 1.0 - ramp;
                        let power = power(i);
                        1.0 / (f32_of(factor) * power) * (1.0 - kept) + 1.0 / power * kept
                    })
                    .collect()
            }
        }
    }

    /// What cos and sin are multiplied with: 1 but for YaRN.
    #[must_use]
    pub fn attention_factor(&self) -> f32 {
        match self.kind {
            RopeKind::Yarn { attention_factor, .. } => f32_of(attention_factor),
            _ => 1.0,
        }
    }
}

/// YaRN's attention factor where the config gives none: `0.1 mscale ln(factor) + 1`, and 1 without a stretch.
pub(super) fn yarn_scale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * ln(factor) + 1.0 }
}

fn llama3(freq: f32, factor: f64, low_freq_factor: f64, high_freq_factor: f64, original: f64) -> f32 {
    let wavelength = f32_of(2.0 * PI) / freq;
    if wavelength < f32_of(original / high_freq_factor) {
        freq
    } else if wavelength > f32_of(original / low_freq_factor) {
        freq / f32_of(factor)
    } else {
        let smooth =
            (f32_of(original) / wavelength - f32_of(low_freq_factor)) / f32_of(high_freq_factor - low_freq_factor);
        (1.0 - smooth) * freq / f32_of(factor) + smooth * freq
    }
}

#[allow(clippy::cast_possible_truncation)] // rounding to f32 is the purpose
fn f32_of(x: f64) -> f32 {
    x as f32
}

#[allow(clippy::cast_precision_loss)] // dimensions and positions are far below 2^53
fn count(n: usize) -> f64 {
    n as f64
}

/// `base^exponent` for a positive normal `base`, to about 1e-15 relative for results between 1e-10 and 1e10.
fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

/// Natural logarithm of a positive normal number: `ln(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1))`.
fn ln(x: f64) -> f64 {
    assert!(x.is_normal() && x > 0.0, "the logarithm of {x}");
    let bits = x.to_bits();
    let mut exponent = i32::try_from(bits >> 52).expect("11 bits") - 1023;
    let mut mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        (exponent, mantissa) = (exponent + 1, mantissa / 2.0);
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0); // |t| < 0.172, so 2 t^25 / 25 is below 1e-20
    let square = t * t;
    let series = (0..12).rev().fold(0.0, |sum, i| sum * square + 1.0 / f64::from(2 * i + 1));
    f64::from(exponent) * LN_2 + 2.0 * t * series
}

/// `e^x` for `|x| < 700`: a Taylor series about 0 after taking out powers of two.
fn exp(x: f64) -> f64 {
    assert!(x.abs() < 700.0, "the exponential of {x}");
    let twos = (x / LN_2).round();
    let rest = x - twos * LN_2; // |rest| < 0.347, so rest^17 / 17! is below 1e-22
    let series = (1..=16).rev().fold(1.0, |sum, i| 1.0 + sum * rest / f64::from(i));
    #[allow(clippy::cast_possible_truncation)] // at most 1010
    let exponent = 1023 + twos as i64;
    series * f64::from_bits(exponent.cast_unsigned() << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_agree_with_the_library() {
        for theta in [2.0, 10_000.0, 500_000.0, 1e6, 5e6, 1.7e9] {
            for step in 0..=64 {
                let e = f64::from(step) / 64.0;
                let (got, want) = (pow(theta, e), f64::powf(theta, e));
                // ln is good to 2^-52 of 22, and exp multiplies that into a relative error: 22 x 2.2e-16.
                assert!((got / want - 1.0).abs() < 5e-15, "{theta}^{e}: want {want}, got {got}");
            }
        }
    }

    /// Values of the formulas in f64, by `tests/golden/rope.py` of this crate; our chain has at most eight f32 roundings, and the
    /// ramps of yarn and llama3 lose a few more where they cancel: 16 x 2^-24 of the largest term.
    fn check(rope: Rope, head_dim: usize, want: &[f64], attention: f64) {
        let got = rope.inv_freq(head_dim);
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(*got) - want).abs() / want;
            assert!(error < 16.0 / 16_777_216.0, "{rope:?}, pair {i}: want {want}, got {got}");
        }
        assert!((f64::from(rope.attention_factor()) - attention).abs() < 1e-7);
    }

    #[test]
    fn golden_default() {
        let rope = Rope { theta: 1e6, kind: RopeKind::Default };
        check(
            rope,
            32,
            &[
                1.0,
                0.4216965034285822,
                0.1778279410038923,
                0.07498942093324558,
                0.03162277660168379,
                0.01333521432163324,
                0.005623413251903491,
                0.0023713737056616554,
                0.001,
                0.00042169650342858224,
                0.00017782794100389227,
                7.498942093324559e-05,
                3.1622776601683795e-05,
                1.333521432163324e-05,
                5.623413251903491e-06,
                2.3713737056616552e-06,
            ],
            1.0,
        );
    }

    #[test]
    fn golden_linear() {
        let rope = Rope { theta: 10_000.0, kind: RopeKind::Linear { factor: 4.0 } };
        check(
            rope,
            16,
            &[
                0.25,
                0.07905694150420949,
                0.025,
                0.007905694150420948,
                0.0025,
                0.0007905694150420948,
                0.00025,
                7.905694150420948e-05,
            ],
            1.0,
        );
    }

    #[test]
    fn golden_llama3() {
        let rope = Rope {
            theta: 500_000.0,
            kind: RopeKind::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 8192 },
        };
        check(
            rope,
            64,
            &[
                1.0,
                0.6636012376960885,
                0.44036660267178046,
                0.2922278225730151,
                0.19392274474868576,
                0.12868737343265052,
                0.08539710028576561,
                0.05666962144529105,
                0.03760603093086393,
                0.024955408670558694,
                0.016560440080994446,
                0.010989528534539826,
                0.007292664737217109,
                0.004839421345719893,
                0.003211445994752591,
                0.0013718935677611381,
                0.0005248461609929547,
                0.0001785078127679964,
                7.78465527393245e-05,
                5.165906874818956e-05,
                3.428102195952591e-05,
                2.2748928601828183e-05,
                1.509621717643313e-05,
                1.0017868402809974e-05,
                6.647869871181235e-06,
                4.411534674558404e-06,
                2.9274998701761677e-06,
                1.942692537204043e-06,
                1.2891731721515574e-06,
                8.554969126443659e-07,
                5.677088100759837e-07,
                3.767322690173964e-07,
            ],
            1.0,
        );
    }

    #[test]
    fn golden_yarn() {
        let rope = Rope {
            theta: 1e6,
            kind: RopeKind::Yarn {
                factor: 4.0,
                original: 32_768,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: 1.138_629_436_111_989,
                truncate: true,
            },
        };
        check(
            rope,
            64,
            &[
                1.0,
                0.6493816315762113,
                0.4216965034285822,
                0.27384196342643613,
                0.1778279410038923,
                0.11547819846894582,
                0.07498942093324558,
                0.04869675251658631,
                0.03162277660168379,
                0.02053525026457146,
                0.01333521432163324,
                0.008659643233600654,
                0.005154795480911533,
                0.003043117727123648,
                0.0017785302792462415,
                0.0010266176840396614,
                0.0005833333333333333,
                0.00032469081578810567,
                0.00017570687642857593,
                9.128065447547872e-05,
                4.445698525097307e-05,
                2.8869549617236455e-05,
                1.8747355233311396e-05,
                1.2174188129146578e-05,
                7.905694150420949e-06,
                5.133812566142866e-06,
                3.33380358040831e-06,
                2.1649108084001634e-06,
                1.4058533129758728e-06,
                9.129353181370943e-07,
                5.928434264154138e-07,
                3.84981631514873e-07,
            ],
            1.138629436111989,
        );
    }

    #[test]
    fn golden_yarn_untruncated() {
        let rope = Rope {
            theta: 150_000.0,
            kind: RopeKind::Yarn {
                factor: 32.0,
                original: 4096,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: 1.25,
                truncate: false,
            },
        };
        check(
            rope,
            32,
            &[
                1.0,
                0.4747820554769007,
                0.22541800020287084,
                0.10702442147781144,
                0.050813274815461475,
                0.01933500112654036,
                0.006794959489732219,
                0.0020937923789696887,
                0.00045648391922324086,
                3.8308812373753384e-05,
                1.818833668168956e-05,
                8.63549587543848e-06,
                4.09997848180298e-06,
                1.9465962110014815e-06,
                9.242089502428302e-07,
                4.387978250864396e-07,
            ],
            1.25,
        );
    }

    #[test]
    fn a_dynamic_rope_is_the_default_one() {
        let theta = 10_000.0;
        let dynamic = Rope { theta, kind: RopeKind::Dynamic { factor: 4.0, original: 2048 } };
        assert_eq!(dynamic.inv_freq(64), Rope { theta, kind: RopeKind::Default }.inv_freq(64));
    }
}
