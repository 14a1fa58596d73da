//! Decoded instructions to a program: slots for registers and constants, places for branches, heads for basic blocks.

use std::collections::HashMap;

use crate::cfg::{self, Block};
use crate::counters::Class as Counted;
use crate::decode::{Arg, Decoded, Extra, Inst};
use crate::exec::{self, Host};
use crate::liveness::{self, Slots, TooMany};
use crate::program::{self, Branch, NEGATED, NOWHERE, Op, Program, UNGUARDED};

/// Slots of constants, behind those of registers.
struct Constants<'a> {
    slots: &'a Slots,
    known: HashMap<Arg, u16>,
    program: Program,
}

impl Constants<'_> {
    fn slot(&mut self, arg: Arg) -> Result<u16, TooMany> {
        if let Arg::Reg(r) = arg {
            return Ok(self.slots.of[r as usize]);
        }
        if let Some(&slot) = self.known.get(&arg) {
            return Ok(slot);
        }
        let p = &mut self.program;
        let total = match arg {
            Arg::Word(_) | Arg::Special(_) => &mut p.words,
            Arg::Wide(_) | Arg::Global(_) => &mut p.wides,
            _ => &mut p.preds,
        };
        let slot = u16::try_from(*total).map_err(|_| TooMany)?;
        *total += 1;
        match arg {
            Arg::Word(x) => p.word_constants.push((slot, x)),
            Arg::Wide(x) => p.wide_constants.push((slot, x)),
            Arg::Pred(x) => p.pred_constants.push((slot, x)),
            Arg::Special(s) => p.specials.push((slot, s)),
            Arg::Global(x) => p.globals.push((slot, x)),
            Arg::Reg(_) => unreachable!("registers have slots already"),
        }
        self.known.insert(arg, slot);
        Ok(slot)
    }

    /// Slots in a row in the side table.
    fn row(&mut self, args: &[Arg]) -> Result<u32, TooMany> {
        let start = u32::try_from(self.program.args.len()).map_err(|_| TooMany)?;
        for &arg in args {
            let slot = self.slot(arg)?;
            self.program.args.push(slot);
        }
        Ok(start)
    }
}

/// Where a block whose paths meet is entered late: before the first instruction that needs the lanes together, or its last.
fn late_place(d: &Decoded, block: &Block) -> usize {
    (block.start..block.end - 1).find(|&i| d.insts[i].together).unwrap_or(block.end - 1)
}

/// Makes the program of a decoded entry.
pub(crate) fn lower(d: &Decoded, host: Host) -> Result<Program, TooMany> {
    let blocks = cfg::blocks(d);
    let slots = liveness::allocate(&d.insts, &blocks, &d.regs)?;
    let program = Program { words: slots.words, wides: slots.wides, preds: slots.preds, ..Program::default() };
    let mut c = Constants { slots: &slots, known: HashMap::new(), program };

    let mut is_join = vec![false; blocks.len()];
    for join in blocks.iter().filter_map(|b| b.join) {
        is_join[join] = true;
    }
    let mut heads = vec![0; blocks.len()];
    let mut late = vec![NOWHERE; blocks.len()];
    let mut branches = Vec::new();
    for (b, block) in blocks.iter().enumerate() {
        let late_at = late_place(d, block);
        heads[b] = push_head(&mut c, host, u32::try_from(b).map_err(|_| TooMany)?)?;
        late[b] = heads[b];
        for (i, inst) in d.insts.iter().enumerate().take(block.end).skip(block.start) {
            if i == late_at && is_join[b] && i > block.start {
                late[b] = push_head(&mut c, host, NOWHERE)?;
            }
            if let Extra::Branch { target, uniform } = inst.extra {
                branches.push((b, d.starts[target], uniform));
            }
            push(&mut c, host, inst, branches.len())?;
        }
        c.program.blocks.push(program::Block { counts: counts(&d.insts[block.start..block.end]) });
    }
    let head_of = |inst: usize| heads[blocks.partition_point(|b| b.start <= inst) - 1];
    let mut program = c.program;
    for (b, target, uniform) in branches {
        let join = blocks[b].join;
        program.branches.push(Branch {
            target: head_of(target),
            next: heads.get(b + 1).copied().unwrap_or(NOWHERE),
            join: join.map_or(NOWHERE, |j| heads[j]),
            late_join: join.map_or(NOWHERE, |j| late[j]),
            uniform,
        });
    }
    Ok(program)
}

fn here(program: &Program) -> Result<u32, TooMany> {
    u32::try_from(program.ops.len()).ok().filter(|&p| p < NOWHERE).ok_or(TooMany)
}

fn push_head(c: &mut Constants<'_>, host: Host, block: u32) -> Result<u32, TooMany> {
    let at = here(&c.program)?;
    c.program.ops.push(Op { exec: exec::HEAD.on(host), imm: i64::from(at), r: [0; 5], guard: UNGUARDED, x: block });
    c.program.notes.push((0, None));
    Ok(at)
}

fn push(c: &mut Constants<'_>, host: Host, inst: &Inst, branches: usize) -> Result<(), TooMany> {
    let mut op = Op { exec: inst.exec.on(host), imm: inst.imm, r: [0; 5], guard: UNGUARDED, x: 0 };
    if let Some((reg, negated)) = inst.guard {
        let slot = c.slot(Arg::Reg(reg))?;
        if slot >= NEGATED - 1 {
            return Err(TooMany);
        }
        op.guard = slot | if negated { NEGATED } else { 0 };
    }
    match &inst.extra {
        Extra::Branch { .. } => {
            op.x = u32::try_from(branches - 1).map_err(|_| TooMany)?;
            op.imm = i64::from(here(&c.program)?);
        }
        Extra::Mem(accesses) => {
            op.x = u32::try_from(c.program.mems.len()).map_err(|_| TooMany)?;
            for (m, args) in accesses {
                let args = c.row(args)?;
                c.program.mems.push(crate::program::Mem { args, ..*m });
            }
        }
        Extra::None | Extra::Exit => {
            let all: Vec<Arg> = inst.dst.iter().chain(&inst.src).copied().collect();
            if all.len() <= op.r.len() {
                for (r, &arg) in op.r.iter_mut().zip(&all) {
                    *r = c.slot(arg)?;
                }
            } else {
                op.x = c.row(&all)?;
            }
        }
    }
    here(&c.program)?;
    c.program.ops.push(op);
    c.program.notes.push((u32::try_from(inst.line).map_err(|_| TooMany)?, inst.count));
    Ok(())
}

/// Instructions of a block that run for all lanes of its path, by class.
fn counts(insts: &[Inst]) -> Vec<(Counted, u32)> {
    let mut counts: Vec<(Counted, u32)> = Vec::new();
    for class in insts.iter().filter(|i| i.guard.is_none()).filter_map(|i| i.count) {
        match counts.iter_mut().find(|(c, _)| *c == class) {
            Some((_, n)) => *n += 1,
            None => counts.push((class, 1)),
        }
    }
    counts.sort_unstable();
    counts
}
