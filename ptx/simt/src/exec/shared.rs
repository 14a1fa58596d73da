//! Loads and stores of shared memory, its shadow, and what is counted.

use crate::exec::Step;
use crate::exec::memory::{Shape, lane_words, lanes_within, load_from, offsets, shape, size_of, store_words, word};
use crate::exec::value::low_word;
use crate::fault::FaultKind;
use crate::program::Mem;
use crate::shadow::{Actor, Problem, Shadow};
use crate::state::{Ctx, Warp, first_lane};

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
pub(crate) fn shared<const STORES: bool>(w: &mut Warp, cx: &mut Ctx<'_>, m: &Mem, addr: &[u64; 32], mask: u32) -> Step {
    let size = u64::from(size_of(m));
    let within = lanes_within(addr, mask, 0, cx.shared.bytes, size);
    if within != mask {
        let lane = first_lane(mask & !within);
        return shared_bounds(cx, lane, addr[lane], size);
    }
    let size = size_of(m);
    let offset = offsets(addr, mask, 0);
    if cx.counts {
        count_shared(cx, m.site, &offset, mask, (size / 4).max(1));
    }
    let args = &cx.program.args[m.args as usize + 1..][..usize::from(m.count)];
    let shape = shape(&offset, mask, size);
    if let Some(shadow) = &mut cx.shared.shadow {
        let found = if STORES {
            check_store(w, &cx.shared.words, m, args, &offset, mask, shape, shadow)
        } else {
            check_shared_load(w, m, &offset, mask, shape, shadow)
        };
        if let Err((lane, problem)) = found {
            return shared_fault(cx, lane, addr[lane], problem);
        }
    }
    if STORES {
        let words = cx.shared.words.as_mut_slice();
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
    offset: &[u32; 32],
    mask: u32,
    shape: Shape,
    shadow: &mut Shadow,
) -> Result<(), (usize, Problem)> {
    let size = size_of(m);
    let now = shadow.now(w.index);
    let plain = m.variant == 0 && size >= 4;
    if plain && shape == Shape::Uniform && mask.count_ones() > 1 {
        let start = word(offset[0]);
        if (start..start + word(size)).all(|word| shadow.read_together(word, now)) {
            return Ok(());
        }
    }
    let words = if plain { word(size) } else { 0 };
    if shape == Shape::Contiguous {
        let start = word(offset[0]);
        let good = match words {
            1 => shadow.read_fast::<1, 32>(start, now, 0),
            2 => shadow.read_fast::<2, 32>(start, now, 0),
            4 => shadow.read_fast::<4, 32>(start, now, 0),
            _ => false,
        };
        if good {
            return Ok(());
        }
    }
    for lane in (0..32_u32).filter(|i| mask >> i & 1 == 1) {
        let i = lane as usize;
        let start = word(offset[i]);
        let good = match words {
            1 => shadow.read_fast::<1, 1>(start, now, lane),
            2 => shadow.read_fast::<2, 1>(start, now, lane),
            4 => shadow.read_fast::<4, 1>(start, now, lane),
            _ => false,
        };
        if good {
            continue;
        }
        for (word, bytes) in lane_words(offset[i], size) {
            let me = Actor { thread: w.index * 32 + lane, atomic: m.variant != 0 };
            shadow.read(word, bytes, me).map_err(|p| (i, p))?;
        }
    }
    Ok(())
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn check_store(
    w: &Warp,
    memory: &[u32],
    m: &Mem,
    args: &[u16],
    offset: &[u32; 32],
    mask: u32,
    shape: Shape,
    shadow: &mut Shadow,
) -> Result<(), (usize, Problem)> {
    let size = size_of(m);
    let now = shadow.now(w.index);
    let plain = m.variant == 0 && size >= 4;
    let words = if plain { word(size) } else { 0 };
    if shape == Shape::Contiguous {
        let start = word(offset[0]);
        let good = match words {
            1 => shadow.write_fast::<1, 32>(start, now, 0),
            2 => shadow.write_fast::<2, 32>(start, now, 0),
            4 => shadow.write_fast::<4, 32>(start, now, 0),
            _ => false,
        };
        if good {
            return Ok(());
        }
    }
    for lane in (0..32_u32).filter(|i| mask >> i & 1 == 1) {
        let i = lane as usize;
        let start = word(offset[i]);
        let good = match words {
            1 => shadow.write_fast::<1, 1>(start, now, lane),
            2 => shadow.write_fast::<2, 1>(start, now, lane),
            4 => shadow.write_fast::<4, 1>(start, now, lane),
            _ => false,
        };
        if good {
            continue;
        }
        for (j, (word, bytes)) in lane_words(offset[i], size).enumerate() {
            let me = Actor { thread: w.index * 32 + lane, atomic: m.variant != 0 };
            // Lanes before this one in the same instruction have not stored yet: what they will is looked at here.
            let old = pending(w, m, args, offset, mask, i, word).unwrap_or(memory[word]);
            let same = same_value(w, m, args, i, j, old, offset[i]);
            shadow.write(word, bytes, me, same).map_err(|p| (i, p))?;
        }
    }
    Ok(())
}

/// What the lanes before `lane` of the same store put into a whole word, if one does.
#[cold]
fn pending(w: &Warp, m: &Mem, args: &[u16], offset: &[u32; 32], mask: u32, lane: usize, at: usize) -> Option<u32> {
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
fn same_value(w: &Warp, m: &Mem, args: &[u16], lane: usize, j: usize, old: u32, offset: u32) -> bool {
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
                let shift = 8 * (offset & 3);
                old >> shift & ones == low_word(read(0)) & ones
            }
        }
    }
}
