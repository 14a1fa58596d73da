//! The row and element kernels on the simulated devices: their cases, warps in any order, and no sector asked for twice that
//! is needed once.

mod traffic;

use ptx::conformance::OPS;
use ptx::cuda::Gpu;
use ptx::cuda::simulator::{self, Mode};
use traffic::Sizes;

const ROWS: [&str; 5] = ["residual", "rmsnorm", "rope", "round", "swiglu"];

/// Runs the cases of these ops; panics with the first that fails.
fn conform(gpu: &Gpu, ops: &[&str]) {
    for op in ops {
        let (_, check) = OPS.iter().find(|(name, _)| name == op).expect("an op with cases");
        let mut cases = 0;
        let outcome = check(gpu, &mut |outcome| {
            assert_eq!(outcome.failure, None, "{op}, {}, on {}", outcome.case, gpu.name());
            cases += 1;
        });
        outcome.unwrap_or_else(|fault| panic!("{op}: {fault}"));
        assert!(cases > 0, "no case of {op} ran");
    }
}

#[test]
fn cases_of_rows_and_elements() {
    conform(&simulator::open().unwrap(), &ROWS);
    conform(&simulator::open_sm80().unwrap(), &ROWS);
}

#[test]
fn cases_of_log_softmax_on_8_9() {
    conform(&simulator::open().unwrap(), &["log_softmax"]);
}

#[test]
fn cases_of_log_softmax_on_8_0() {
    conform(&simulator::open_sm80().unwrap(), &["log_softmax"]);
}

#[test]
fn cases_of_sample_on_8_9() {
    conform(&simulator::open().unwrap(), &["sample"]);
}

#[test]
fn cases_of_sample_on_8_0() {
    conform(&simulator::open_sm80().unwrap(), &["sample"]);
}

#[test]
fn warps_may_run_in_any_order() {
    let gpu = simulator::open().unwrap();
    gpu.simulator().unwrap().set_mode(Mode::Perturbed(7)).unwrap();
    conform(&gpu, &["round", "rmsnorm", "sample"]);
}

#[test]
fn layers_ask_for_what_they_need() {
    let gpu = simulator::open().unwrap();
    for rows in [1, 5] {
        for figures in traffic::layer(&gpu, Sizes { rows, hidden: 1024, ffn: 512, vocab: 0 }).unwrap() {
            // The frequencies and positions of the tables are few, but not beside one row.
            let least = if figures.name == "rope_tables" { 0.6 } else { 0.95 };
            assert!((least..=1.0).contains(&figures.efficiency()), "{:.3} of {figures:?}", figures.efficiency());
            assert!(figures.moved <= figures.asked, "{figures:?}");
            assert_eq!(figures.wavefronts, figures.wavefronts_least, "bank conflicts: {figures:?}");
        }
    }
}

#[test]
fn rows_of_logits_are_read_once_for_a_sum() {
    let gpu = simulator::open().unwrap();
    let all = traffic::head(&gpu, Sizes { rows: 2, hidden: 0, ffn: 0, vocab: 8192 }).unwrap();
    for name in ["gather", "normalizers"] {
        let figures = all.iter().find(|figures| figures.name == name).unwrap();
        assert!((0.95..=1.0).contains(&figures.efficiency()), "{:.3} of {figures:?}", figures.efficiency());
    }
    for figures in all {
        // Some 50 instructions a column for a sum, and what a draw adds to short rows.
        if !figures.name.contains("top") {
            assert!(
                figures.issued * 32 < 100 * (figures.least / 4),
                "{} of {}: {figures:?}",
                figures.name,
                figures.shape
            );
        }
        // Four threads of a digit add up counters of one bank.
        assert!(figures.wavefronts <= figures.wavefronts_least * 5 / 2, "bank conflicts: {figures:?}");
    }
}
