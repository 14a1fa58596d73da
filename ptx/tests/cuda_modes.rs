//! The whole table of cases in every mode of the simulated device: without checks, with blocks and warps in any order, and
//! with sums of the matrix instructions as inexact as hardware's may be. The tests of each op have it with all checks, on both targets.

use ptx::conformance::OPS;
use ptx::cuda::Gpu;
use ptx::cuda::simulator::{self, Mode};

mod bits;

/// Runs every op and gives the digests of what was read.
fn every_op(gpu: &Gpu, mode: Mode) -> Vec<(&'static str, u64)> {
    let simulator = gpu.simulator().expect("it is simulated");
    simulator.set_mode(mode).expect("it takes modes");
    let (mut failures, mut digests) = (Vec::new(), Vec::new());
    for (name, check) in OPS {
        let mut cases = 0;
        simulator.reset_counters().expect("it counts");
        let done = check(gpu, &mut |outcome| {
            cases += 1;
            failures.extend(outcome.failure.map(|failure| format!("{name}, {}: {failure}", outcome.case)));
        });
        done.unwrap_or_else(|error| panic!("{name}, {mode:?}: {error}"));
        assert!(cases > 0, "{name} has no cases");
        digests.push((*name, simulator.counters().expect("it counts").digest()));
    }
    assert!(failures.is_empty(), "{mode:?}:\n{}", failures.join("\n"));
    digests
}

/// Bits are those of the committed table.
fn same_bits(gpu: &Gpu, mode: Mode, sm80: bool) {
    let other: Vec<String> = every_op(gpu, mode)
        .into_iter()
        .filter(|(op, digest)| bits::committed(op, sm80) != Some(*digest))
        .map(|(op, digest)| format!("{op}: {digest:016x}"))
        .collect();
    let target = if sm80 { "sm80" } else { "sm89" };
    assert!(
        other.is_empty(),
        "{mode:?}: other bits on {target}, or other cases. If both were changed on purpose, they belong into \
         ptx/tests/bits/bits.txt, and changed bits of a released kernel into CHANGELOG.md, Numerics:\n{}",
        other.join("\n")
    );
}

#[test]
fn without_checks() {
    same_bits(&simulator::open().expect("built beside this test"), Mode::Fast, false);
}

#[test]
fn without_checks_on_8_0() {
    same_bits(&simulator::open_sm80().expect("built beside this test"), Mode::Fast, true);
}

#[test]
fn with_blocks_and_warps_in_any_order() {
    same_bits(&simulator::open().expect("built beside this test"), Mode::Perturbed(11), false);
}

/// Every case holds, and what the matrix instructions sum has other bits than when they sum as exactly as they can.
fn inexact(gpu: &Gpu, sm80: bool) {
    for (op, digest) in every_op(gpu, Mode::Pessimistic) {
        let sums = ["linear", "attention"].contains(&op);
        assert_eq!(bits::committed(op, sm80) != Some(digest), sums, "{op}: {digest:016x}");
    }
}

#[test]
fn with_inexact_instructions() {
    inexact(&simulator::open().expect("built beside this test"), false);
}

#[test]
fn with_inexact_instructions_on_8_0() {
    inexact(&simulator::open_sm80().expect("built beside this test"), true);
}
