//! Loads and stores of allocations that the launch stores to: who meets whom there.

use std::sync::atomic::Ordering::Relaxed;

use crate::exec::Step;
use crate::exec::memory::{Shape, lane_words, size_of, store_words, word};
use crate::fault::FaultKind;
use crate::memory::Allocation;
use crate::program::Mem;
use crate::races::{By, Conflict, Me, Now, Races, Records};
use crate::shadow::Shadow;
use crate::state::{Ctx, Warp};

type Found = Result<(), (usize, Conflict)>;

/// What judges an access of a warp to an allocation that is tracked.
#[inline(always)]
fn begin<'c, 'a, 'm>(
    warp: u32,
    cx: &'c mut Ctx<'m>,
    a: &'a Allocation,
) -> Option<(Now, &'a Records, &'c Races<'m>, &'c Shadow)> {
    let (races, shadow) = (cx.races.as_mut()?, cx.shared.shadow.as_ref()?);
    let now = races.now(warp, &shadow.clocks)?;
    Some((now, a.records(), races, shadow))
}

fn lanes(mask: u32) -> impl Iterator<Item = (usize, u32)> {
    (0..32_usize).zip(0..32_u32).filter(move |(_, lane)| mask >> lane & 1 == 1)
}

/// Judges and records a load. Not part of what executes loads, most of which go elsewhere.
#[inline(never)]
pub(crate) fn load(
    w: &Warp,
    cx: &mut Ctx<'_>,
    a: &Allocation,
    m: &Mem,
    offset: &[u32; 32],
    mask: u32,
    shape: Shape,
) -> Found {
    let Some((now, records, races, shadow)) = begin(w.index, cx, a) else { return Ok(()) };
    let size = size_of(m);
    let plain = m.variant == 0 && size >= 4;
    let (start, words) = (word(offset[0]), word(size));
    if plain && shape == Shape::Uniform && mask.count_ones() > 1 {
        let run = records.run(start..start + words);
        if run.iter().all(|record| now.read(record, Now::TOGETHER, m.read_only)) {
            return Ok(());
        }
    }
    if plain && shape == Shape::Contiguous {
        let read = |good, (record, lane)| good & now.read(record, lane, m.read_only);
        let run = records.run(start..start + 32 * words);
        if each_lane(run, words).fold(true, read) {
            return Ok(());
        }
    }
    for (i, lane) in lanes(mask) {
        let me = Me { thread: w.index * 32 + lane, atomic: m.variant != 0, read_only: m.read_only };
        for (word, bytes) in lane_words(offset[i], size) {
            if !(plain && now.read(&records.run(word..word + 1)[0], lane, m.read_only)) {
                races.read(records, (word, bytes), (now, me), &shadow.clocks).map_err(|conflict| (i, conflict))?;
            }
        }
    }
    Ok(())
}

/// The records of all lanes' words, one lane after the other.
#[inline(always)]
fn each_lane<R>(run: &[R], words: usize) -> impl Iterator<Item = (&R, u32)> {
    // Without a division by what is not known.
    let shift = words.trailing_zeros();
    run.iter().zip(0_u32..).map(move |(record, i)| (record, i >> shift))
}

/// Stores, and judges and records what was stored. The data comes first: who sees a record sees the data too.
#[inline(never)]
pub(crate) fn store(
    w: &Warp,
    cx: &mut Ctx<'_>,
    a: &Allocation,
    m: &Mem,
    offset: &[u32; 32],
    mask: u32,
    shape: Shape,
) -> Found {
    let program = cx.program;
    let args = &program.args[m.args as usize + 1..][..usize::from(m.count)];
    let put = |word: usize, value: u32, bits: u32| {
        let cell = &a.words[word];
        if bits == u32::MAX {
            return cell.store(value, Relaxed);
        }
        // Neighbouring bytes of the word may belong to a block on another thread.
        let _ = cell.fetch_update(Relaxed, Relaxed, |old| Some(old & !bits | value & bits));
    };
    let Some((now, records, races, shadow)) = begin(w.index, cx, a) else {
        store_words(w, m, args, offset, mask, put);
        return Ok(());
    };
    let size = size_of(m);
    let plain = m.variant == 0 && size >= 4;
    if plain && shape == Shape::Contiguous {
        let (start, words) = (word(offset[0]), word(size));
        let run = records.run(start..start + 32 * words);
        if each_lane(run, words).fold(true, |good, (record, lane)| good & now.may_write(record, lane)) {
            store_words(w, m, args, offset, mask, put);
            each_lane(run, words).for_each(|(record, lane)| now.wrote(record, lane));
            return Ok(());
        }
    }
    for (i, lane) in lanes(mask) {
        let me = Me { thread: w.index * 32 + lane, atomic: m.variant != 0, read_only: false };
        let mut found = Ok(());
        store_words(w, m, args, offset, 1 << lane, |word, value, bits| {
            let record = &records.run(word..word + 1)[0];
            if plain && now.may_write(record, lane) {
                put(word, value, bits);
                now.wrote(record, lane);
            } else if found.is_ok() {
                let same = a.words[word].load(Relaxed) & bits == value & bits;
                put(word, value, bits);
                let bytes = bits & 1 | bits >> 7 & 2 | bits >> 14 & 4 | bits >> 21 & 8;
                found = races.write(records, (word, bytes), (now, me), same, &shadow.clocks);
            }
        });
        found.map_err(|conflict| (i, conflict))?;
    }
    Ok(())
}

/// Judges and records an atomic of a lane on whole words.
pub(crate) fn atomic(w: &Warp, cx: &mut Ctx<'_>, a: &Allocation, lane: usize, offset: u32, size: u32) -> Found {
    let Some((now, records, races, shadow)) = begin(w.index, cx, a) else { return Ok(()) };
    let number = u32::try_from(lane).expect("a lane");
    let me = Me { thread: w.index * 32 + number, atomic: true, read_only: false };
    for place in lane_words(offset, size) {
        races.write(records, place, (now, me), false, &shadow.clocks).map_err(|conflict| (lane, conflict))?;
    }
    Ok(())
}

/// Judges and records what a copy of a lane reads: bytes of a word.
pub(crate) fn copied(w: &Warp, cx: &mut Ctx<'_>, a: &Allocation, lane: usize, word: usize, bytes: u32) -> Found {
    let Some((now, records, races, shadow)) = begin(w.index, cx, a) else { return Ok(()) };
    let number = u32::try_from(lane).expect("a lane");
    let me = Me { thread: w.index * 32 + number, atomic: false, read_only: false };
    if bytes == 15 && now.read(&records.run(word..word + 1)[0], number, false) {
        return Ok(());
    }
    races.read(records, (word, bytes), (now, me), &shadow.clocks).map_err(|conflict| (lane, conflict))
}

/// Turns a conflict into a fault.
#[cold]
pub(crate) fn conflict_fault(
    cx: &mut Ctx<'_>,
    a: &Allocation,
    address: u64,
    (lane, conflict): (usize, Conflict),
) -> Step {
    let by = |by: By| match by {
        By::Thread(thread) => format!("by thread {thread} with no barrier since"),
        By::Threads => "by several threads of the block with no barrier since".to_string(),
        By::Block(Some(number)) => {
            let [x, y, z] = cx.races.as_ref().map_or([0; 3], |races| races.place(number));
            format!("by block ({x}, {y}, {z}) of the same launch")
        }
        By::Block(None) => "by several blocks of the same launch".to_string(),
    };
    let (kind, what) = match conflict {
        Conflict::Write(who) => (FaultKind::Race, format!("global memory written {}", by(who))),
        Conflict::Read(who) => (FaultKind::Race, format!("global memory read {}", by(who))),
        Conflict::ReadOnly => (
            FaultKind::ReadOnlyWritten,
            "a write of what the launch has read by a read-only load, which may return either value".to_string(),
        ),
    };
    let detail = format!("{what}; {} bytes into the allocation {:#x} of {} bytes", address - a.base, a.base, a.bytes);
    cx.fault(kind, lane, Some(address), detail)
}
