//! `ldmatrix`: matrices of 8 rows of 16 bytes from shared memory, spread over the warp.

use crate::exec::memory::{addresses, lanes_within, misaligned, misaligned_fault, offsets};
use crate::exec::mma::whole_warp;
use crate::exec::shared::{count_shared, shared_bounds, shared_fault};
use crate::exec::value::put_words;
use crate::exec::{Exec, Step, exec};
use crate::program::Op;
use crate::shadow::{Actor, Problem, Shadow};
use crate::state::{Ctx, Warp, first_lane};

/// `variant` 1 transposes; `count` matrices.
pub(crate) const LDMATRIX: Exec = exec!(|w, cx, op| load(w, cx, op));

#[inline(always)]
fn load(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
    if let Err(step) = whole_warp(w, cx) {
        return step;
    }
    let m = &cx.program.mems[op.x as usize];
    let addr = addresses(w, cx, m);
    // Lanes 8 i .. 8 i + 7 give the rows of matrix i; the others' addresses do not matter.
    let matrices = usize::from(m.count);
    let givers = if matrices == 4 { u32::MAX } else { (1 << (8 * matrices)) - 1 };
    if let Some(lane) = misaligned(&addr, givers, 16) {
        return misaligned_fault(cx, lane, addr[lane], 16);
    }
    let within = lanes_within(&addr, givers, 0, cx.shared.bytes, 16);
    if within != givers {
        let lane = first_lane(givers & !within);
        return shared_bounds(cx, lane, addr[lane], 16);
    }
    let transposed = m.variant == 1;
    if cx.counts {
        let at = offsets(&addr, givers, 0);
        count_shared(cx, m.site, &at, givers, 4);
    }
    if let Some(shadow) = &mut cx.shared.shadow
        && let Err((lane, problem)) = check(shadow, w.index, &addr, 8 * matrices, transposed)
    {
        return shared_fault(cx, lane, addr[lane], problem);
    }
    let args = &cx.program.args[m.args as usize + 1..][..matrices];
    let words = &cx.shared.words;
    for (matrix, &slot) in args.iter().enumerate() {
        let rows: [&[u32]; 8] = std::array::from_fn(|row| {
            let start = usize::try_from(addr[8 * matrix + row] / 4).unwrap_or(usize::MAX);
            &words[start..start + 4]
        });
        let out = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4);
            if transposed {
                // Elements of column `row` in two rows that follow each other.
                let half = |r: usize| rows[r][row / 2] >> (16 * (row % 2)) & 0xffff;
                half(2 * column) | half(2 * column + 1) << 16
            } else {
                rows[row][column]
            }
        });
        put_words(&mut w.regs, slot, u32::MAX, out);
    }
    Step::Next
}

/// A word is read by the lane that receives it: one, or two where the matrix is transposed. A fault names the lane that
/// gave the address.
#[inline(always)]
fn check(
    shadow: &mut Shadow,
    warp: u32,
    addr: &[u64; 32],
    rows: usize,
    transposed: bool,
) -> Result<(), (usize, Problem)> {
    let now = shadow.now(warp);
    for (giver, &address) in addr.iter().enumerate().take(rows) {
        let start = usize::try_from(address / 4).unwrap_or(usize::MAX);
        let row = u32::try_from(giver % 8).expect("a row of 8");
        for column in 0..4_u32 {
            let word = start + column as usize;
            let (readers, good) = if transposed {
                let readers = [8 * column + row / 2, 8 * column + 4 + row / 2];
                (readers, shadow.read_together(word, now))
            } else {
                let reader = 4 * row + column;
                ([reader; 2], shadow.read_fast::<1, 1>(word, now, reader))
            };
            for reader in readers.into_iter().filter(|_| !good) {
                let me = Actor { thread: warp * 32 + reader, atomic: false };
                shadow.read(word, 15, me).map_err(|p| (giver, p))?;
            }
        }
    }
    Ok(())
}
