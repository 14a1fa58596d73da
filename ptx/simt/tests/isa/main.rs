//! What single PTX instructions do, against the text and the tables of the PTX ISA.
//!
//! Every expectation here comes from the PTX ISA, version 9.1 unless a group says otherwise, and never from the executor:
//! a misreading that a kernel and the executor share would pass every other test. Each group names the sections it reads.
//! Kernels are built as text around one instruction, and every instruction runs plain, under a guard, under a negated
//! guard and on one side of a divergent branch.

#![allow(clippy::cast_possible_truncation, reason = "expectations take the low bits of wider values on purpose")]

mod approx;
mod atomics;
mod barriers;
mod bits;
mod control;
mod convert;
mod coverage;
mod cp_async;
mod floats;
mod halves;
mod harness;
mod integers;
mod ldmatrix;
mod memory;
mod mma;
mod params;
mod predicates;
mod refusals;
mod shuffle;
mod small_floats;
mod special;
mod values;
mod vote;
