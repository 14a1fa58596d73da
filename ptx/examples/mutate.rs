//! Runs an op's conformance cases on the simulated device, with other PTX in place of the op's own.
//!
//! `mutate OP sm80|sm89 FILE`: what `cargo xtask mutate` starts for each mutant. It stops at the first thing that is wrong
//! and says it: exit status 0 all passed, 1 a case failed, 2 the device met a fault, 3 the device does not take the text.

use ptx::conformance::{OPS, Outcome};
use ptx::cuda::simulator::{self, Mode};
use ptx::cuda::{CudaError, Gpu, MODULES, Module};
use std::process::exit;

#[path = "../tests/bits/mod.rs"]
mod bits;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [op, target, file] = &words[..] else { usage() };
    let Some(committed) = MODULES.iter().find(|module| module.op == op) else { usage() };
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| {
        eprintln!("{file}: {error}");
        exit(64);
    });
    // Lives as long as the process, as a module must.
    let text: &'static str = text.leak();
    let (opened, module) = match target.as_str() {
        "sm80" => (simulator::open_sm80(), Module { sm80: text, ..*committed }),
        "sm89" => (simulator::open(), Module { sm89: text, ..*committed }),
        _ => usage(),
    };
    let outcome = opened.and_then(|gpu| {
        gpu.add_module(Box::leak(Box::new(module)));
        run(&gpu, op, target == "sm80")
    });
    match outcome {
        Ok(cases) => println!("{cases} cases passed"),
        Err(error @ CudaError::InvalidPtx { .. }) => end(3, &error),
        Err(error) => end(2, &error),
    }
}

fn usage() -> ! {
    eprintln!("usage: mutate OP sm80|sm89 FILE, where OP has kernels");
    exit(64);
}

fn end(status: i32, why: &CudaError) -> ! {
    println!("{why}");
    exit(status);
}

/// Runs the op's cases, then those of ops that have no kernels of their own and so may use its, and counts them: with all
/// checks, then with warps in another order, whose bits must be the committed ones as well.
fn run(gpu: &Gpu, op: &str, sm80: bool) -> Result<usize, CudaError> {
    let simulator = gpu.simulator().expect("opened by the simulator's driver");
    simulator.set_threads(1)?;
    let mut cases = 0;
    let own = OPS.iter().filter(|(name, _)| *name == op);
    let borrowing = OPS.iter().filter(|(name, _)| MODULES.iter().all(|module| module.op != *name));
    for (name, check) in own.chain(borrowing) {
        for mode in [Mode::Checked, Mode::Perturbed(5)] {
            simulator.set_mode(mode)?;
            simulator.reset_counters()?;
            check(gpu, &mut |outcome: Outcome| {
                if let Some(failure) = outcome.failure {
                    println!("{}, {}: {failure}", outcome.op, outcome.case);
                    exit(1);
                }
                cases += 1;
            })?;
            if bits::committed(name, sm80) != Some(simulator.counters()?.digest()) {
                println!("{name}, {mode:?}: other bits than in ptx/tests/bits/bits.txt");
                exit(1);
            }
        }
    }
    assert!(cases > 0, "{op} has no cases");
    Ok(cases)
}
