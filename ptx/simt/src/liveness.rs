//! Where each register's value is needed, and slots shared by registers that are never needed at once.
//!
//! Liveness of one thread is enough for a warp: lanes are independent, a masked write leaves the lanes of another path
//! alone, and a shuffle reads what its own instruction names. A guarded write does not end the old value's life.

use crate::cfg::Block;
use crate::decode::{Arg, Inst};
use crate::types::Class;

/// A slot of its class for every register, and the number of slots of predicates, words and wides.
pub(crate) struct Slots {
    pub(crate) of: Vec<u16>,
    pub(crate) preds: usize,
    pub(crate) words: usize,
    pub(crate) wides: usize,
}

/// More values than a slot number counts.
#[derive(Debug)]
pub(crate) struct TooMany;

/// Which registers are live at the beginning and at the end of each block, as bit sets.
fn live(insts: &[Inst], blocks: &[Block], regs: usize) -> [Vec<Vec<u64>>; 2] {
    let size = regs.div_ceil(64);
    let set = |bits: &mut [u64], r: u32| bits[r as usize / 64] |= 1 << (r % 64);
    let has = |bits: &[u64], r: u32| bits[r as usize / 64] >> (r % 64) & 1 == 1;
    let mut uses = vec![vec![0; size]; blocks.len()];
    let mut defs = vec![vec![0; size]; blocks.len()];
    for (b, block) in blocks.iter().enumerate() {
        for inst in &insts[block.start..block.end] {
            for r in reads(inst) {
                if !has(&defs[b], r) {
                    set(&mut uses[b], r);
                }
            }
            // A guarded write may leave the old value: it defines nothing.
            for r in writes(inst).filter(|_| inst.guard.is_none()) {
                set(&mut defs[b], r);
            }
        }
    }
    let mut live_in = uses.clone();
    let mut out = vec![vec![0; size]; blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..blocks.len()).rev() {
            for &next in &blocks[b].next {
                for (to, from) in out[b].iter_mut().zip(&live_in[next]) {
                    *to |= from;
                }
            }
            for i in 0..size {
                let new = uses[b][i] | out[b][i] & !defs[b][i];
                changed |= new != live_in[b][i];
                live_in[b][i] = new;
            }
        }
    }
    [live_in, out]
}

fn writes(inst: &Inst) -> impl Iterator<Item = u32> + '_ {
    inst.dst.iter().filter_map(reg)
}

fn reads(inst: &Inst) -> impl Iterator<Item = u32> + '_ {
    inst.src.iter().filter_map(reg).chain(inst.guard.map(|g| g.0))
}

fn reg(arg: &Arg) -> Option<u32> {
    match arg {
        Arg::Reg(r) => Some(*r),
        _ => None,
    }
}

/// Assigns slots by a linear scan over the registers' extents in the text.
pub(crate) fn allocate(insts: &[Inst], blocks: &[Block], classes: &[Class]) -> Result<Slots, TooMany> {
    let [live_in, live_out] = live(insts, blocks, classes.len());
    // Instruction i reads at 2 i and writes at 2 i + 1, so a result may take the slot of an operand that ends there.
    let mut extent = vec![(usize::MAX, 0); classes.len()];
    let touch = |extent: &mut Vec<(usize, usize)>, r: usize, at: usize| {
        extent[r].0 = extent[r].0.min(at);
        extent[r].1 = extent[r].1.max(at);
    };
    for (b, block) in blocks.iter().enumerate() {
        for (i, inst) in insts.iter().enumerate().take(block.end).skip(block.start) {
            reads(inst).for_each(|r| touch(&mut extent, r as usize, 2 * i));
            writes(inst).for_each(|r| touch(&mut extent, r as usize, 2 * i + 1));
        }
        for r in 0..classes.len() {
            let within = |sets: &[Vec<u64>]| sets[b][r / 64] >> (r % 64) & 1 == 1;
            if within(&live_in) {
                touch(&mut extent, r, 2 * block.start);
            }
            if within(&live_out) {
                touch(&mut extent, r, 2 * block.end - 1);
            }
        }
    }
    let mut order: Vec<usize> = (0..classes.len()).filter(|&r| extent[r].0 != usize::MAX).collect();
    order.sort_by_key(|&r| (extent[r].0, r));
    let mut slots = Slots { of: vec![0; classes.len()], preds: 0, words: 0, wides: 0 };
    let mut free: [Vec<u16>; 3] = Default::default();
    let mut active: Vec<usize> = Vec::new();
    for r in order {
        active.retain(|&a| {
            let ends = extent[a].1 < extent[r].0;
            if ends {
                free[classes[a] as usize].push(slots.of[a]);
            }
            !ends
        });
        let total = match classes[r] {
            Class::Pred => &mut slots.preds,
            Class::Word => &mut slots.words,
            Class::Wide => &mut slots.wides,
        };
        slots.of[r] = match free[classes[r] as usize].pop() {
            Some(slot) => slot,
            None => {
                *total += 1;
                u16::try_from(*total - 1).map_err(|_| TooMany)?
            }
        };
        active.push(r);
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Extra;
    use crate::exec;

    fn inst(dst: &[u32], src: &[u32]) -> Inst {
        Inst {
            exec: exec::EXIT,
            count: None,
            line: 1,
            guard: None,
            dst: dst.iter().map(|&r| Arg::Reg(r)).collect(),
            src: src.iter().map(|&r| Arg::Reg(r)).collect(),
            imm: 0,
            extra: Extra::None,
            together: false,
        }
    }

    #[test]
    fn a_result_takes_the_slot_of_an_operand_that_ends() {
        let insts = [inst(&[0], &[]), inst(&[1], &[0]), inst(&[2], &[1])];
        let blocks = [Block { start: 0, end: 3, next: vec![], join: None }];
        let slots = allocate(&insts, &blocks, &[Class::Word; 3]).unwrap();
        assert_eq!((slots.words, slots.of), (1, vec![0, 0, 0]));
    }

    #[test]
    fn values_carried_around_a_loop_keep_their_slots() {
        // 0 is set before the loop and read at its top; 1 lives within an iteration, behind the read.
        let insts = [inst(&[0], &[]), inst(&[1], &[0]), inst(&[2], &[1]), inst(&[], &[2])];
        let blocks = [
            Block { start: 0, end: 1, next: vec![1], join: None },
            Block { start: 1, end: 4, next: vec![1], join: None },
        ];
        let slots = allocate(&insts, &blocks, &[Class::Word; 3]).unwrap();
        assert_ne!(slots.of[0], slots.of[1]);
        assert_ne!(slots.of[0], slots.of[2]);
        assert_eq!(slots.of[1], slots.of[2]);
    }

    #[test]
    fn two_results_of_one_instruction_differ_even_where_one_is_unused() {
        let insts = [inst(&[0, 1], &[]), inst(&[], &[0])];
        let blocks = [Block { start: 0, end: 2, next: vec![], join: None }];
        let slots = allocate(&insts, &blocks, &[Class::Word; 2]).unwrap();
        assert_ne!(slots.of[0], slots.of[1]);
    }

    #[test]
    fn a_guarded_write_keeps_the_old_value_alive() {
        let mut guarded = inst(&[0], &[]);
        guarded.guard = Some((2, false));
        let insts = [inst(&[0], &[]), inst(&[1], &[]), inst(&[], &[1]), guarded, inst(&[], &[0])];
        let blocks = [Block { start: 0, end: 5, next: vec![], join: None }];
        let slots = allocate(&insts, &blocks, &[Class::Word, Class::Word, Class::Pred]).unwrap();
        assert_ne!(slots.of[0], slots.of[1]);
    }
}
