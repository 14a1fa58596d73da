//! Branches, exits, barriers and the heads of basic blocks.

use crate::counters::Class;
use crate::exec::{Exec, Row, Step, exec};
use crate::fault::FaultKind;
use crate::program::{NOWHERE, Op};
use crate::state::{Ctx, Path, Waiting, Warp, first_lane};

/// Back edges of a warp in one turn; then other warps run, which a spinning one may wait for.
const TURN: u32 = 1 << 12;
/// Back edges without a store, an atomic or a barrier after which a warp counts as stuck.
const IDLE: u32 = 1 << 22;

/// The head of a basic block: `x` is its number, or `NOWHERE` where lanes only meet; `imm` its own place.
pub(crate) const HEAD: Exec = exec!(|w, cx, op| head(w, cx, op));
/// A branch of the lanes in the mask; `x` numbers it, `imm` is its own place.
pub(crate) const BRANCH: Exec = exec!(|w, cx, op| branch(w, cx, op));
/// The end of the lanes in the mask.
pub(crate) const EXIT: Exec = exec!(|w, _, _op| exit(w));
/// `trap`.
pub(crate) const TRAP: Exec = exec!(|w, cx, _op| {
    let lane = first_lane(w.mask);
    cx.fault(FaultKind::Trap, lane, None, "the kernel stopped itself".to_string())
});
/// `bar.sync a{, b}`: number and threads in the first two slots.
pub(crate) const BAR_SYNC: Exec = exec!(|w, cx, op| barrier(w, cx, op));

#[inline(always)]
fn head(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    if i64::from(w.join) == op.imm {
        return w.pop();
    }
    if cx.counts && op.x != NOWHERE {
        let entry = &mut cx.tally.blocks[op.x as usize];
        entry.warp += 1;
        entry.lane += u64::from(w.active.count_ones());
    }
    Step::Next
}

#[inline(always)]
fn branch(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    let to = cx.program.branches[op.x as usize];
    if w.mask == w.active {
        w.pc = to.target;
        return back_edge(w, cx, op);
    }
    if to.uniform {
        let lane = first_lane(w.active & !w.mask);
        return cx.fault(
            FaultKind::Divergence,
            lane,
            None,
            format!("lanes {:#010x} of {:#010x} take a branch marked .uni", w.mask, w.active),
        );
    }
    cx.tally.divergent_branches += 1;
    let (taken, other) = (w.mask, w.active & !w.mask);
    // Lanes that meet where the path meets anyway, or nowhere before, need no entry of their own: loops would grow the stack.
    let meets = to.join == NOWHERE || to.join == w.join || to.late_join == w.join;
    let join = if meets {
        w.join
    } else {
        let late = cx.perturb && cx.random.below(2) == 1;
        let join = if late { to.late_join } else { to.join };
        w.stack.push(Path { pc: join, mask: w.active, join: w.join });
        join
    };
    let mut first = Path { pc: to.next, mask: other, join };
    let mut second = Path { pc: to.target, mask: taken, join };
    if cx.perturb && cx.random.below(2) == 1 {
        std::mem::swap(&mut first, &mut second);
    }
    w.stack.push(second);
    w.pc = first.pc;
    w.active = first.mask;
    w.join = join;
    back_edge(w, cx, op)
}

#[inline(always)]
fn back_edge(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    if i64::from(w.pc) > op.imm {
        return Step::Jump;
    }
    w.idle += 1;
    w.turn += 1;
    if w.idle >= IDLE {
        let lane = first_lane(w.active);
        return cx.fault(
            FaultKind::NoProgress,
            lane,
            None,
            format!("{IDLE} rounds of a loop without a store, an atomic or a barrier"),
        );
    }
    if w.turn >= TURN { Step::Yield } else { Step::Jump }
}

#[inline(always)]
fn exit(w: &mut Warp) -> Step {
    w.exited |= w.mask;
    w.active &= !w.mask;
    if w.active == 0 { w.pop() } else { Step::Next }
}

#[inline(always)]
fn barrier(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    let live = w.live();
    if w.mask != live {
        let lane = first_lane(live & !w.mask);
        return cx.fault(
            FaultKind::DivergentBarrier,
            lane,
            None,
            format!("lanes {:#010x} of warp {} wait, lanes {:#010x} do not", w.mask, w.index, live & !w.mask),
        );
    }
    let lane = first_lane(w.mask);
    let number = w.regs.words[usize::from(op.r[0])].0;
    let threads = w.regs.words[usize::from(op.r[1])].0;
    for other in 0..32 {
        if w.mask >> other & 1 == 1 && (number[other] != number[lane] || threads[other] != threads[lane]) {
            let detail = format!("lane {lane} waits at barrier {}, lane {other} at {}", number[lane], number[other]);
            return cx.fault(FaultKind::DivergentBarrier, other, None, detail);
        }
    }
    if number[lane] > 15 || !threads[lane].is_multiple_of(32) {
        let detail = format!("barrier {} for {} threads", number[lane], threads[lane]);
        return cx.fault(FaultKind::DivergentBarrier, lane, None, detail);
    }
    w.idle = 0;
    cx.tally.barriers += 1;
    w.waiting = Some(Waiting { barrier: number[lane], threads: threads[lane] });
    Step::Barrier
}

/// The rows of this file: what orders memory or time without moving data.
pub(crate) fn rows(out: &mut Vec<Row>) {
    let fences = ["cta", "gl", "sys"].map(|level| format!("membar.{level}"));
    let mut names: Vec<String> = fences.into();
    for order in ["", ".sc", ".acq_rel"] {
        for scope in ["cta", "gpu", "sys"] {
            names.push(format!("fence{order}.{scope}"));
        }
    }
    // Every access takes effect in program order here, so a fence has nothing to do.
    out.push(Row {
        names,
        dst: vec![],
        src: vec![],
        count: Class::Barrier,
        exec: exec!(|_w, _, _op| Step::Next),
        together: false,
    });
    out.push(Row {
        names: vec!["nanosleep.u32".to_string()],
        dst: vec![],
        src: vec![crate::types::Kind::Word],
        count: Class::Control,
        exec: exec!(|_w, _, _op| Step::Next),
        together: false,
    });
}
