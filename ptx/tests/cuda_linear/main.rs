//! Products and the embedding on the simulated devices: every case of their conformance, and what few rows move.

use ptx::DType;
use ptx::conformance::OPS;
use ptx::cuda::Gpu;
use ptx::cuda::simulator::{self, Mode};
use ptx::ops::linear::WeightScale;

mod traffic;

use traffic::{Product, share};

/// Runs an op's cases and fails with all that is wrong.
fn conform(gpu: &Gpu, op: &str, mode: Mode) {
    gpu.simulator().expect("a simulated device").set_mode(mode).unwrap();
    let (_, check) = OPS.iter().find(|(name, _)| *name == op).expect("the op has cases");
    let (mut failures, mut cases, mut worst) = (Vec::new(), 0, 0.0_f64);
    let done = check(gpu, &mut |outcome| {
        cases += 1;
        match outcome.failure {
            Some(failure) => failures.push(format!("{}: {failure}", outcome.case)),
            None => worst = worst.max(outcome.worst),
        }
    });
    assert!(failures.is_empty(), "{op}, {mode:?}:\n{}", failures.join("\n"));
    done.unwrap();
    assert!(cases > 0, "{op} has no cases");
    println!("{op}, {mode:?}: {cases} cases, the worst took {worst:.3} of what is allowed");
}

#[test]
fn embedding_has_the_cpus_bits() {
    conform(&simulator::open().unwrap(), "embedding", Mode::Checked);
    conform(&simulator::open_sm80().unwrap(), "embedding", Mode::Checked);
}

#[test]
fn linear_agrees_on_8_9() {
    conform(&simulator::open().unwrap(), "linear", Mode::Checked);
}

#[test]
fn linear_agrees_on_8_0() {
    conform(&simulator::open_sm80().unwrap(), "linear", Mode::Checked);
}

/// Weights are asked for once, inputs for no more than the weights (twice as much beside e4m3), in whole sectors and
/// without bank conflicts.
#[test]
fn few_rows_move_little_more_than_the_weights() {
    let gpu = simulator::open().unwrap();
    let formats = [(DType::Bf16, DType::Bf16), (DType::E4m3, DType::Bf16), (DType::E4m3, DType::E4m3)];
    for ((weights, input), rows) in formats.into_iter().flat_map(|f| [1, 8, 16, 32, 64].map(|rows| (f, rows))) {
        let p = Product { rows, n: 128, k: 2560, weights, scale: WeightScale::Channel, input };
        let f = traffic::run(&gpu, p).unwrap();
        assert!(share(f.weights_asked, f.held) <= 1.05, "{p:?}: {f:?}");
        let most = if weights == DType::Bf16 { 1.0 } else { 2.01 };
        assert!(share(f.inputs_asked, f.held) <= most, "{p:?}: {f:?}");
        assert!(share(f.loaded, f.load_sectors) >= 0.95, "{p:?}: {f:?}");
        assert_eq!(f.wavefronts, f.wavefronts_least, "{p:?}: bank conflicts");
        assert_eq!(f.stored, f.store_sectors, "{p:?}: y in whole sectors");
    }
}
