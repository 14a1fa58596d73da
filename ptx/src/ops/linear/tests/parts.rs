//! Parts of the outputs, in ascending order, leave the bits of the whole.

use super::*;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn parts_have_the_bits_of_the_whole() {
    for isa in Isa::available() {
        let cpu = Cpu::with_isa(2, isa);
        for format in FORMATS {
            for (m, n, k) in [(1, 33, 31), (3, 200, 300), (24, 450, 129), (30, 333, 140), (300, 97, 33)] {
                let w = packed(format, n, k);
                let (x, dy) = (normal(2, m * k), normal(3, m * n));
                let (mut y, mut dx) = (vec![0.0; m * n], vec![f32::NAN; m * k]);
                forward(&cpu, m, &x, &mut [Job { w: &w, bias: None, y: &mut y }]);
                backward_input(&cpu, m, &dy, &w, &mut dx, false);
                for wide in [PANEL, 4 * PANEL, 5 * PANEL, 1024] {
                    let mut got = vec![f32::NAN; m * k];
                    for first in (0..n).step_by(wide) {
                        let columns = wide.min(n - first);
                        let of = |all: &[f32]| -> Vec<f32> {
                            all.chunks_exact(n).flat_map(|row| &row[first..first + columns]).copied().collect()
                        };
                        let mut part = vec![f32::NAN; m * columns];
                        forward_part(&cpu, m, &x, &w, first, &mut part);
                        assert_eq!(bits(&part), bits(&of(&y)), "{cpu} {format:?} {m} {n} {k}: {first}+{columns}");
                        backward_input_part(&cpu, m, &of(&dy), &w, first, &mut got, first > 0);
                    }
                    assert_eq!(bits(&got), bits(&dx), "{cpu} {format:?} {m} {n} {k}: gradient by {wide}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "begins no panel")]
fn a_part_begins_with_a_panel() {
    forward_part(&Cpu::new(1), 1, &[0.0; 4], &packed(FORMATS[0], 64, 4), 16, &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "outputs 32+33")]
fn a_part_ends_with_the_matrix() {
    forward_part(&Cpu::new(1), 1, &[0.0; 4], &packed(FORMATS[0], 64, 4), 32, &mut [0.0; 33]);
}
