//! `cp.async`: copies from global to shared memory, in groups that each thread counts for itself.
//!
//! With checks, a destination is unreadable from the copy's issue until its thread waits for the group, when the data, read
//! at issue, is written. Without checks the data is written at once.

use std::sync::atomic::Ordering::Relaxed;

use crate::counters::Class;
use crate::exec::global::{count, locate};
use crate::exec::memory::{Shape, addresses, lanes_within, misaligned, misaligned_fault, offsets, word};
use crate::exec::shared::{count_shared, shared_bounds, shared_fault};
use crate::exec::tracked;
use crate::exec::value::low_word;
use crate::exec::{Exec, Row, Step, exec};
use crate::fault::FaultKind;
use crate::program::Op;
use crate::shadow::Actor;
use crate::state::{Copy, Ctx, Warp, first_lane};
use crate::types::Kind;

/// Accesses `x` (destination) and `x + 1` (source, with the slot of its size); `imm` bytes each.
pub(crate) const CP_ASYNC: Exec = exec!(|w, cx, op| copy(w, cx, op));

fn copy(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    let (to, from) = (&cx.program.mems[op.x as usize], &cx.program.mems[op.x as usize + 1]);
    let bytes = op.imm.cast_unsigned();
    let (target, source) = (addresses(w, cx, to), addresses(w, cx, from));
    let sizes = w.regs.words[usize::from(cx.program.args[from.args as usize + 1])].0;
    w.idle = 0;
    for addr in [&target, &source] {
        if let Some(lane) = misaligned(addr, w.mask, bytes) {
            return misaligned_fault(cx, lane, addr[lane], bytes);
        }
    }
    let within = lanes_within(&target, w.mask, 0, cx.shared.bytes, bytes);
    if within != w.mask {
        let lane = first_lane(w.mask & !within);
        return shared_bounds(cx, lane, target[lane], bytes);
    }
    let mut data = Box::new([[0; 4]; 32]);
    if let Err(step) = fetch(w, cx, from.site, &source, &sizes, bytes, &mut data) {
        return step;
    }
    let at = offsets(&target, w.mask, 0);
    let words = low_word(bytes / 4);
    if cx.counts {
        count_shared(cx, to.site, &at, w.mask, words);
    }
    if let Some(shadow) = &mut cx.shared.shadow {
        for i in (0..32).filter(|i| w.mask >> i & 1 == 1) {
            let me = Actor { thread: thread(w, i), atomic: false };
            for j in 0..words {
                if let Err(problem) = shadow.begin_copy((at[i] / 4 + j) as usize, me) {
                    return shared_fault(cx, i, target[i], problem);
                }
            }
        }
        let mut left = w.mask;
        while left != 0 {
            let group = w.groups[first_lane(left)];
            let mask = (0..32).fold(0, |mask, i| mask | u32::from(w.groups[i] == group) << i) & left;
            w.copies.push(Copy { mask, group, bytes: low_word(bytes), to: at, data: data.clone() });
            left &= !mask;
        }
    } else {
        for i in (0..32).filter(|i| w.mask >> i & 1 == 1) {
            let start = (at[i] / 4) as usize;
            let n = words as usize;
            cx.shared.words[start..start + n].copy_from_slice(&data[i][..n]);
        }
    }
    Step::Next
}

fn thread(w: &Warp, lane: usize) -> u32 {
    w.index * 32 + u32::try_from(lane).expect("a lane")
}

/// Reads the source of every lane that copies more than zeros.
fn fetch(
    w: &Warp,
    cx: &mut Ctx<'_>,
    site: u32,
    source: &[u64; 32],
    sizes: &[u32; 32],
    bytes: u64,
    data: &mut [[u32; 4]; 32],
) -> Result<(), Step> {
    let memory = cx.memory;
    let mut rest = (0..32).fold(0, |mask, i| mask | u32::from(w.mask >> i & 1 == 1 && sizes[i] > 0) << i);
    while rest != 0 {
        let lane = first_lane(rest);
        let size = u64::from(sizes[lane]);
        if size > bytes {
            let detail = format!("cp.async of {bytes} bytes with a source of {size}");
            return Err(cx.fault(FaultKind::OutOfBounds, lane, Some(source[lane]), detail));
        }
        // Lanes with sources of one size go together.
        let alike = (0..32).fold(0, |mask, i| mask | u32::from(u64::from(sizes[i]) == size) << i) & rest;
        let (index, lanes) = locate(cx, site, source, alike, size)?;
        rest &= !lanes;
        let a = &memory.live[index];
        let offset = offsets(source, lanes, a.base);
        if cx.counts {
            count(cx, a, index, 0, &offset, lanes, low_word(size), Shape::Gather);
        }
        for i in (0..32).filter(|i| lanes >> i & 1 == 1) {
            let start = word(offset[i]);
            for j in 0..low_word(size.div_ceil(4)) {
                let word = start + j as usize;
                let left = size - u64::from(j) * 4;
                let (bits, ones) = if left >= 4 { (15, u32::MAX) } else { ((1 << left) - 1, (1 << (8 * left)) - 1) };
                if cx.checks && !a.whole && a.shadow[word].load(Relaxed) & bits != bits {
                    let place = format!("{} bytes into the allocation {:#x}", source[i] - a.base, a.base);
                    let detail = format!("cp.async from {place}, where nothing was written");
                    return Err(cx.fault(FaultKind::Uninitialized, i, Some(source[i]), detail));
                }
                if cx.checks
                    && a.tracked.load(Relaxed) == cx.launch
                    && let Err(found) = tracked::copied(w, cx, a, i, word, bits)
                {
                    return Err(tracked::conflict_fault(cx, a, source[i], found));
                }
                data[i][j as usize] = a.words[word].load(Relaxed) & ones;
            }
        }
    }
    Ok(())
}

/// Completes the copies of each lane in the mask whose group number is below the lane's limit.
fn finish(w: &mut Warp, cx: &mut Ctx<'_>, limit: &[u32; 32]) {
    let mut copies = std::mem::take(&mut w.copies);
    for copy in &mut copies {
        let ready = (0..32).fold(0, |mask, i| mask | u32::from(copy.group < limit[i]) << i) & copy.mask & w.mask;
        copy.mask &= !ready;
        let n = (copy.bytes / 4) as usize;
        for i in (0..32).filter(|i| ready >> i & 1 == 1) {
            let start = (copy.to[i] / 4) as usize;
            cx.shared.words[start..start + n].copy_from_slice(&copy.data[i][..n]);
            if let Some(shadow) = &mut cx.shared.shadow {
                let me = Actor { thread: thread(w, i), atomic: false };
                (start..start + n).for_each(|word| shadow.end_copy(word, me));
            }
        }
    }
    copies.retain(|copy| copy.mask != 0);
    w.copies = copies;
}

/// The rows of this file: the groups.
pub(crate) fn rows(out: &mut Vec<Row>) {
    let row = |name: &str, src: Vec<Kind>, exec| Row {
        names: vec![name.to_string()],
        dst: vec![],
        src,
        count: Class::Async,
        exec,
        together: false,
    };
    out.push(row(
        "cp.async.commit_group",
        vec![],
        exec!(|w, _, _op| {
            for i in 0..32 {
                w.groups[i] += w.mask >> i & 1;
            }
            Step::Next
        }),
    ));
    out.push(row(
        "cp.async.wait_group",
        vec![Kind::Word],
        exec!(|w, cx, op| {
            let pending = w.regs.words[usize::from(op.r[0])].0;
            let limit = std::array::from_fn(|i| w.groups[i].saturating_sub(pending[i]));
            finish(w, cx, &limit);
            Step::Next
        }),
    ));
    out.push(row(
        "cp.async.wait_all",
        vec![],
        exec!(|w, cx, _op| {
            finish(w, cx, &[u32::MAX; 32]);
            Step::Next
        }),
    ));
}
