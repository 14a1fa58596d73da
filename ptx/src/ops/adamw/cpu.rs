//! One pass over the four buffers.

use super::AdamW;
use crate::Cpu;
use crate::isa::by_isa;
use crate::ops::chunks::split_elements;

/// What the update's number and the settings come to, rounded to f32 once.
#[derive(Clone, Copy)]
struct Factors {
    grad_scale: f32,
    /// `1 - beta1`.
    take1: f32,
    beta2: f32,
    /// `1 - beta2`.
    take2: f32,
    /// `-lr * weight_decay`.
    decay: f32,
    /// `-lr / (1 - beta1^t)`.
    rate: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    root: f32,
    eps: f32,
}

/// The decimal that `x` was written as: 0.999 for the f32 nearest to it, which is 0.99900001287. Taken as it is, that
/// f32 would put `1 - beta2` off by 1.3e-5 against an optimizer whose settings are f64.
fn as_written(x: f32) -> f64 {
    use std::io::Write;
    let mut text = [0_u8; 64];
    let mut rest = &mut text[..];
    write!(rest, "{x:e}").expect("an f32 has at most 17 characters");
    let left = rest.len();
    let text = std::str::from_utf8(&text[..64 - left]).expect("digits are ASCII");
    text.parse().expect("a float reads back")
}

/// `base^exponent` by squaring: the same bits on every platform, which a libm's `pow` does not promise. The relative
/// error is some `exponent * 1e-16`.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut square, mut result) = (base, 1.0);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

#[allow(clippy::cast_possible_truncation)] // rounding to f32 is the purpose
fn factors(hyper: AdamW, update: u64, grad_scale: f32) -> Factors {
    let (beta1, beta2, lr) = (as_written(hyper.beta1), as_written(hyper.beta2), as_written(hyper.lr));
    Factors {
        grad_scale,
        take1: (1.0 - beta1) as f32,
        beta2: hyper.beta2,
        take2: (1.0 - beta2) as f32,
        decay: (-lr * as_written(hyper.weight_decay)) as f32,
        rate: (-lr / (1.0 - power(beta1, update))) as f32,
        root: (1.0 / (1.0 - power(beta2, update)).sqrt()) as f32,
        eps: hyper.eps,
    }
}

by_isa! {
    fn step_part(f: Factors, params: &mut [f32], grads: &[f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, g), m), v) in params.iter_mut().zip(grads).zip(m).zip(v) {
            let g = g * f.grad_scale;
            *m = f.take1.mul_add(g - *m, *m);
            *v = (f.take2 * g).mul_add(g, f.beta2 * *v);
            let decayed = f.decay.mul_add(*p, *p);
            *p = f.rate.mul_add(*m / v.sqrt().mul_add(f.root, f.eps), decayed);
        }
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn step(
    cpu: &Cpu,
    hyper: AdamW,
    update: u64,
    grad_scale: f32,
    params: &mut [f32],
    grads: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    let factors = factors(hyper, update, grad_scale);
    split_elements(cpu, [params, m, v], |at, [params, m, v]| {
        step_part(cpu.isa(), factors, params, &grads[at..][..params.len()], m, v);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_as_written() {
        for (x, want) in [(0.9_f32, 0.9), (0.999, 0.999), (0.95, 0.95), (1e-8, 1e-8), (0.0, 0.0), (3.5e-38, 3.5e-38)] {
            assert_eq!(as_written(x), want);
        }
        assert!(as_written(1.0 - f32::EPSILON / 2.0) < 1.0);
    }

    #[test]
    fn powers_agree_with_the_library() {
        for (base, exponent) in [(0.9, 1), (0.9, 2), (0.999, 1000), (0.999_999, 1_000_001), (0.0, 3)] {
            #[allow(clippy::cast_precision_loss)]
            let want = f64::powf(base, exponent as f64);
            assert!((power(base, exponent) - want).abs() <= 1e-9 * want, "{base}^{exponent}");
        }
    }
}
