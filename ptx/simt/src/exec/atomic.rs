//! Atomic operations on integers, lane after lane. Those on floats are refused at load: their order would decide the bits.

use std::sync::atomic::Ordering::Relaxed;

use crate::exec::global::{count, locate, mark_atomic};
use crate::exec::memory::{Shape, addresses, lanes_within, misaligned, misaligned_fault, offsets, word};
use crate::exec::shared::{count_shared, shared_bounds, shared_fault};
use crate::exec::tracked;
use crate::exec::value::low_word;
use crate::exec::{Exec, Step, exec};
use crate::fault::FaultKind;
use crate::program::{Mem, Op, Space};
use crate::state::{Ctx, Warp};
use crate::types::SHARED_WINDOW;

/// `atom` and `red`: slots are the address, the destination, b and c.
pub(crate) const ATOMIC: Exec = exec!(|w, cx, op| atomic(w, cx, op));

/// The operations, as `variant` numbers them; those that depend on it have signed forms.
pub(crate) const OPERATIONS: [&str; 12] =
    ["add", "min.u", "max.u", "min.s", "max.s", "and", "or", "xor", "exch", "cas", "inc", "dec"];

/// The new value.
#[inline(always)]
fn apply(operation: u8, width: u8, old: u64, b: u64, c: u64) -> u64 {
    let signed = |x: u64| if width == 4 { i64::from(low_word(x).cast_signed()) } else { x.cast_signed() };
    let new = match operation {
        0 => old.wrapping_add(b),
        1 => old.min(b),
        2 => old.max(b),
        3 => {
            if signed(old) <= signed(b) {
                old
            } else {
                b
            }
        }
        4 => {
            if signed(old) >= signed(b) {
                old
            } else {
                b
            }
        }
        5 => old & b,
        6 => old | b,
        7 => old ^ b,
        8 => b,
        9 => {
            if old == b {
                c
            } else {
                old
            }
        }
        10 => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        _ => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    };
    if width == 4 { new & 0xffff_ffff } else { new }
}

fn atomic(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    let m = &cx.program.mems[op.x as usize];
    let addr = addresses(w, cx, m);
    w.idle = 0;
    if let Some(lane) = misaligned(&addr, w.mask, u64::from(m.width)) {
        return misaligned_fault(cx, lane, addr[lane], u64::from(m.width));
    }
    let args: [u16; 3] = cx.program.args[m.args as usize + 1..][..3].try_into().expect("three slots");
    let operand = |w: &Warp, k: usize, i: usize| {
        let slot = usize::from(args[k]);
        if m.wide { w.regs.wides[slot].0[i] } else { u64::from(w.regs.words[slot].0[i]) }
    };
    let window = if m.space == Space::Generic { SHARED_WINDOW } else { 0 };
    let mut counted = [false; 2];
    for i in (0..32).filter(|i| w.mask >> i & 1 == 1) {
        let (b, c) = (operand(w, 1, i), operand(w, 2, i));
        let in_shared = m.space == Space::Shared || (m.space == Space::Generic && addr[i] >> 32 == SHARED_WINDOW >> 32);
        let old = if in_shared {
            let local = addr.map(|a| a.wrapping_sub(window));
            shared(w, cx, m, &local, i, b, c, &mut counted[0])
        } else {
            global(w, cx, m, &addr, i, b, c, &mut counted[1])
        };
        let old = match old {
            Ok(old) => old,
            Err(step) => return step,
        };
        let slot = usize::from(args[0]);
        if m.wide {
            w.regs.wides[slot].0[i] = old;
        } else {
            w.regs.words[slot].0[i] = low_word(old);
        }
    }
    Step::Next
}

#[allow(clippy::too_many_arguments)]
fn shared(
    w: &Warp,
    cx: &mut Ctx<'_>,
    m: &Mem,
    addr: &[u64; 32],
    lane: usize,
    b: u64,
    c: u64,
    counted: &mut bool,
) -> Result<u64, Step> {
    let size = u64::from(m.width);
    let within = lanes_within(addr, 1 << lane, 0, cx.shared.bytes, size);
    if within == 0 {
        return Err(shared_bounds(cx, lane, addr[lane], size));
    }
    if cx.counts && !*counted {
        *counted = true;
        let lanes = lanes_within(addr, w.mask, 0, cx.shared.bytes, size);
        count_shared(cx, m.site, &addr.map(low_word), lanes, u32::from(m.width) / 4);
    }
    let start = usize::try_from(addr[lane] / 4).unwrap_or(usize::MAX);
    let words = usize::from(m.width / 4);
    if let Some(shadow) = &mut cx.shared.shadow {
        let thread = w.index * 32 + u32::try_from(lane).expect("a lane");
        for word in start..start + words {
            if let Err(problem) = shadow.atomic(word, thread) {
                return Err(shared_fault(cx, lane, addr[lane], problem));
            }
        }
    }
    let cells = &mut cx.shared.words[start..start + words];
    let old = cells.iter().rev().fold(0, |x, &word| x << 32 | u64::from(word));
    let new = apply(m.variant, m.width, old, b, c);
    for (i, cell) in cells.iter_mut().enumerate() {
        *cell = low_word(new >> (32 * i));
    }
    Ok(old)
}

#[allow(clippy::too_many_arguments)]
fn global(
    w: &Warp,
    cx: &mut Ctx<'_>,
    m: &Mem,
    addr: &[u64; 32],
    lane: usize,
    b: u64,
    c: u64,
    counted: &mut bool,
) -> Result<u64, Step> {
    let size = u64::from(m.width);
    let (at, _) = locate(cx, m.site, addr, 1 << lane, size)?;
    let memory = cx.memory;
    let a = &memory.live[at];
    let offset = low_word(addr[lane] - a.base);
    if cx.counts && !*counted {
        *counted = true;
        let lanes = lanes_within(addr, w.mask, a.base, a.bytes, size);
        let offsets = offsets(addr, lanes, a.base);
        count(cx, a, at, 0, &offsets, lanes, low_word(size), Shape::Gather);
        count(cx, a, at, 1, &offsets, lanes, low_word(size), Shape::Gather);
    }
    if !mark_atomic(cx, a, offset, low_word(size)) {
        let detail = format!("an atomic {offset} bytes into the allocation {:#x}, where nothing was written", a.base);
        return Err(cx.fault(FaultKind::Uninitialized, lane, Some(addr[lane]), detail));
    }
    if cx.checks
        && let Err(found) = tracked::atomic(w, cx, a, lane, offset, low_word(size))
    {
        return Err(tracked::conflict_fault(cx, a, addr[lane], found));
    }
    let start = word(offset);
    if m.width == 4 {
        let cell = &a.words[start];
        let update = |old: u32| Some(low_word(apply(m.variant, 4, u64::from(old), b, c)));
        let (Ok(old) | Err(old)) = cell.fetch_update(Relaxed, Relaxed, update);
        return Ok(u64::from(old));
    }
    // Memory is kept in words of 32 bits, so wider atomics take turns.
    let _turn = memory.wide_atomics.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (low, high) = (&a.words[start], &a.words[start + 1]);
    let old = u64::from(low.load(Relaxed)) | u64::from(high.load(Relaxed)) << 32;
    let new = apply(m.variant, 8, old, b, c);
    low.store(low_word(new), Relaxed);
    high.store(low_word(new >> 32), Relaxed);
    Ok(old)
}
