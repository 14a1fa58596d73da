//! What lanes of a warp do together: shuffles, votes, matches, reductions and the barrier of a warp.

use crate::counters::Class;
use crate::exec::value::{put_pred, put_words};
use crate::exec::{Exec, Row, Step, exec};
use crate::fault::FaultKind;
use crate::program::Op;
use crate::state::{Ctx, Warp};
use crate::types::Kind;

/// The barrier of a warp's lanes: members in the first slot.
pub(crate) const BAR_WARP: Exec = exec!(|w, cx, op| {
    let members = w.regs.words[usize::from(op.r[0])].0;
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    w.idle = 0;
    if let Some(shadow) = &mut cx.shared.shadow {
        let mut left = w.mask;
        while left != 0 {
            let group = members[crate::state::first_lane(left)] & w.mask;
            shadow.clocks.warp_barrier(w.index as usize, group, group == w.lanes & !w.exited);
            left &= !group;
        }
    }
    Step::Next
});

/// Checks that every lane is a member of its own mask and that all members are here.
#[inline(always)]
fn together(w: &Warp, cx: &mut Ctx<'_>, members: &[u32; 32]) -> Result<(), Step> {
    if !cx.checks {
        return Ok(());
    }
    let live = w.live();
    for (lane, &members) in members.iter().enumerate().filter(|(i, _)| w.mask >> i & 1 == 1) {
        if members >> lane & 1 == 0 {
            let detail = format!("lane {lane} is not in its member mask {members:#010x}");
            return Err(cx.fault(FaultKind::InactiveLane, lane, None, detail));
        }
        let missing = members & live & !w.mask;
        if missing != 0 {
            let detail = format!("the member mask {members:#010x} names lanes {missing:#010x}, which are elsewhere");
            return Err(cx.fault(FaultKind::InactiveLane, lane, None, detail));
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

/// The lane that `lane` reads from, and whether that is in range; out of range it reads itself.
#[inline(always)]
fn source(mode: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let max = lane & segment | clamp & !segment;
    let (from, inside) = match mode {
        Shuffle::Up => (lane.wrapping_sub(b), lane.cast_signed() - b.cast_signed() >= max.cast_signed()),
        Shuffle::Down => (lane + b, lane + b <= max),
        Shuffle::Bfly => (lane ^ b, lane ^ b <= max),
        Shuffle::Idx => {
            let from = lane & segment | b & !segment;
            (from, from <= max)
        }
    };
    if inside { (from & 31, true) } else { (lane, false) }
}

/// `d|p, a, b, c, members`
#[inline(always)]
fn shuffle(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op, mode: Shuffle) -> Step {
    let args: &[u16; 6] = cx.program.args[op.x as usize..][..6].try_into().expect("six slots");
    let word = |w: &Warp, i: usize| w.regs.words[usize::from(args[i])].0;
    let (a, b, c, members) = (word(w, 2), word(w, 3), word(w, 4), word(w, 5));
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    let mut out = [0; 32];
    let (mut inside, mut used) = (0, 0);
    for lane in 0..32_u32 {
        let i = lane as usize;
        let (from, ok) = source(mode, lane, b[i], c[i]);
        out[i] = a[from as usize];
        inside |= u32::from(ok) << lane;
        used |= if w.mask >> lane & 1 == 1 { 1 << from } else { 0 };
    }
    let absent = used & !w.mask;
    if cx.checks && absent != 0 {
        let reader = (0..32_u32).find(|&lane| {
            let i = lane as usize;
            w.mask >> lane & 1 == 1 && absent >> source(mode, lane, b[i], c[i]).0 & 1 == 1
        });
        let lane = reader.unwrap_or(0) as usize;
        let from = absent.trailing_zeros();
        let detail = format!("lane {lane} reads lane {from}, which does not take part");
        return cx.fault(FaultKind::InactiveLane, lane, None, detail);
    }
    put_words(&mut w.regs, args[0], w.mask, out);
    put_pred(&mut w.regs, args[1], w.mask, inside);
    Step::Next
}

/// The lanes of `bits` that count for each lane, by its member mask.
#[inline(always)]
fn votes(w: &Warp, bits: u32, members: &[u32; 32]) -> [(u32, u32); 32] {
    members.map(|m| (bits & m & w.mask, m & w.mask))
}

#[inline(always)]
fn vote(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op, f: impl Fn(u32, u32) -> bool) -> Step {
    let members = w.regs.words[usize::from(op.r[2])].0;
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    let votes = votes(w, w.regs.preds[usize::from(op.r[1])], &members);
    let mut out = 0;
    for (lane, (yes, all)) in votes.into_iter().enumerate() {
        out |= u32::from(f(yes, all)) << lane;
    }
    put_pred(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

#[inline(always)]
fn ballot(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    let members = w.regs.words[usize::from(op.r[2])].0;
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    let votes = votes(w, w.regs.preds[usize::from(op.r[1])], &members);
    put_words(&mut w.regs, op.r[0], w.mask, votes.map(|v| v.0));
    Step::Next
}

/// For each lane, the lanes of its group with the same value.
#[inline(always)]
fn equals(w: &Warp, values: &[u64; 32], members: &[u32; 32]) -> [u32; 32] {
    std::array::from_fn(|i| {
        let same = (0..32).fold(0, |bits, j| bits | u32::from(values[j] == values[i]) << j);
        same & members[i] & w.mask
    })
}

/// `d, a, members` with a of either width.
#[inline(always)]
fn match_any(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op, values: [u64; 32]) -> Step {
    let members = w.regs.words[usize::from(op.r[2])].0;
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    let out = equals(w, &values, &members);
    put_words(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

/// `d, p, a, members`
#[inline(always)]
fn match_all(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op, values: [u64; 32]) -> Step {
    let members = w.regs.words[usize::from(op.r[3])].0;
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    let same = equals(w, &values, &members);
    let mut all = 0;
    let out: [u32; 32] = std::array::from_fn(|i| {
        let whole = same[i] == members[i] & w.mask;
        all |= u32::from(whole) << i;
        if whole { members[i] } else { 0 }
    });
    put_words(&mut w.regs, op.r[0], w.mask, out);
    put_pred(&mut w.regs, op.r[1], w.mask, all);
    Step::Next
}

#[inline(always)]
fn reduce(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op, f: impl Fn(u32, u32) -> u32) -> Step {
    let members = w.regs.words[usize::from(op.r[2])].0;
    if let Err(step) = together(w, cx, &members) {
        return step;
    }
    let a = w.regs.words[usize::from(op.r[1])].0;
    let out = std::array::from_fn(|i| {
        let group = members[i] & w.mask;
        (0..32).filter(|j| group >> j & 1 == 1).map(|j| a[j]).reduce(&f).unwrap_or(0)
    });
    put_words(&mut w.regs, op.r[0], w.mask, out);
    Step::Next
}

#[inline(always)]
fn wide(w: &Warp, slot: u16) -> [u64; 32] {
    w.regs.wides[usize::from(slot)].0
}

#[inline(always)]
fn word(w: &Warp, slot: u16) -> [u64; 32] {
    w.regs.words[usize::from(slot)].0.map(u64::from)
}

fn row(name: &str, dst: &[Kind], src: &[Kind], exec: Exec) -> Row {
    Row {
        names: vec![name.to_string()],
        dst: dst.to_vec(),
        src: src.to_vec(),
        count: Class::Shuffle,
        exec,
        together: true,
    }
}

/// The rows of this file.
pub(crate) fn rows(out: &mut Vec<Row>) {
    use Kind::{Pred, Wide, Word};
    let four = [Word; 4];
    let both = [Word, Pred];
    out.push(row("shfl.sync.up.b32", &both, &four, exec!(|w, cx, op| shuffle(w, cx, op, Shuffle::Up))));
    out.push(row("shfl.sync.down.b32", &both, &four, exec!(|w, cx, op| shuffle(w, cx, op, Shuffle::Down))));
    out.push(row("shfl.sync.bfly.b32", &both, &four, exec!(|w, cx, op| shuffle(w, cx, op, Shuffle::Bfly))));
    out.push(row("shfl.sync.idx.b32", &both, &four, exec!(|w, cx, op| shuffle(w, cx, op, Shuffle::Idx))));
    let vote_src = [Pred, Word];
    out.push(row("vote.sync.ballot.b32", &[Word], &vote_src, exec!(|w, cx, op| ballot(w, cx, op))));
    out.push(row("vote.sync.all.pred", &[Pred], &vote_src, exec!(|w, cx, op| vote(w, cx, op, |yes, all| yes == all))));
    out.push(row("vote.sync.any.pred", &[Pred], &vote_src, exec!(|w, cx, op| vote(w, cx, op, |yes, _| yes != 0))));
    out.push(row(
        "vote.sync.uni.pred",
        &[Pred],
        &vote_src,
        exec!(|w, cx, op| vote(w, cx, op, |yes, all| yes == 0 || yes == all)),
    ));
    out.push(row(
        "match.any.sync.b32",
        &[Word],
        &[Word, Word],
        exec!(|w, cx, op| match_any(w, cx, op, word(w, op.r[1]))),
    ));
    out.push(row(
        "match.any.sync.b64",
        &[Word],
        &[Wide, Word],
        exec!(|w, cx, op| match_any(w, cx, op, wide(w, op.r[1]))),
    ));
    out.push(row(
        "match.all.sync.b32",
        &both,
        &[Word, Word],
        exec!(|w, cx, op| match_all(w, cx, op, word(w, op.r[2]))),
    ));
    out.push(row(
        "match.all.sync.b64",
        &both,
        &[Wide, Word],
        exec!(|w, cx, op| match_all(w, cx, op, wide(w, op.r[2]))),
    ));
    let two = [Word, Word];
    out.push(row("redux.sync.add.u32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, u32::wrapping_add))));
    out.push(row("redux.sync.add.s32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, u32::wrapping_add))));
    out.push(row("redux.sync.min.u32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, u32::min))));
    out.push(row("redux.sync.max.u32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, u32::max))));
    out.push(row(
        "redux.sync.min.s32",
        &[Word],
        &two,
        exec!(|w, cx, op| reduce(w, cx, op, |a, b| a.cast_signed().min(b.cast_signed()).cast_unsigned())),
    ));
    out.push(row(
        "redux.sync.max.s32",
        &[Word],
        &two,
        exec!(|w, cx, op| reduce(w, cx, op, |a, b| a.cast_signed().max(b.cast_signed()).cast_unsigned())),
    ));
    out.push(row("redux.sync.and.b32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, |a, b| a & b))));
    out.push(row("redux.sync.or.b32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, |a, b| a | b))));
    out.push(row("redux.sync.xor.b32", &[Word], &two, exec!(|w, cx, op| reduce(w, cx, op, |a, b| a ^ b))));
    out.push(row("bar.warp.sync", &[], &[Word], BAR_WARP));
    out.push(Row {
        together: false,
        ..row(
            "activemask.b32",
            &[Word],
            &[],
            exec!(|w, _, op| {
                let mask = w.mask;
                put_words(&mut w.regs, op.r[0], mask, [mask; 32]);
                Step::Next
            }),
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamp_and_segments_of_shuffles() {
        // Whole warp: `c` is 31 for all modes but up, whose clamp is 0.
        assert_eq!(source(Shuffle::Up, 3, 1, 0), (2, true));
        assert_eq!(source(Shuffle::Up, 0, 1, 0), (0, false));
        assert_eq!(source(Shuffle::Down, 30, 1, 31), (31, true));
        assert_eq!(source(Shuffle::Down, 31, 1, 31), (31, false));
        assert_eq!(source(Shuffle::Bfly, 5, 16, 31), (21, true));
        // Segments of 8: the mask is 0b11000.
        let c = 0x1807;
        assert_eq!(source(Shuffle::Idx, 13, 2, 0x181f), (10, true));
        assert_eq!(source(Shuffle::Down, 14, 1, 0x181f), (15, true));
        assert_eq!(source(Shuffle::Down, 15, 1, 0x181f), (15, false));
        assert_eq!(source(Shuffle::Up, 8, 1, 0x1800), (8, false));
        assert_eq!(source(Shuffle::Bfly, 9, 4, c), (13, true));
    }
}
