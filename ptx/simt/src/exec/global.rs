//! Loads and stores of global memory: allocations, their shadow, and what is counted.

use std::sync::atomic::Ordering::Relaxed;

use crate::counters::Traffic;
use crate::exec::Step;
use crate::exec::memory::{Shape, lane_words, lanes_within, load_from, offsets, shape, size_of, store_words, word};
use crate::exec::tracked;
use crate::fault::FaultKind;
use crate::memory::Allocation;
use crate::program::Mem;
use crate::state::{Ctx, Warp, first_lane};
use crate::types::GLOBAL_BASE;

/// The allocation that holds the access of the first lane of `mask`, and the lanes that lie in it as well.
#[inline(always)]
pub(crate) fn locate(
    cx: &mut Ctx<'_>,
    site: u32,
    addr: &[u64; 32],
    mask: u32,
    size: u64,
) -> Result<(usize, u32), Step> {
    let lane = first_lane(mask);
    let cached = cx.sites[site as usize] as usize;
    if let Some(a) = cx.memory.live.get(cached)
        && a.contains(addr[lane], addr[lane].wrapping_add(size))
    {
        return Ok((cached, lanes_within(addr, mask, a.base, a.bytes, size)));
    }
    locate_slow(cx, site, addr, mask, size)
}

#[cold]
#[inline(never)]
fn locate_slow(cx: &mut Ctx<'_>, site: u32, addr: &[u64; 32], mask: u32, size: u64) -> Result<(usize, u32), Step> {
    let lane = first_lane(mask);
    let address = addr[lane];
    let found = cx.memory.find(address).filter(|&at| cx.memory.live[at].contains(address, address + size));
    match found {
        Some(at) => {
            cx.sites[site as usize] = u32::try_from(at).expect("allocations are counted in 32 bits");
            let a = &cx.memory.live[at];
            Ok((at, lanes_within(addr, mask, a.base, a.bytes, size)))
        }
        None => {
            let kind = if cx.memory.is_freed(address) { FaultKind::UseAfterFree } else { FaultKind::OutOfBounds };
            // The first byte that is not in any allocation says most about what went wrong.
            let end = cx.memory.range(address).map_or(address, |(base, bytes)| base + bytes);
            let mut detail = format!("{size} bytes, {}", cx.memory.describe(address));
            if end != address {
                detail = format!("{size} bytes, of which the last lie outside: {}", cx.memory.describe(end));
            }
            if address < GLOBAL_BASE {
                detail.push_str("; global memory begins at 0x7000000000");
            }
            Err(cx.fault(kind, lane, Some(address), detail))
        }
    }
}

#[inline(always)]
pub(crate) fn global<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32], mask: u32) -> Step {
    let size = u64::from(size_of(m));
    let mut rest = mask;
    while rest != 0 {
        let (at, lanes) = match locate(cx, m.site, addr, rest, size) {
            Ok(found) => found,
            Err(step) => return step,
        };
        rest &= !lanes;
        let step = global_in::<STORES>(w, cx, m, addr, lanes, at);
        if step != Step::Next {
            return step;
        }
    }
    Step::Next
}

/// An access of lanes that all lie in one allocation.
#[inline(always)]
fn global_in<const STORES: bool>(
    w: &mut Warp,
    cx: &mut Ctx<'_>,
    m: &Mem,
    addr: &[u64; 32],
    mask: u32,
    at: usize,
) -> Step {
    let memory = cx.memory;
    let a = &memory.live[at];
    let size = size_of(m);
    let offset = offsets(addr, mask, a.base);
    let shape = shape(&offset, mask, size);
    if cx.checks
        && !STORES
        && (!a.whole || m.read_only && a.last_write.load(Relaxed) == cx.launch)
        && let Err((lane, kind)) = check_load(a, m, &offset, mask, shape, cx.launch)
    {
        return shadow_fault(cx, a, kind, lane, addr[lane]);
    }
    if cx.checks
        && !STORES
        && a.tracked.load(Relaxed) == cx.launch
        && let Err(found) = tracked::load(w, cx, a, m, &offset, mask, shape)
    {
        return tracked::conflict_fault(cx, a, addr[found.0], found);
    }
    if cx.counts {
        count(cx, a, at, usize::from(STORES), &offset, mask, size, shape);
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let words = &a.words;
    if STORES {
        if cx.checks {
            mark_store(a, m, &offset, mask, shape, cx.launch);
            return match tracked::store(w, cx, a, m, &offset, mask, shape) {
                Ok(()) => Step::Next,
                Err(found) => tracked::conflict_fault(cx, a, addr[found.0], found),
            };
        }
        store_words(w, m, args, &offset, mask, |word, value, bytes| {
            if bytes == u32::MAX {
                words[word].store(value, Relaxed);
            } else {
                // Neighbouring bytes of the word may belong to a block on another thread.
                let _ = words[word].fetch_update(Relaxed, Relaxed, |old| Some(old & !bytes | value & bytes));
            }
        });
        return Step::Next;
    }
    load_from(w, m, args, &offset, mask, shape, words.as_slice());
    Step::Next
}

#[inline(always)]
fn check_load(
    a: &Allocation,
    m: &Mem,
    offset: &[u32; 32],
    mask: u32,
    shape: Shape,
    launch: u32,
) -> Result<(), (usize, FaultKind)> {
    let size = size_of(m);
    let written = |s: u32| m.read_only && s >> 4 == launch;
    if shape == Shape::Contiguous && size >= 4 {
        let start = word(offset[0]);
        let all = &a.shadow[start..start + word(32 * size)];
        let (mut init, mut hit) = (15, false);
        for s in all {
            let s = s.load(Relaxed);
            init &= s;
            hit |= written(s);
        }
        if init == 15 && !hit {
            return Ok(());
        }
    }
    for i in (0..32).filter(|i| mask >> i & 1 == 1) {
        for (word, bits) in lane_words(offset[i], size) {
            let s = a.shadow[word].load(Relaxed);
            if s & bits != bits {
                return Err((i, FaultKind::Uninitialized));
            }
            if written(s) {
                return Err((i, FaultKind::ReadOnlyWritten));
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn mark_store(a: &Allocation, m: &Mem, offset: &[u32; 32], mask: u32, shape: Shape, launch: u32) {
    let size = size_of(m);
    note_store(a, launch);
    if shape == Shape::Contiguous && size >= 4 {
        let start = word(offset[0]);
        a.shadow[start..start + word(32 * size)].iter().for_each(|s| s.store(launch << 4 | 15, Relaxed));
        return;
    }
    for i in (0..32).filter(|i| mask >> i & 1 == 1) {
        for (word, bits) in lane_words(offset[i], size) {
            mark_word(a, word, bits, launch);
        }
    }
}

/// The launch stores to the allocation, foreseen or not.
#[inline(always)]
fn note_store(a: &Allocation, launch: u32) {
    if a.last_write.load(Relaxed) != launch {
        a.track(launch);
        a.last_write.store(launch, Relaxed);
    }
}

#[inline(always)]
fn mark_word(a: &Allocation, word: usize, bits: u32, launch: u32) {
    if bits == 15 {
        a.shadow[word].store(launch << 4 | 15, Relaxed);
    } else {
        let _ = a.shadow[word].fetch_update(Relaxed, Relaxed, |old| Some(launch << 4 | old & 15 | bits));
    }
}

/// Marks what an atomic writes, and says whether it may read there.
pub(crate) fn mark_atomic(cx: &Ctx<'_>, a: &Allocation, offset: u32, size: u32) -> bool {
    if !cx.checks {
        return true;
    }
    note_store(a, cx.launch);
    let mut known = true;
    for (word, bits) in lane_words(offset, size) {
        known &= a.shadow[word].load(Relaxed) & bits == bits;
        mark_word(a, word, bits, cx.launch);
    }
    known
}

/// Counts bytes and sectors of lanes in one allocation; `way` is 0 for loads and 1 for stores.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn count(
    cx: &mut Ctx<'_>,
    a: &Allocation,
    at: usize,
    way: usize,
    offset: &[u32; 32],
    mask: u32,
    size: u32,
    shape: Shape,
) {
    let launch = cx.launch;
    let traffic = &mut cx.tally.allocations[at][way];
    traffic.bytes += u64::from(mask.count_ones() * size);
    let touch = |traffic: &mut Traffic, sector: u32| {
        let stamp = &a.stamps[way][sector as usize];
        if stamp.load(Relaxed) != launch && stamp.swap(launch, Relaxed) != launch {
            traffic.unique_sectors += 1;
        }
    };
    if shape != Shape::Gather {
        let (first, last) = (offset[0] / 32, (offset[31] + size - 1) / 32);
        traffic.sectors += u64::from(last - first + 1);
        for sector in first..=last {
            touch(traffic, sector);
        }
        return;
    }
    let mut seen = [0; 32];
    let (mut n, mut last, mut top) = (0, u32::MAX, 0);
    // Offsets mostly rise with the lanes: then one comparison with the highest sector finds what is new.
    for (i, offset) in offset.iter().enumerate() {
        let sector = offset / 32;
        if mask & 1 << i == 0 || sector == last {
            continue;
        }
        last = sector;
        if n > 0 && sector <= top && seen[..n].contains(&sector) {
            continue;
        }
        top = top.max(sector);
        seen[n] = sector;
        n += 1;
        touch(traffic, sector);
    }
    traffic.sectors += n as u64;
}

#[cold]
fn shadow_fault(cx: &mut Ctx<'_>, a: &Allocation, kind: FaultKind, lane: usize, address: u64) -> Step {
    let place = format!("{} bytes into the allocation {:#x} of {} bytes", address - a.base, a.base, a.bytes);
    let detail = match kind {
        FaultKind::Uninitialized => format!("{place}; neither the host nor a kernel has written there"),
        _ => format!("{place}; the hardware may return what was there before"),
    };
    cx.fault(kind, lane, Some(address), detail)
}
