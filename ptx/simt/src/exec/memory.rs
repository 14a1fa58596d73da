//! Loads and stores: addresses, where they point, the data, and what the checks and counters make of them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::exec::global::global;
use crate::exec::shared::shared;
use crate::exec::value::{low_word, put_wides, put_words};
use crate::exec::{Exec, Step, exec};
use crate::fault::FaultKind;
use crate::program::{Mem, Space};
use crate::state::{Ctx, Warp, first_lane};
use crate::types::{LOCAL_WINDOW, SHARED_WINDOW};

/// Any load; `x` numbers the access.
pub(crate) const LOAD: Exec = exec!(|w, cx, op| access::<false>(w, cx, &cx.program.mems[op.x as usize]));
/// Any store.
pub(crate) const STORE: Exec = exec!(|w, cx, op| access::<true>(w, cx, &cx.program.mems[op.x as usize]));

/// What executes a load or store: one of its own for the most frequent, those of 1, 2 or 4 whole words of 32 bits.
pub(crate) fn executor(m: &Mem, stores: bool) -> Exec {
    /// The same access, with what its executor stands for as constants.
    macro_rules! words {
        ($stores:literal, $space:ident, $count:literal) => {
            exec!(|w, cx, op| {
                let m = cx.program.mems[op.x as usize];
                let space = Space::$space;
                let m = Mem { space, width: 4, count: $count, signed: false, wide: false, variant: 0, ..m };
                access::<$stores>(w, cx, &m)
            })
        };
    }
    let plain = m.width == 4 && !m.wide && m.variant == 0;
    match (stores, m.space, m.count) {
        (false, Space::Global, 1) if plain => words!(false, Global, 1),
        (false, Space::Global, 2) if plain => words!(false, Global, 2),
        (false, Space::Global, 4) if plain => words!(false, Global, 4),
        (false, Space::Shared, 1) if plain => words!(false, Shared, 1),
        (false, Space::Shared, 2) if plain => words!(false, Shared, 2),
        (false, Space::Shared, 4) if plain => words!(false, Shared, 4),
        (true, Space::Global, 1) if plain => words!(true, Global, 1),
        (true, Space::Global, 4) if plain => words!(true, Global, 4),
        (true, Space::Shared, 1) if plain => words!(true, Shared, 1),
        (true, Space::Shared, 4) if plain => words!(true, Shared, 4),
        (false, ..) => LOAD,
        (true, ..) => STORE,
    }
}

/// How the addresses of the lanes lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
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
    // Mostly all lanes are aligned, those outside of the mask too.
    if addr.iter().fold(0, |bits, a| bits | a) & (size - 1) == 0 {
        return None;
    }
    (0..32).find(|&i| mask >> i & 1 == 1 && addr[i] & (size - 1) != 0)
}

#[cold]
pub(crate) fn misaligned_fault(cx: &mut Ctx<'_>, lane: usize, address: u64, size: u64) -> Step {
    cx.fault(FaultKind::Misaligned, lane, Some(address), format!("an access of {size} bytes at a multiple of its size"))
}

#[inline(always)]
fn access<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem) -> Step {
    let addr = addresses(w, cx, m);
    let size = u64::from(size_of(m));
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
    // The top bit tells an offset below zero or beyond the room; mostly there is none, not even outside of the mask.
    let bad = addr.iter().fold(0, |bad, a| bad | a.wrapping_sub(base) | room.wrapping_sub(a.wrapping_sub(base)));
    if bad >> 63 == 0 {
        return mask;
    }
    let mut out = 0;
    for (i, &a) in addr.iter().enumerate() {
        out |= if a.wrapping_sub(base) <= room { 1 << i } else { 0 };
    }
    out & mask
}

/// Offsets from `base` of lanes that lie within 4 GiB of it. Lanes outside of the mask take the first lane's, so that no
/// loop needs a condition.
#[inline(always)]
pub(crate) fn offsets(addr: &[u64; 32], mask: u32, base: u64) -> [u32; 32] {
    if mask == u32::MAX {
        return addr.map(|a| low_word(a.wrapping_sub(base)));
    }
    let first = addr[first_lane(mask)];
    std::array::from_fn(|i| low_word((if mask & 1 << i != 0 { addr[i] } else { first }).wrapping_sub(base)))
}

/// The word that holds the byte at an offset.
#[inline(always)]
pub(crate) fn word(offset: u32) -> usize {
    (offset / 4) as usize
}

/// How the addresses of the lanes in the mask lie; the others hold the first one's.
#[inline(always)]
pub(crate) fn shape(offset: &[u32; 32], mask: u32, size: u32) -> Shape {
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
pub(crate) trait Source {
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
pub(crate) fn load_from<S: Source + ?Sized>(
    w: &mut Warp,
    m: &Mem,
    args: &[u16],
    offset: &[u32; 32],
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
        _ if n == 4 && m.width == 4 && !m.wide => {
            // Four words of a lane lie together: one look at the bounds for all.
            let mut out = [[0; 32]; 4];
            for i in 0..32 {
                let run = from.run(word(offset[i]), 4);
                for (j, out) in out.iter_mut().enumerate() {
                    out[i] = run.at(j);
                }
            }
            for (&slot, out) in args.iter().zip(out) {
                put_words(&mut w.regs, slot, mask, out);
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
fn load_words(w: &mut Warp, m: &Mem, args: &[u16], offset: &[u32; 32], mask: u32, fetch: impl Fn(usize, usize) -> u32) {
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
                    let byte = (offset[i] & 3) as usize + j * width;
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
pub(crate) fn store_words(
    w: &Warp,
    m: &Mem,
    args: &[u16],
    offset: &[u32; 32],
    mask: u32,
    mut put: impl FnMut(usize, u32, u32),
) {
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
                    let byte = (offset[i] & 3) as usize + j * usize::from(m.width);
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
pub(crate) fn lane_words(offset: u32, size: u32) -> impl Iterator<Item = (usize, u32)> {
    let start = word(offset);
    let (count, bits) = if size >= 4 { (word(size), 15) } else { (1, ((1 << size) - 1) << (offset & 3)) };
    (0..count).map(move |j| (start + j, bits))
}

/// Bytes of a lane's access.
#[inline(always)]
pub(crate) fn size_of(m: &Mem) -> u32 {
    u32::from(m.width) * u32::from(m.count)
}

/// Local memory: a lane's word lies beside the same word of the other lanes.
fn local<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32], mask: u32) -> Step {
    let size = u64::from(size_of(m));
    let bytes = cx.program.local_bytes as u64;
    let within = lanes_within(addr, mask, 0, bytes, size);
    if within != mask {
        let lane = first_lane(mask & !within);
        let detail = format!("{size} bytes in the {bytes} bytes of local memory of a thread");
        return cx.fault(FaultKind::OutOfBounds, lane, Some(addr[lane]), detail);
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let offset = offsets(addr, mask, 0);
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
    let size = u64::from(size_of(m));
    let bytes = cx.program.param_bytes as u64;
    let within = lanes_within(addr, w.mask, 0, bytes, size);
    if within != w.mask {
        let lane = first_lane(w.mask & !within);
        let detail = format!("{size} bytes in the {bytes} bytes of parameters");
        return cx.fault(FaultKind::OutOfBounds, lane, Some(addr[lane]), detail);
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let offset = offsets(addr, w.mask, 0);
    let words = cx.params;
    load_words(w, m, args, &offset, w.mask, |i, j| words[word(offset[i]) + j]);
    Step::Next
}
