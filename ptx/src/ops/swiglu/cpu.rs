//! Straight loops that the compiler vectorises, exp included.

use crate::Cpu;
use crate::isa::by_isa;
use crate::math::sigmoid;
use crate::ops::chunks::split_elements;

by_isa! {
    fn forward_part(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(*gate) * up;
        }
    }
}

by_isa! {
    fn backward_part(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        for ((((dgate, dup), gate), up), dy) in dgate.iter_mut().zip(dup).zip(gate).zip(up).zip(dy) {
            let s = sigmoid(*gate);
            *dup = dy * (gate * s);
            *dgate = (dy * up) * (s * gate.mul_add(1.0 - s, 1.0));
        }
    }
}

pub(super) fn forward(cpu: &Cpu, gate: &[f32], up: &[f32], y: &mut [f32]) {
    split_elements(cpu, [y], |at, [y]| {
        forward_part(cpu.isa(), &gate[at..][..y.len()], &up[at..][..y.len()], y);
    });
}

pub(super) fn backward(cpu: &Cpu, gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    split_elements(cpu, [dgate, dup], |at, [dgate, dup]| {
        let len = dgate.len();
        backward_part(cpu.isa(), &gate[at..][..len], &up[at..][..len], &dy[at..][..len], dgate, dup);
    });
}
