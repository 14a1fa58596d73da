//! A straight loop of integer operations that the compiler vectorises.

use crate::Cpu;
use crate::dtype::round_bf16;
use crate::isa::by_isa;
use crate::ops::chunks::split_elements;

by_isa! {
    fn bf16_part(x: &mut [f32]) {
        for x in x {
            *x = round_bf16(*x);
        }
    }
}

pub(super) fn bf16(cpu: &Cpu, x: &mut [f32]) {
    split_elements(cpu, [x], |_, [x]| bf16_part(cpu.isa(), x));
}
