//! Forward by tokens, backward by rows of the table.

use crate::Cpu;
use crate::isa::by_isa;
use crate::ops::chunks::{rows_per_task, split, worth_sharing};
use crate::parallel::Parts;

by_isa! {
    fn add(to: &mut [f32], from: &[f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}

pub(super) fn forward(cpu: &Cpu, lookup: impl Fn(u32, &mut [f32]) + Sync, hidden: usize, ids: &[u32], out: &mut [f32]) {
    let rows = rows_per_task(hidden);
    let (share, tasks) = (worth_sharing(out.len()), ids.len().div_ceil(rows));
    split(cpu, share, tasks, [(out, rows * hidden)], |i, [out]| {
        for (row, &id) in out.chunks_exact_mut(hidden).zip(&ids[i * rows..]) {
            lookup(id, row);
        }
    });
}

pub(super) fn backward(cpu: &Cpu, hidden: usize, ids: &[u32], dy: &[f32], dtable: &mut [f32]) {
    // A task takes the rows whose ids share their low bits: whole rows stream faster than columns of them, and common
    // tokens spread. A row's sum runs over ascending tokens however many tasks there are.
    let share = worth_sharing(dy.len()) && cpu.threads() > 1;
    let tasks = if share { (4 * cpu.threads()).next_power_of_two() } else { 1 };
    let table = Parts::new(dtable);
    cpu.for_each_if(share, tasks, |i| {
        for (&id, dy) in ids.iter().zip(dy.chunks_exact(hidden)) {
            let id = id as usize;
            if id & (tasks - 1) == i {
                // SAFETY: task `i` alone takes the rows whose ids have these low bits, one at a time.
                let row = unsafe { table.range(id * hidden, hidden) };
                add(cpu.isa(), row, dy);
            }
        }
    });
}
