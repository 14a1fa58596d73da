//! Divergences from a mixture of student p and teacher q. All are made of one: KL(p || a q + b p) with a + b = 1.

use super::Kind;
use crate::isa::by_isa;
use crate::math::{exp, exp_rest, ln, tree16};
use crate::ops::divergence::cpu::{NEAR, pair, times};
use crate::ops::log_softmax::cpu::{LANES, TILE, padded};

/// Largest |x| whose e^x - 1 is taken from x.
const FAR: f32 = 80.0;

/// Which divergence.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Jsd,
    Reverse,
    Forward,
}

/// A mixture: the share of the other side, and what is left, each rounded by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mixture {
    shape: Shape,
    a: f32,
    b: f32,
}

impl Mixture {
    /// Of a kind that is one, given by its plainest name.
    pub(super) fn of(kind: Kind) -> Option<Mixture> {
        let (shape, share) = match kind {
            Kind::Jsd { beta } => (Shape::Jsd, beta),
            Kind::SkewedReverse { alpha } => (Shape::Reverse, alpha),
            Kind::SkewedForward { alpha } => (Shape::Forward, alpha),
            Kind::Reverse | Kind::Forward | Kind::CrossEntropy => return None,
        };
        #[allow(clippy::cast_possible_truncation)] // rounding is meant
        let (a, b) = (share as f32, (1.0 - share) as f32);
        Some(Mixture { shape, a, b })
    }
}

/// Sums of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) loss: f64,
    /// sum p g.
    pub(super) slope: f64,
}

/// ln(1 + v) with a small relative error for v >= -1/2.
#[inline(always)]
fn ln_1p(v: f32) -> f32 {
    let w = 1.0 + v;
    let d = w - 1.0;
    // The error of w is taken out again: ln(w) / (w - 1) changes slowly.
    if d == 0.0 { v } else { ln(w) * (v / d) }
}

/// The column's term of KL(p || a q + b p), and m = ln(M/p); x = ln(q/p).
#[inline(always)]
fn term(p: f32, q: f32, x: f32, a: f32, b: f32) -> (f32, f32) {
    let x = if x.is_nan() { 0.0 } else { x }; // neither side has the token
    let c = if x > FAR { FAR } else { x };
    let c = if c < -FAR { -FAR } else { c };
    let v = a * exp_rest(c).0;
    // Where little is left of p the logarithm is of what is left; elsewhere of 1 and a remainder.
    let m = if v >= -0.5 { ln_1p(v) } else { ln(a.mul_add(exp(c), b)) };
    let m = if x > FAR { m + (x - FAR) } else { m };
    let near = m.abs() <= NEAR;
    let rest = exp_rest(if near { m } else { 0.0 }).1;
    (if near { p * rest } else { a * (q - p) - times(p, m) }, m)
}

/// e^-m - 1.
#[inline(always)]
fn falling(m: f32) -> f32 {
    let m = if m > FAR { FAR } else { m };
    exp_rest(if m < -FAR { FAR } else { -m }).0
}

/// A column's part of the loss, p, and the slope g.
#[inline(always)]
fn column(shape: Shape, a: f32, b: f32, zp: f32, zq: f32, lses: (f32, f32)) -> (f32, f32, f32) {
    let pair = pair(zp, zq, lses);
    let (p, q) = (pair.p, pair.q);
    let x = (zq - zp) - (lses.1 - lses.0);
    match shape {
        Shape::Jsd => {
            let (of_p, m) = term(p, q, x, a, b);
            let (of_q, _) = term(q, p, -x, b, a);
            (of_p / a + of_q / b, p, -m / a)
        }
        Shape::Reverse => {
            let (loss, m) = term(p, q, x, a, b);
            (loss, p, -m - b * falling(m))
        }
        Shape::Forward => {
            let (loss, n) = term(q, p, -x, a, b);
            (loss, p, -a * falling(n))
        }
    }
}

#[inline(always)]
fn sums(shape: Shape, before: Sums, mix: Mixture, p: &[f32], q: &[f32], inv_temp: f32, lses: (f32, f32)) -> Sums {
    let mut sums = before;
    for (p, q) in p.chunks(TILE).zip(q.chunks(TILE)) {
        let mut lanes = [[0.0; LANES]; 2];
        let (p_blocks, p_rest) = p.as_chunks::<LANES>();
        let (q_blocks, q_rest) = q.as_chunks::<LANES>();
        for (p, q) in p_blocks.iter().zip(q_blocks) {
            block(shape, mix, p, q, inv_temp, lses, &mut lanes);
        }
        if !p_rest.is_empty() {
            block(shape, mix, &padded(p_rest), &padded(q_rest), inv_temp, lses, &mut lanes);
        }
        sums.loss += f64::from(tree16(&lanes[0]));
        sums.slope += f64::from(tree16(&lanes[1]));
    }
    sums
}

#[inline(always)]
fn block(
    shape: Shape,
    mix: Mixture,
    p: &[f32; LANES],
    q: &[f32; LANES],
    inv_temp: f32,
    lses: (f32, f32),
    lanes: &mut [[f32; LANES]; 2],
) {
    for i in 0..LANES {
        let (loss, p, slope) = column(shape, mix.a, mix.b, p[i] * inv_temp, q[i] * inv_temp, lses);
        lanes[0][i] += loss;
        lanes[1][i] += times(p, slope);
    }
}

by_isa! {
    /// The sums of what came before, whole tiles of columns, and of these columns.
    pub(super) fn more(
        before: Sums,
        mix: Mixture,
        p: &[f32],
        q: &[f32],
        inv_temp: f32,
        lses: (f32, f32),
    ) -> Sums {
        // Chosen outside of the loops, which are then compiled for each.
        match mix.shape {
            Shape::Jsd => sums(Shape::Jsd, before, mix, p, q, inv_temp, lses),
            Shape::Reverse => sums(Shape::Reverse, before, mix, p, q, inv_temp, lses),
            Shape::Forward => sums(Shape::Forward, before, mix, p, q, inv_temp, lses),
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn slopes(
    shape: Shape,
    mix: Mixture,
    p: &mut [f32],
    q: &[f32],
    inv_temp: f32,
    lses: (f32, f32),
    scale: f32,
    mean: f32,
) {
    for (x, q) in p.iter_mut().zip(q) {
        let (_, p, slope) = column(shape, mix.a, mix.b, *x * inv_temp, q * inv_temp, lses);
        *x = scale * times(p, slope - mean);
    }
}

by_isa! {
    /// p becomes scale * p (g - mean).
    pub(super) fn gradient(
        mix: Mixture,
        p: &mut [f32],
        q: &[f32],
        inv_temp: f32,
        lses: (f32, f32),
        scale: f32,
        mean: f32,
    ) {
        match mix.shape {
            Shape::Jsd => slopes(Shape::Jsd, mix, p, q, inv_temp, lses, scale, mean),
            Shape::Reverse => slopes(Shape::Reverse, mix, p, q, inv_temp, lses, scale, mean),
            Shape::Forward => slopes(Shape::Forward, mix, p, q, inv_temp, lses, scale, mean),
        }
    }
}
