//! Loads and stores: addresses, where they point, the data, and what the checks and counters make of them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::exec::value::{low_word, put_wides, put_words};
use crate::exec::{Exec, Step, exec};
use crate::fault::FaultKind;
use crate::memory::Allocation;
use crate::program::{Mem, Op, Space};
use crate::shadow::{Actor, Problem, Shadow};
use crate::state::{Ctx, Warp, first_lane};
use crate::types::{GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW};

/// Any load; `x` numbers the access.
pub(crate) const LOAD: Exec = exec!(|w, cx, op| access::<false>(w, cx, op));
/// Any store.
pub(crate) const STORE: Exec = exec!(|w, cx, op| access::<true>(w, cx, op));

/// How the addresses of the lanes lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// All lanes, one access after the other.
    Contiguous,
    /// The same address in all lanes of the mask.
    Uniform,
    /// Anything else.
    Gather,
}

/// The addresses of an access, as the instruction gives them.
#[inline(always)]
pub(crate) fn addresses(w: &Warp, cx: &Ctx<'_>, m: &Mem) -> [u64; 32] {
    let slot = usize::from(cx.program.args[m.args as usize]);
    let offset = m.offset.cast_unsigned();
    if m.wide_address {
        w.regs.wides[slot].0.map(|a| a.wrapping_add(offset))
    } else {
        let offset = low_word(offset);
        w.regs.words[slot].0.map(|a| u64::from(a.wrapping_add(offset)))
    }
}

/// The first lane whose address is no multiple of `size`.
#[inline(always)]
pub(crate) fn misaligned(addr: &[u64; 32], mask: u32, size: u64) -> Option<usize> {
    let bits = (0..32).fold(0, |bits, i| bits | if mask & 1 << i != 0 { addr[i] } else { 0 });
    if bits & (size - 1) == 0 {
        return None;
    }
    (0..32).find(|&i| mask >> i & 1 == 1 && addr[i] & (size - 1) != 0)
}

#[cold]
pub(crate) fn misaligned_fault(cx: &mut Ctx<'_>, lane: usize, address: u64, size: u64) -> Step {
    cx.fault(FaultKind::Misaligned, lane, Some(address), format!("an access of {size} bytes at a multiple of its size"))
}

#[inline(always)]
fn access<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    let m = &cx.program.mems[op.x as usize];
    let addr = addresses(w, cx, m);
    let size = u64::from(m.width) * u64::from(m.count);
    if STORES {
        w.idle = 0;
    }
    if let Some(lane) = misaligned(&addr, w.mask, size) {
        return misaligned_fault(cx, lane, addr[lane], size);
    }
    match m.space {
        Space::Global => global::<STORES>(w, cx, m, &addr, w.mask),
        Space::Shared => shared::<STORES>(w, cx, m, &addr, w.mask),
        Space::Local => local::<STORES>(w, cx, m, &addr, w.mask),
        Space::Param => params(w, cx, m, &addr),
        Space::Generic => generic::<STORES>(w, cx, m, &addr),
    }
}

/// Generic addresses: each lane goes where its window says.
fn generic<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32]) -> Step {
    let lanes = |within: &dyn Fn(u64) -> bool| {
        (0..32).fold(0, |mask, i| mask | u32::from(w.mask >> i & 1 == 1 && within(addr[i])) << i)
    };
    let in_shared = lanes(&|a| a >> 32 == SHARED_WINDOW >> 32);
    let in_local = lanes(&|a| a >> 32 == LOCAL_WINDOW >> 32);
    let rest = w.mask & !in_shared & !in_local;
    let mut step = Step::Next;
    if rest != 0 {
        step = global::<STORES>(w, cx, m, addr, rest);
    }
    if step == Step::Next && in_shared != 0 {
        step = shared::<STORES>(w, cx, m, &addr.map(|a| a.wrapping_sub(SHARED_WINDOW)), in_shared);
    }
    if step == Step::Next && in_local != 0 {
        step = local::<STORES>(w, cx, m, &addr.map(|a| a.wrapping_sub(LOCAL_WINDOW)), in_local);
    }
    step
}

/// Lanes of `mask` whose access lies within `base .. base + bytes`.
#[inline(always)]
pub(crate) fn lanes_within(addr: &[u64; 32], mask: u32, base: u64, bytes: u64, size: u64) -> u32 {
    let Some(room) = bytes.checked_sub(size) else { return 0 };
    let mut out = 0;
    for (i, &a) in addr.iter().enumerate() {
        out |= if a.wrapping_sub(base) <= room { 1 << i } else { 0 };
    }
    out & mask
}

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
fn global<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32], mask: u32) -> Step {
    let size = u64::from(m.width) * u64::from(m.count);
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
    let size = u64::from(m.width) * u64::from(m.count);
    let first = addr[first_lane(mask)];
    // Lanes outside of the mask read what the first lane reads, so that no loop needs a condition.
    let offset: [u64; 32] = std::array::from_fn(|i| (if mask & 1 << i != 0 { addr[i] } else { first }) - a.base);
    let shape = shape(&offset, mask, size);
    if cx.checks
        && !STORES
        && (!a.whole || m.read_only && a.last_write.load(Relaxed) == cx.launch)
        && let Err((lane, kind)) = check_load(a, m, &offset, mask, shape, cx.launch)
    {
        return shadow_fault(cx, a, kind, lane, addr[lane]);
    }
    if cx.counts {
        count(cx, a, at, usize::from(STORES), &offset, mask, size);
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let words = &a.words;
    if STORES {
        if cx.checks {
            mark_store(a, m, &offset, mask, shape, cx.launch);
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
fn word(offset: u64) -> usize {
    usize::try_from(offset / 4).unwrap_or(usize::MAX)
}

/// How the addresses of the lanes in the mask lie; the others hold the first one's.
#[inline(always)]
fn shape(offset: &[u64; 32], mask: u32, size: u64) -> Shape {
    let (mut steps, mut differs) = (0, 0);
    let mut want = offset[0];
    for a in offset {
        differs |= a ^ offset[0];
        steps |= a ^ want;
        want = want.wrapping_add(size);
    }
    if differs == 0 {
        Shape::Uniform
    } else if mask == u32::MAX && steps == 0 {
        Shape::Contiguous
    } else {
        Shape::Gather
    }
}

/// Words that can be loaded from.
trait Source {
    fn at(&self, word: usize) -> u32;
    fn run(&self, start: usize, words: usize) -> &Self;
}

impl Source for [u32] {
    #[inline(always)]
    fn at(&self, word: usize) -> u32 {
        self[word]
    }
    #[inline(always)]
    fn run(&self, start: usize, words: usize) -> &Self {
        &self[start..start + words]
    }
}

impl Source for [AtomicU32] {
    #[inline(always)]
    fn at(&self, word: usize) -> u32 {
        self[word].load(Relaxed)
    }
    #[inline(always)]
    fn run(&self, start: usize, words: usize) -> &Self {
        &self[start..start + words]
    }
}

/// Loads by the shape of the addresses.
#[inline(always)]
fn load_from<S: Source + ?Sized>(
    w: &mut Warp,
    m: &Mem,
    args: &[u16],
    offset: &[u64; 32],
    mask: u32,
    shape: Shape,
    from: &S,
) {
    let n = usize::from(m.width) * usize::from(m.count) / 4;
    match shape {
        Shape::Uniform => {
            let run = from.run(word(offset[0]), n.max(1));
            load_words(w, m, args, offset, mask, |_, j| run.at(j));
        }
        Shape::Contiguous if n > 0 => {
            let run = from.run(word(offset[0]), 32 * n);
            match n {
                1 => load_words(w, m, args, offset, mask, |i, j| run.at(i + j)),
                2 => load_words(w, m, args, offset, mask, |i, j| run.at(2 * i + j)),
                _ => load_words(w, m, args, offset, mask, |i, j| run.at(4 * i + j)),
            }
        }
        _ => {
            let start = offset.map(word);
            load_words(w, m, args, offset, mask, |i, j| from.at(start[i] + j));
        }
    }
}

/// Puts what `fetch` finds into registers; `fetch` takes a lane and the number of a word of its access.
#[inline(always)]
fn load_words(w: &mut Warp, m: &Mem, args: &[u16], offset: &[u64; 32], mask: u32, fetch: impl Fn(usize, usize) -> u32) {
    for (j, &slot) in args.iter().enumerate() {
        match m.width {
            4 if !m.wide => put_words(&mut w.regs, slot, mask, std::array::from_fn(|i| fetch(i, j))),
            8 => {
                let value = |i| u64::from(fetch(i, 2 * j)) | u64::from(fetch(i, 2 * j + 1)) << 32;
                put_wides(&mut w.regs, slot, mask, std::array::from_fn(value));
            }
            _ => {
                let width = usize::from(m.width);
                let bits = 8 * u32::from(m.width);
                let value = |i: usize| {
                    let byte = (low_word(offset[i]) & 3) as usize + j * width;
                    let raw = fetch(i, byte / 4) >> (8 * (byte % 4));
                    let up = 64 - bits;
                    let shifted = u64::from(raw) << up;
                    if m.signed { (shifted.cast_signed() >> up).cast_unsigned() } else { shifted >> up }
                };
                if m.wide {
                    put_wides(&mut w.regs, slot, mask, std::array::from_fn(value));
                } else {
                    // A narrower signed value fills the register; what is in 16-bit registers keeps 16 bits.
                    put_words(&mut w.regs, slot, mask, std::array::from_fn(|i| low_word(value(i))));
                }
            }
        }
    }
}

/// Hands the registers' values to `put`, lane by lane: a word number, a value in its place, and its bits.
#[inline(always)]
fn store_words(w: &Warp, m: &Mem, args: &[u16], offset: &[u64; 32], mask: u32, mut put: impl FnMut(usize, u32, u32)) {
    for (j, &slot) in args.iter().enumerate() {
        let slot = usize::from(slot);
        for i in (0..32).filter(|i| mask >> i & 1 == 1) {
            let value = if m.wide { w.regs.wides[slot].0[i] } else { u64::from(w.regs.words[slot].0[i]) };
            let start = word(offset[i]);
            match m.width {
                4 => put(start + j, low_word(value), u32::MAX),
                8 => {
                    put(start + 2 * j, low_word(value), u32::MAX);
                    put(start + 2 * j + 1, low_word(value >> 32), u32::MAX);
                }
                _ => {
                    let byte = (low_word(offset[i]) & 3) as usize + j * usize::from(m.width);
                    let ones = (1_u32 << (8 * m.width)) - 1;
                    let shift = 8 * (byte % 4);
                    put(start + byte / 4, low_word(value) << shift, ones << shift);
                }
            }
        }
    }
}

/// The words of a lane's access and the bytes of each that it touches.
#[inline(always)]
fn lane_words(offset: u64, size: u64) -> impl Iterator<Item = (usize, u32)> {
    let start = word(offset);
    let (count, bits) = if size >= 4 { (size / 4, 15) } else { (1, ((1 << size) - 1) << (offset & 3)) };
    (0..usize::try_from(count).unwrap_or(0)).map(move |j| (start + j, bits))
}

#[inline(always)]
fn check_load(
    a: &Allocation,
    m: &Mem,
    offset: &[u64; 32],
    mask: u32,
    shape: Shape,
    launch: u32,
) -> Result<(), (usize, FaultKind)> {
    let size = u64::from(m.width) * u64::from(m.count);
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
fn mark_store(a: &Allocation, m: &Mem, offset: &[u64; 32], mask: u32, shape: Shape, launch: u32) {
    let size = u64::from(m.width) * u64::from(m.count);
    if a.last_write.load(Relaxed) != launch {
        a.last_write.store(launch, Relaxed);
    }
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

#[inline(always)]
fn mark_word(a: &Allocation, word: usize, bits: u32, launch: u32) {
    if bits == 15 {
        a.shadow[word].store(launch << 4 | 15, Relaxed);
    } else {
        let _ = a.shadow[word].fetch_update(Relaxed, Relaxed, |old| Some(launch << 4 | old & 15 | bits));
    }
}

/// Marks what an atomic writes, and says whether it may read there.
pub(crate) fn mark_atomic(cx: &Ctx<'_>, a: &Allocation, offset: u64, size: u64) -> bool {
    if !cx.checks {
        return true;
    }
    a.last_write.store(cx.launch, Relaxed);
    let mut known = true;
    for (word, bits) in lane_words(offset, size) {
        known &= a.shadow[word].load(Relaxed) & bits == bits;
        mark_word(a, word, bits, cx.launch);
    }
    known
}

/// Counts bytes and sectors of lanes in one allocation; `way` is 0 for loads and 1 for stores.
#[inline(always)]
pub(crate) fn count(cx: &mut Ctx<'_>, a: &Allocation, at: usize, way: usize, offset: &[u64; 32], mask: u32, size: u64) {
    let traffic = &mut cx.tally.allocations[at][way];
    traffic.bytes += u64::from(mask.count_ones()) * size;
    let mut seen = [0; 32];
    let (mut n, mut last) = (0, u64::MAX);
    // Offsets mostly rise with the lanes: then one comparison with the last sector finds what is new.
    for (i, offset) in offset.iter().enumerate() {
        let sector = offset / 32;
        if mask & 1 << i == 0 || sector == last {
            continue;
        }
        if n > 0 && sector < seen[..n].iter().copied().fold(0, u64::max) + 1 && seen[..n].contains(&sector) {
            last = sector;
            continue;
        }
        last = sector;
        seen[n] = sector;
        n += 1;
        let stamp = &a.stamps[way][usize::try_from(sector).unwrap_or(usize::MAX)];
        if stamp.load(Relaxed) != cx.launch && stamp.swap(cx.launch, Relaxed) != cx.launch {
            traffic.unique_sectors += 1;
        }
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

/// Says that an access of a lane goes beyond shared memory.
#[cold]
pub(crate) fn shared_bounds(cx: &mut Ctx<'_>, lane: usize, address: u64, size: u64) -> Step {
    let bytes = cx.shared.bytes;
    cx.fault(
        FaultKind::OutOfBounds,
        lane,
        Some(address),
        format!("{size} bytes in the {bytes} bytes of shared memory of a block"),
    )
}

/// Turns what the shadow found into a fault.
#[cold]
pub(crate) fn shared_fault(cx: &mut Ctx<'_>, lane: usize, address: u64, problem: Problem) -> Step {
    let name = |thread: Option<u32>| thread.map_or("several threads".to_string(), |t| format!("thread {t}"));
    let (kind, detail) = match problem {
        Problem::Uninitialized => {
            (FaultKind::Uninitialized, "shared memory that no thread of the block has written".to_string())
        }
        Problem::Pending => (FaultKind::PendingCopy, "the thread that copies has not waited for its group".to_string()),
        Problem::Write(by) => (FaultKind::Race, format!("shared memory written by {} with no barrier since", name(by))),
        Problem::Read(by) => (FaultKind::Race, format!("shared memory read by {} with no barrier since", name(by))),
    };
    cx.fault(kind, lane, Some(address), detail)
}

/// Counts an access to shared memory of `words` words a lane (one for less).
#[inline(always)]
pub(crate) fn count_shared(cx: &mut Ctx<'_>, site: u32, at: &[u32; 32], mask: u32, words: u32) {
    let (wavefronts, least) = cx.shared.wavefronts(site, at, mask, words);
    cx.tally.shared_accesses += 1;
    cx.tally.shared_wavefronts += wavefronts;
    cx.tally.shared_wavefronts_least += least;
}

#[inline(always)]
fn shared<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32], mask: u32) -> Step {
    let size = u64::from(m.width) * u64::from(m.count);
    let within = lanes_within(addr, mask, 0, cx.shared.bytes, size);
    if within != mask {
        let lane = first_lane(mask & !within);
        return shared_bounds(cx, lane, addr[lane], size);
    }
    let first = addr[first_lane(mask)];
    let offset: [u64; 32] = std::array::from_fn(|i| if mask & 1 << i != 0 { addr[i] } else { first });
    if cx.counts {
        let words = u32::from(m.width) * u32::from(m.count) / 4;
        count_shared(cx, m.site, &offset.map(low_word), mask, words.max(1));
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let shape = shape(&offset, mask, size);
    if let Some(mut shadow) = cx.shared.shadow.take() {
        let found = if STORES {
            check_store(w, cx, m, args, &offset, mask, &mut shadow)
        } else {
            check_shared_load(w, m, &offset, mask, shape, &mut shadow)
        };
        cx.shared.shadow = Some(shadow);
        if let Err((lane, problem)) = found {
            return shared_fault(cx, lane, addr[lane], problem);
        }
    }
    if STORES {
        let words = &mut cx.shared.words;
        store_words(w, m, args, &offset, mask, |word, value, bits| {
            words[word] = words[word] & !bits | value & bits;
        });
    } else {
        load_from(w, m, args, &offset, mask, shape, cx.shared.words.as_slice());
    }
    Step::Next
}

#[inline(always)]
fn check_shared_load(
    w: &Warp,
    m: &Mem,
    offset: &[u64; 32],
    mask: u32,
    shape: Shape,
    shadow: &mut Shadow,
) -> Result<(), (usize, Problem)> {
    let size = u64::from(m.width) * u64::from(m.count);
    let now = shadow.now(w.index);
    let plain = m.variant == 0 && size >= 4;
    if plain && shape == Shape::Uniform && mask.count_ones() > 1 {
        let start = word(offset[0]);
        if (start..start + word(size)).all(|word| shadow.read_together(word, now)) {
            return Ok(());
        }
    }
    for lane in (0..32_u32).filter(|i| mask >> i & 1 == 1) {
        let i = lane as usize;
        for (word, bytes) in lane_words(offset[i], size) {
            if !plain || !shadow.read_fast(word, now, lane) {
                let me = Actor { thread: w.index * 32 + lane, atomic: m.variant != 0 };
                shadow.read(word, bytes, me).map_err(|p| (i, p))?;
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn check_store(
    w: &Warp,
    cx: &Ctx<'_>,
    m: &Mem,
    args: &[u16],
    offset: &[u64; 32],
    mask: u32,
    shadow: &mut Shadow,
) -> Result<(), (usize, Problem)> {
    let size = u64::from(m.width) * u64::from(m.count);
    let now = shadow.now(w.index);
    let plain = m.variant == 0 && size >= 4;
    for lane in (0..32_u32).filter(|i| mask >> i & 1 == 1) {
        let i = lane as usize;
        for (j, (word, bytes)) in lane_words(offset[i], size).enumerate() {
            if !plain || !shadow.write_fast(word, now, lane) {
                let me = Actor { thread: w.index * 32 + lane, atomic: m.variant != 0 };
                // Lanes before this one in the same instruction have not stored yet: what they will is looked at here.
                let old = pending(w, m, args, offset, mask, i, word).unwrap_or(cx.shared.words[word]);
                let same = same_value(w, m, args, i, j, old, offset[i]);
                shadow.write(word, bytes, me, same).map_err(|p| (i, p))?;
            }
        }
    }
    Ok(())
}

/// What the lanes before `lane` of the same store put into a whole word, if one does.
#[cold]
fn pending(w: &Warp, m: &Mem, args: &[u16], offset: &[u64; 32], mask: u32, lane: usize, at: usize) -> Option<u32> {
    let words = usize::from(m.width) * usize::from(m.count) / 4;
    let before = (0..lane).rev().filter(|i| mask >> i & 1 == 1);
    before.filter_map(|i| Some((i, at.checked_sub(word(offset[i])).filter(|&j| j < words)?))).next().map(|(i, j)| {
        let read = |k: usize| {
            let slot = usize::from(args[k]);
            if m.wide { w.regs.wides[slot].0[i] } else { u64::from(w.regs.words[slot].0[i]) }
        };
        if m.width == 8 { low_word(read(j / 2) >> (32 * (j % 2))) } else { low_word(read(j)) }
    })
}

/// Whether a store would leave word `j` of a lane's access as it is.
#[inline(always)]
fn same_value(w: &Warp, m: &Mem, args: &[u16], lane: usize, j: usize, old: u32, offset: u64) -> bool {
    let read = |k: usize| {
        let slot = usize::from(args[k]);
        if m.wide { w.regs.wides[slot].0[lane] } else { u64::from(w.regs.words[slot].0[lane]) }
    };
    match m.width {
        4 => low_word(read(j)) == old,
        8 => low_word(read(j / 2) >> (32 * (j % 2))) == old,
        // Equal bytes of narrow stores are not looked for: two threads that write the same byte are reported.
        _ => {
            m.count == 1 && {
                let ones = (1_u32 << (8 * m.width)) - 1;
                let shift = 8 * (low_word(offset) & 3);
                old >> shift & ones == low_word(read(0)) & ones
            }
        }
    }
}

/// Local memory: a lane's word lies beside the same word of the other lanes.
fn local<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32], mask: u32) -> Step {
    let size = u64::from(m.width) * u64::from(m.count);
    let bytes = cx.program.local_bytes as u64;
    let within = lanes_within(addr, mask, 0, bytes, size);
    if within != mask {
        let lane = first_lane(mask & !within);
        let detail = format!("{size} bytes in the {bytes} bytes of local memory of a thread");
        return cx.fault(FaultKind::OutOfBounds, lane, Some(addr[lane]), detail);
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let first = addr[first_lane(mask)];
    let offset: [u64; 32] = std::array::from_fn(|i| if mask & 1 << i != 0 { addr[i] } else { first });
    let mut memory = std::mem::take(&mut w.local);
    if STORES {
        for lane in (0..32).filter(|i| mask >> i & 1 == 1) {
            store_words(w, m, args, &offset, 1 << lane, |word, value, bits| {
                memory[word][lane] = memory[word][lane] & !bits | value & bits;
            });
        }
    } else {
        load_words(w, m, args, &offset, mask, |i, j| memory[word(offset[i]) + j][i]);
    }
    w.local = memory;
    Step::Next
}

fn params(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32]) -> Step {
    let size = u64::from(m.width) * u64::from(m.count);
    let bytes = cx.program.param_bytes as u64;
    let within = lanes_within(addr, w.mask, 0, bytes, size);
    if within != w.mask {
        let lane = first_lane(w.mask & !within);
        let detail = format!("{size} bytes in the {bytes} bytes of parameters");
        return cx.fault(FaultKind::OutOfBounds, lane, Some(addr[lane]), detail);
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let first = addr[first_lane(w.mask)];
    let offset: [u64; 32] = std::array::from_fn(|i| if w.mask & 1 << i != 0 { addr[i] } else { first });
    let words = cx.params;
    load_words(w, m, args, &offset, w.mask, |i, j| words[word(offset[i]) + j]);
    Step::Next
}
