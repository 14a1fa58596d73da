//! How near are products of few rows to streaming their weights once? From the counters of the simulated device: what they
//! ask of memory against what they must, and what they lose to bank conflicts. No time is taken.

#[path = "../tests/cuda_linear/traffic.rs"]
mod traffic;

use ptx::DType;
use ptx::cuda::simulator;
use ptx::ops::linear::WeightScale;
use traffic::{Product, share};

/// Matrices of Qwen3: what, outputs, inputs.
const SHAPES: [(&str, usize, usize); 5] = [
    ("0.6B q; k and v", 2048, 1024),
    ("0.6B o", 1024, 2048),
    ("0.6B gate and up", 6144, 1024),
    ("0.6B down", 1024, 3072),
    ("4B down", 2560, 9728),
];

fn main() {
    // `cargo bench` passes --bench; `cargo test --all-targets` does not and gets a short run.
    let full = std::env::args().any(|arg| arg == "--bench");
    let gpu = simulator::open().expect("the simulated device");
    println!(
        "weights, inputs: sectors asked for, as shares of the bytes of weights and scales; efficiency: of all loads,"
    );
    println!("bytes asked for by lanes of the sectors they lie in; bank passes: of those without conflicts");
    println!(
        "| matrix | n | k | weights | inputs are | rows | weights | inputs | loads | stores | stored | bank passes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, n, k) in SHAPES {
        for (weights, scale, input) in [
            (DType::Bf16, WeightScale::Channel, DType::Bf16),
            (DType::E4m3, WeightScale::Channel, DType::Bf16),
            (DType::E4m3, WeightScale::Block128, DType::Bf16),
            (DType::E4m3, WeightScale::Channel, DType::E4m3),
        ] {
            for rows in [1, 8, 64] {
                let n = if full { n } else { 128 };
                let p = Product { rows, n, k, weights, scale, input };
                let f = traffic::run(&gpu, p).expect("the simulated device runs products");
                let by = if weights == DType::E4m3 { format!(" by {scale:?}").to_lowercase() } else { String::new() };
                println!(
                    "| {name} | {n} | {k} | {weights}{by} | {input} | {rows} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
                    share(f.weights_asked, f.held),
                    share(f.inputs_asked, f.held),
                    share(f.loaded, f.load_sectors),
                    share(f.stored, f.store_sectors),
                    share(f.stored, f.held),
                    share(f.wavefronts, f.wavefronts_least),
                );
            }
        }
    }
}
