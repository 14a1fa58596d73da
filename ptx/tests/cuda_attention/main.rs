//! Attention, kv_append and kv_copy on the simulated devices: every case of their conformance, and what decode moves.

use ptx::DType;
use ptx::conformance::OPS;
use ptx::cuda::simulator::{self, Mode};
use ptx::cuda::{CudaError, Gpu};

mod traffic;

use traffic::{Decode, Figures};

/// Runs an op's cases and fails with all that is wrong.
fn conform(gpu: &Gpu, op: &str, mode: Mode) {
    gpu.simulator().expect("a simulated device").set_mode(mode).unwrap();
    let (_, check) = OPS.iter().find(|(name, _)| *name == op).expect("the op has cases");
    let mut failures = Vec::new();
    let mut cases = 0;
    let done: Result<(), CudaError> = check(gpu, &mut |outcome| {
        cases += 1;
        if let Some(failure) = outcome.failure {
            failures.push(format!("{}: {failure}", outcome.case));
        }
    });
    assert!(failures.is_empty(), "{op}, {mode:?}:\n{}", failures.join("\n"));
    done.unwrap();
    assert!(cases > 0, "{op} has no cases");
}

#[test]
fn kv_append_has_the_cpus_bits() {
    conform(&simulator::open().unwrap(), "kv_append", Mode::Checked);
    conform(&simulator::open_sm80().unwrap(), "kv_append", Mode::Checked);
}

#[test]
fn kv_copy_copies_what_is_named() {
    conform(&simulator::open().unwrap(), "kv_copy", Mode::Checked);
}

#[test]
fn attention_agrees_on_8_9() {
    conform(&simulator::open().unwrap(), "attention", Mode::Checked);
}

#[test]
fn attention_agrees_on_8_0() {
    conform(&simulator::open_sm80().unwrap(), "attention", Mode::Perturbed(7));
}

/// Decode asks for each sector of keys and values once, 8-bit pages for half as much, and no access to shared memory
/// meets a bank conflict.
#[test]
fn decode_moves_little_more_than_it_must() {
    let gpu = simulator::open().unwrap();
    let [wide, narrow] = [DType::Bf16, DType::E4m3].map(|dtype| {
        let d = Decode { heads: 4, kv_heads: 1, head_dim: 128, dtype, sequences: 1, length: 512 };
        let f = traffic::run(&gpu, d).unwrap();
        assert!(Figures::share(f.kv_asked, f.kv_bytes) <= 1.05, "{d:?}: {f:?}");
        assert!(Figures::share(f.other_asked, f.kv_bytes) <= 1.0, "{d:?}: {f:?}");
        assert_eq!(f.wavefronts, f.wavefronts_least, "{d:?}: bank conflicts in {f:?}");
        // 16 keys by 16 dims by 4 columns, for scores and for values.
        assert_eq!(f.mma, 2 * (512 / 16) * (128 / 16), "{d:?}: {f:?}");
        assert!(Figures::share(1024 * f.issued, f.kv_bytes) <= 220.0, "{d:?}: {f:?}");
        f
    });
    let moved = |f: &Figures| f.kv_asked + f.other_asked + f.stored;
    assert!(Figures::share(moved(&narrow), moved(&wide)) <= 0.55, "{narrow:?} of {wide:?}");
}
