//! `mma.sync`: fragments to matrices and back.
//!
//! Each result is a chain of f32 fused multiply-adds in ascending k that begins with c. That is one order among those
//! PTX permits; hardware aligns and truncates instead, so results there differ within a bound that depends on k.
//! Pessimistic mode does as such hardware may: see [`crate::exec::truncating`].

use crate::counters::Class;
use crate::exec::formats::{canonical, e4m3_to_f32, e5m2_to_f32, f16_to_f32};
use crate::exec::truncating::truncate;
use crate::exec::value::{low_byte, low_half, put_words};
use crate::exec::{Exec, Row, Step};
use crate::fault::FaultKind;
use crate::program::Op;
use crate::state::{Ctx, Warp, first_lane};
use crate::types::Kind;

/// Element `e` of a register's value.
trait Unpack: Copy {
    fn element(self, r: u32, e: usize) -> f32;
}

#[derive(Clone, Copy)]
struct Bf16;
#[derive(Clone, Copy)]
struct F16;
#[derive(Clone, Copy)]
struct E4m3;
#[derive(Clone, Copy)]
struct E5m2;

impl Unpack for Bf16 {
    #[inline(always)]
    fn element(self, r: u32, e: usize) -> f32 {
        f32::from_bits(if e == 0 { r << 16 } else { r & 0xffff_0000 })
    }
}

impl Unpack for F16 {
    #[inline(always)]
    fn element(self, r: u32, e: usize) -> f32 {
        f16_to_f32(low_half(r >> (16 * e)))
    }
}

impl Unpack for E4m3 {
    #[inline(always)]
    fn element(self, r: u32, e: usize) -> f32 {
        e4m3_to_f32(low_byte(r >> (8 * e)))
    }
}

impl Unpack for E5m2 {
    #[inline(always)]
    fn element(self, r: u32, e: usize) -> f32 {
        e5m2_to_f32(low_byte(r >> (8 * e)))
    }
}

/// All 32 lanes must be here: a fragment is spread over them.
#[inline(always)]
pub(crate) fn whole_warp(w: &Warp, cx: &mut Ctx<'_>) -> Result<(), Step> {
    if w.mask == u32::MAX {
        return Ok(());
    }
    let lane = first_lane(!w.mask);
    let detail = format!("a warp-wide instruction is executed by lanes {:#010x} only", w.mask);
    Err(cx.fault(FaultKind::Divergence, lane, None, detail))
}

/// The operands of a product, in the order of the chain: columns of a, rows of b, rows of c.
pub(crate) struct Product<const K: usize> {
    pub(crate) a: [[f32; 16]; K],
    pub(crate) b: [[f32; 8]; K],
    pub(crate) c: [[f32; 8]; 16],
}

/// `d[16,8] = a[16,K] b[K,8] + c[16,8]`, P elements a register. With g = lane / 4 and t = lane % 4, and chunks of 4 P along
/// k: register 2 i + h of a holds row g + 8 h, elements 4 P i + P t ..; register i of b column g, the same elements.
#[inline(always)]
fn mma<const K: usize, const P: usize, A: Unpack, B: Unpack>(
    w: &mut Warp,
    cx: &mut Ctx<'_>,
    op: &Op,
    (unpack_a, unpack_b): (A, B),
    chain: impl Fn(&mut Product<K>),
) -> Step {
    if let Err(step) = whole_warp(w, cx) {
        return step;
    }
    let chunks = K / (4 * P);
    let args = &cx.program.args[op.x as usize..][..8 + 3 * chunks];
    let reg = |i: usize| &w.regs.words[usize::from(args[i])].0;
    let mut p = Product { a: [[0.0; 16]; K], b: [[0.0; 8]; K], c: [[0.0; 8]; 16] };
    for chunk in 0..chunks {
        let registers = [4 + 2 * chunk, 5 + 2 * chunk, 4 + 2 * chunks + chunk].map(reg);
        for e in 0..P {
            // All lanes at once, then to their places.
            let low: [f32; 32] = std::array::from_fn(|lane| unpack_a.element(registers[0][lane], e));
            let high: [f32; 32] = std::array::from_fn(|lane| unpack_a.element(registers[1][lane], e));
            let b: [f32; 32] = std::array::from_fn(|lane| unpack_b.element(registers[2][lane], e));
            for t in 0..4 {
                let k = 4 * P * chunk + P * t + e;
                for g in 0..8 {
                    p.a[k][g] = low[4 * g + t];
                    p.a[k][g + 8] = high[4 * g + t];
                    p.b[k][g] = b[4 * g + t];
                }
            }
        }
    }
    for i in 0..4 {
        let from = reg(4 + 3 * chunks + i);
        for (lane, &bits) in from.iter().enumerate() {
            p.c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = f32::from_bits(bits);
        }
    }
    if cx.pessimistic {
        // 24 bits of sums of 16-bit inputs, 13 of those of 8-bit inputs.
        let kept = if P == 4 { 13 } else { 24 };
        let truncated = truncate(&p, kept);
        chain(&mut p);
        for (sum, truncated) in p.c.as_flattened_mut().iter_mut().zip(truncated.as_flattened()) {
            // What is not finite, or becomes so on the way, is no matter of precision.
            if sum.is_finite() {
                *sum = *truncated;
            }
        }
    } else {
        chain(&mut p);
    }
    for (i, &slot) in args[..4].iter().enumerate() {
        let out = std::array::from_fn(|lane| p.c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2]);
        put_words(&mut w.regs, slot, u32::MAX, out.map(|x| canonical(x).to_bits()));
    }
    if cx.counts {
        cx.tally.mma_flops += 2 * 16 * 8 * K as u64;
    }
    Step::Next
}

fn chain<const K: usize>(p: &mut Product<K>) {
    for (a, b) in p.a.iter().zip(&p.b) {
        for (a, c) in a.iter().zip(&mut p.c) {
            for (b, c) in b.iter().zip(c) {
                *c = a.mul_add(*b, *c);
            }
        }
    }
}

/// The same chain, eight columns to a register and half of the rows at a time, so that all sums stay in registers. Compilers
/// find worse ways when left to themselves.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chain_avx2<const K: usize>(p: &mut Product<K>) {
    use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_set1_ps};
    for half in 0..2 {
        let mut sums: [__m256; 8] = std::array::from_fn(|row| bytemuck::cast(p.c[8 * half + row]));
        for (a, b) in p.a.iter().zip(&p.b) {
            let b: __m256 = bytemuck::cast(*b);
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_fmadd_ps(_mm256_set1_ps(a[8 * half + row]), b, *sum);
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            p.c[8 * half + row] = bytemuck::cast(sum);
        }
    }
}

/// The product for any host and for those with AVX2.
macro_rules! product {
    ($k:literal, $p:literal, $a:expr, $b:expr) => {{
        fn portable(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
            mma::<$k, $p, _, _>(w, cx, op, ($a, $b), chain)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
            mma::<$k, $p, _, _>(w, cx, op, ($a, $b), |p| chain_avx2(p))
        }
        #[cfg(not(target_arch = "x86_64"))]
        use portable as avx2;
        Exec { portable, avx2 }
    }};
}

fn row(shape: &str, types: &str, k: usize, per_register: usize, exec: Exec) -> Row {
    let chunks = k / (4 * per_register);
    let mut src = vec![Kind::Word; 3 * chunks];
    src.extend([Kind::Float; 4]);
    Row {
        names: vec![format!("mma.sync.aligned.{shape}.row.col.f32.{types}.f32")],
        dst: vec![Kind::Float; 4],
        src,
        count: Class::Mma,
        exec,
        together: true,
    }
}

/// The rows of this file.
pub(crate) fn rows(out: &mut Vec<Row>) {
    out.push(row("m16n8k16", "bf16.bf16", 16, 2, product!(16, 2, Bf16, Bf16)));
    out.push(row("m16n8k16", "f16.f16", 16, 2, product!(16, 2, F16, F16)));
    out.push(row("m16n8k8", "bf16.bf16", 8, 2, product!(8, 2, Bf16, Bf16)));
    out.push(row("m16n8k8", "f16.f16", 8, 2, product!(8, 2, F16, F16)));
    out.push(row("m16n8k32", "e4m3.e4m3", 32, 4, product!(32, 4, E4m3, E4m3)));
    out.push(row("m16n8k32", "e5m2.e5m2", 32, 4, product!(32, 4, E5m2, E5m2)));
    out.push(row("m16n8k32", "e4m3.e5m2", 32, 4, product!(32, 4, E4m3, E5m2)));
    out.push(row("m16n8k32", "e5m2.e4m3", 32, 4, product!(32, 4, E5m2, E4m3)));
}
