//! Which allocations a kernel may store to, known before it runs: those that its stores' addresses are made from.
//!
//! A pass over the text without regard to its order: each register is made from what any instruction that writes it is made
//! from. Of the parameters that an address is made from, those are looked at that hold an address when the kernel is
//! launched; the others are indices.

use crate::counters::Class as Counted;
use crate::decode::{Arg, Decoded, Extra, Inst};
use crate::program::Space;

/// What an address is made from: one bit for each eight bytes of parameters, and these.
pub(crate) type Origin = u64;
/// Data of 64 bits that was loaded, which may be an address.
pub(crate) const LOADED: Origin = 1 << 63;
/// The module's variables.
pub(crate) const VARIABLES: Origin = 1 << 62;
/// Parameters that are not known, or lie further behind than there are bits.
pub(crate) const ANY: Origin = 1 << 61;
/// Eights of bytes of parameters that have a bit.
pub(crate) const PARAMETERS: usize = 61;

fn parameter(offset: u64) -> Origin {
    if offset / 8 < PARAMETERS as u64 { 1 << (offset / 8) } else { ANY }
}

/// The origins of the addresses of all stores and atomics that may go to global memory.
pub(crate) fn origins(d: &Decoded) -> Vec<Origin> {
    let mut from = vec![0; d.regs.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for inst in &d.insts {
            let new = result(inst, &from);
            for &arg in &inst.dst {
                if let Arg::Reg(r) = arg {
                    let old = from[r as usize];
                    from[r as usize] |= new;
                    changed |= old | new != old;
                }
            }
        }
    }
    let mut all: Vec<Origin> = d.insts.iter().filter_map(|inst| Some(of(*stored(inst)?, &from))).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn of(arg: Arg, from: &[Origin]) -> Origin {
    match arg {
        Arg::Reg(r) => from[r as usize],
        Arg::Global(_) => VARIABLES,
        _ => 0,
    }
}

/// What the results of an instruction are made from.
fn result(inst: &Inst, from: &[Origin]) -> Origin {
    let Extra::Mem(accesses) = &inst.extra else {
        return inst.src.iter().fold(0, |all, &arg| all | of(arg, from));
    };
    let Some((m, args)) = accesses.first() else { return 0 };
    match (m.space, args[0]) {
        (Space::Param, Arg::Wide(address)) => {
            let first = address.wrapping_add_signed(m.offset);
            let bytes = u64::from(m.width) * u64::from(m.count);
            (first / 8..(first + bytes).div_ceil(8)).fold(0, |all, part| all | parameter(8 * part))
        }
        (Space::Param, _) => ANY,
        _ if m.width == 8 => LOADED,
        // Narrower data may be an index, but is no address.
        _ => 0,
    }
}

/// The address of a store or an atomic that may go to global memory.
fn stored(inst: &Inst) -> Option<&Arg> {
    let Extra::Mem(accesses) = &inst.extra else { return None };
    // Copies have two accesses, and store to shared memory.
    let [(m, args)] = accesses.as_slice() else { return None };
    let stores = inst.dst.is_empty() || inst.count == Some(Counted::Atomic);
    (stores && matches!(m.space, Space::Global | Space::Generic)).then(|| &args[0])
}
