//! The whole table of cases in every mode of the simulated device: without checks, with warps in any order, and with
//! instructions as inexact as hardware's may be. The tests of each op have it with all checks, on both targets.

use ptx::conformance::OPS;
use ptx::cuda::simulator::{self, Mode};

fn every_op(mode: Mode) {
    let gpu = simulator::open().expect("built beside this test");
    gpu.simulator().expect("it is simulated").set_mode(mode).expect("it takes modes");
    let mut failures = Vec::new();
    for (name, check) in OPS {
        let mut cases = 0;
        let done = check(&gpu, &mut |outcome| {
            cases += 1;
            failures.extend(outcome.failure.map(|failure| format!("{name}, {}: {failure}", outcome.case)));
        });
        done.unwrap_or_else(|error| panic!("{name}, {mode:?}: {error}"));
        assert!(cases > 0, "{name} has no cases");
    }
    assert!(failures.is_empty(), "{mode:?}:\n{}", failures.join("\n"));
}

#[test]
fn without_checks() {
    every_op(Mode::Fast);
}

#[test]
fn with_warps_in_any_order() {
    every_op(Mode::Perturbed(11));
}

#[test]
fn with_inexact_instructions() {
    every_op(Mode::Pessimistic);
}
