//! `mma.sync`: fragments to matrices and back.
//!
//! Each result is a chain of f32 fused multiply-adds in ascending k that begins with c. That is one order among those
//! PTX permits; hardware aligns and truncates instead, so results there differ within a bound that depends on k. In
//! pessimistic mode the chain of 8-bit floats keeps only 13 bits of mantissa after each step, towards zero.

use crate::counters::Class;
use crate::exec::formats::{bf16_to_f32, canonical, e4m3_to_f32, e5m2_to_f32, f16_to_f32};
use crate::exec::value::{low_half, put_words};
use crate::exec::{Exec, Row, Step, exec};
use crate::fault::FaultKind;
use crate::program::Op;
use crate::state::{Ctx, Warp, first_lane};
use crate::types::Kind;

/// Elements of a register.
type Unpack<const P: usize> = fn(u32) -> [f32; P];

#[inline(always)]
fn bf16x2(r: u32) -> [f32; 2] {
    [bf16_to_f32(low_half(r)), bf16_to_f32(low_half(r >> 16))]
}

#[inline(always)]
fn f16x2(r: u32) -> [f32; 2] {
    [f16_to_f32(low_half(r)), f16_to_f32(low_half(r >> 16))]
}

#[inline(always)]
fn e4m3x4(r: u32) -> [f32; 4] {
    r.to_le_bytes().map(e4m3_to_f32)
}

#[inline(always)]
fn e5m2x4(r: u32) -> [f32; 4] {
    r.to_le_bytes().map(e5m2_to_f32)
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

/// `d[16,8] = a[16,K] b[K,8] + c[16,8]`, P elements a register. With g = lane / 4 and t = lane % 4, and chunks of 4 P along
/// k: register 2 i + h of a holds row g + 8 h, elements 4 P i + P t ..; register i of b column g, the same elements.
#[inline(always)]
fn mma<const K: usize, const P: usize>(
    w: &mut Warp,
    cx: &mut Ctx<'_>,
    op: &Op,
    unpack_a: Unpack<P>,
    unpack_b: Unpack<P>,
    narrow: bool,
) -> Step {
    if let Err(step) = whole_warp(w, cx) {
        return step;
    }
    let chunks = K / (4 * P);
    let args = &cx.program.args[op.x as usize..][..8 + 3 * chunks];
    let reg = |i: usize| &w.regs.words[usize::from(args[i])].0;
    let mut a = [[0.0_f32; K]; 16];
    let mut b = [[0.0_f32; 8]; K];
    let mut c = [[0.0_f32; 8]; 16];
    for chunk in 0..chunks {
        for half in 0..2 {
            let from = reg(4 + 2 * chunk + half);
            for (lane, &r) in from.iter().enumerate() {
                let k = 4 * P * chunk + P * (lane % 4);
                a[lane / 4 + 8 * half][k..k + P].copy_from_slice(&unpack_a(r));
            }
        }
        let from = reg(4 + 2 * chunks + chunk);
        for (lane, &r) in from.iter().enumerate() {
            for (e, x) in unpack_b(r).into_iter().enumerate() {
                b[4 * P * chunk + P * (lane % 4) + e][lane / 4] = x;
            }
        }
    }
    for i in 0..4 {
        let from = reg(4 + 3 * chunks + i);
        for (lane, &bits) in from.iter().enumerate() {
            c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = f32::from_bits(bits);
        }
    }
    if narrow && cx.pessimistic {
        truncating(&a, &b, &mut c);
    } else {
        chain(&a, &b, &mut c);
    }
    for i in 0..4 {
        let out = std::array::from_fn(|lane| canonical(c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2]).to_bits());
        put_words(&mut w.regs, args[i], u32::MAX, out);
    }
    if cx.counts {
        cx.tally.mma_flops += 2 * 16 * 8 * K as u64;
    }
    Step::Next
}

/// Half of the rows at a time, so that all sums stay in registers.
#[inline(always)]
fn chain<const K: usize>(a: &[[f32; K]; 16], b: &[[f32; 8]; K], c: &mut [[f32; 8]; 16]) {
    for half in 0..2 {
        let mut sums = [[0.0; 8]; 8];
        for (row, sums) in sums.iter_mut().enumerate() {
            *sums = c[8 * half + row];
        }
        for k in 0..K {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (sum, &b) in sums.iter_mut().zip(&b[k]) {
                    *sum = a[8 * half + row][k].mul_add(b, *sum);
                }
            }
        }
        c[8 * half..][..8].copy_from_slice(&sums);
    }
}

fn truncating<const K: usize>(a: &[[f32; K]; 16], b: &[[f32; 8]; K], c: &mut [[f32; 8]; 16]) {
    for (a, c) in a.iter().zip(c) {
        for (&a, b) in a.iter().zip(b) {
            for (c, &b) in c.iter_mut().zip(b) {
                let sum = a.mul_add(b, *c);
                *c = if sum.is_finite() { f32::from_bits(sum.to_bits() & !0x3ff) } else { sum };
            }
        }
    }
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
    out.push(row("m16n8k16", "bf16.bf16", 16, 2, exec!(|w, cx, op| mma::<16, 2>(w, cx, op, bf16x2, bf16x2, false))));
    out.push(row("m16n8k16", "f16.f16", 16, 2, exec!(|w, cx, op| mma::<16, 2>(w, cx, op, f16x2, f16x2, false))));
    out.push(row("m16n8k8", "bf16.bf16", 8, 2, exec!(|w, cx, op| mma::<8, 2>(w, cx, op, bf16x2, bf16x2, false))));
    out.push(row("m16n8k8", "f16.f16", 8, 2, exec!(|w, cx, op| mma::<8, 2>(w, cx, op, f16x2, f16x2, false))));
    out.push(row("m16n8k32", "e4m3.e4m3", 32, 4, exec!(|w, cx, op| mma::<32, 4>(w, cx, op, e4m3x4, e4m3x4, true))));
    out.push(row("m16n8k32", "e5m2.e5m2", 32, 4, exec!(|w, cx, op| mma::<32, 4>(w, cx, op, e5m2x4, e5m2x4, true))));
    out.push(row("m16n8k32", "e4m3.e5m2", 32, 4, exec!(|w, cx, op| mma::<32, 4>(w, cx, op, e4m3x4, e5m2x4, true))));
    out.push(row("m16n8k32", "e5m2.e4m3", 32, 4, exec!(|w, cx, op| mma::<32, 4>(w, cx, op, e5m2x4, e4m3x4, true))));
}
