//! Forward by tokens, backward by columns.

use crate::Cpu;
use crate::isa::by_isa;
use crate::ops::chunks::{rows_per_task, split, worth_sharing};
use crate::parallel::Parts;

/// The columns that one task of the backward takes are a multiple of this: 512 bytes, whole cache lines.
const COLUMNS: usize = 128;

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
    // Long stretches of a row, but two tasks for each thread. An element's sum does not depend on how columns are cut.
    let share = worth_sharing(dy.len()) && cpu.threads() > 1;
    let columns = if share { hidden.div_ceil(2 * cpu.threads()).next_multiple_of(COLUMNS) } else { hidden };
    let table = Parts::new(dtable);
    cpu.for_each_if(share, hidden.div_ceil(columns), |i| {
        let at = i * columns;
        let len = columns.min(hidden - at);
        for (&id, dy) in ids.iter().zip(dy.chunks_exact(hidden)) {
            // SAFETY: task `i` alone takes these columns of any row, one row at a time.
            let row = unsafe { table.range(id as usize * hidden + at, len) };
            add(cpu.isa(), row, &dy[at..][..len]);
        }
    });
}
