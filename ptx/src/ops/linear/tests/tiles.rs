//! Weights in the order of the matrix instruction, against its definition lane by lane.

use super::*;
use crate::ops::linear::packed::{Codes, place};
use crate::ops::linear::weights::pack_row;

/// The code of `w` at a row and k, zero beyond the matrix.
fn code_at(w: &Packed, row: usize, k: usize) -> u16 {
    if row >= w.n() || k >= w.k() {
        return 0;
    }
    match w.codes(row / PANEL, k, 1) {
        Codes::F32(_) => unreachable!("no kernel takes f32"),
        Codes::Bf16(groups) => groups[0][place(row % PANEL)],
        Codes::E4m3(groups) => u16::from(groups[0][place(row % PANEL)]),
    }
}

#[test]
fn each_lane_finds_its_sixteen_values() {
    for (n, k) in [(1, 1), (16, 32), (37, 75), (33, 8), (50, 160)] {
        for format in &FORMATS[1..] {
            let w = packed(*format, n, k);
            let bytes = w.dtype().bytes();
            let steps = k.div_ceil(32);
            for tile in 0..n.div_ceil(16) {
                let mut row_of_tiles = vec![0_u8; steps * 512 * bytes];
                for at in 0..16.min(n - 16 * tile) {
                    pack_row(&w, 16 * tile + at, at, &mut row_of_tiles);
                }
                for (step, lane) in (0..steps).flat_map(|step| (0..32).map(move |lane| (step, lane))) {
                    let (g, t) = (lane / 4, lane % 4);
                    let share = &row_of_tiles[step * 512 * bytes..][..512 * bytes];
                    for (half, i) in (0..2).flat_map(|half| (0..8).map(move |i| (half, i))) {
                        let got = if bytes == 2 {
                            let at = 512 * half + 16 * lane + 2 * i;
                            u16::from_ne_bytes([share[at], share[at + 1]])
                        } else {
                            u16::from(share[16 * lane + 8 * half + i])
                        };
                        let want = code_at(&w, 16 * tile + g + 8 * half, 32 * step + 8 * t + i);
                        assert_eq!(got, want, "{w:?} {format:?}: tile {tile}, step {step}, lane {lane}, {half}, {i}");
                    }
                }
            }
        }
    }
}
