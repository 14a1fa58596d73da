//! How near are the row and element kernels to asking memory for no more than they must? From the counters of the simulated
//! device. No time is taken.

#[path = "../tests/cuda_small/traffic.rs"]
mod traffic;

use ptx::cuda::simulator;
use traffic::Sizes;

fn main() {
    // `cargo bench` passes --bench; `cargo test --all-targets` does not and gets a short run.
    let full = std::env::args().any(|arg| arg == "--bench");
    let sizes = if full {
        Sizes { rows: 8, hidden: 2048, ffn: 6144, vocab: 151_936 }
    } else {
        Sizes { rows: 2, hidden: 256, ffn: 512, vocab: 4096 }
    };
    println!(
        "needed: the least as a share of the sectors asked for; moved: different sectors, as a share of the least; issued: instructions of warps for each KiB of it"
    );
    println!("| target | kernel | shape | least, bytes | needed | moved | issued | bank passes |");
    println!("|---|---|---|---|---|---|---|---|");
    for (target, gpu) in [("sm_80", simulator::open_sm80()), ("sm_89", simulator::open())] {
        let gpu = gpu.expect("the simulated device");
        let mut all = traffic::layer(&gpu, sizes).expect("the simulated device runs a layer's kernels");
        all.extend(traffic::head(&gpu, sizes).expect("the simulated device runs the head's kernels"));
        for f in all {
            #[allow(clippy::cast_precision_loss)]
            let share = |of: u64, whole: u64| of as f64 / whole.max(1) as f64;
            println!(
                "| {target} | {} | {} | {} | {:.3} | {:.3} | {:.1} | {:.3} |",
                f.name,
                f.shape,
                f.least,
                f.efficiency(),
                share(f.moved, f.least),
                1024.0 * share(f.issued, f.least),
                share(f.wavefronts, f.wavefronts_least),
            );
        }
    }
}
