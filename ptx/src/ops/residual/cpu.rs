//! A straight loop.

use crate::Cpu;
use crate::isa::by_isa;
use crate::ops::chunks::split_elements;

by_isa! {
    fn add_part(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

pub(super) fn add(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    split_elements(cpu, [x], |at, [x]| add_part(cpu.isa(), x, &y[at..][..x.len()]));
}
