//! How near is decode attention to the limits of a card? From the counters of the simulated device: what it asks of
//! memory against what it must, what it issues for each byte, and what it loses to bank conflicts. No time is taken.

#[path = "../tests/cuda_attention/traffic.rs"]
mod traffic;

use ptx::DType;
use ptx::cuda::simulator;
use traffic::{Decode, Figures};

fn main() {
    // `cargo bench` passes --bench; `cargo test --all-targets` does not and gets a short run.
    let full = std::env::args().any(|arg| arg == "--bench");
    let length = if full { 2048 } else { 300 };
    println!("decode, head_dim 128, {length} keys; asked, other and stored as shares of the bytes of K and V");
    println!(
        "| target | heads / kv heads | pages | asked | other | stored | warp instructions / KiB | mma | bank passes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (target, gpu) in [("sm_80", simulator::open_sm80()), ("sm_89", simulator::open())] {
        let gpu = gpu.expect("the simulated device");
        for (heads, kv_heads) in [(2, 1), (4, 1), (8, 1)] {
            for dtype in [DType::Bf16, DType::E4m3, DType::E5m2] {
                let d = Decode { heads, kv_heads, head_dim: 128, dtype, sequences: 1, length };
                let f = traffic::run(&gpu, d).expect("the simulated device runs attention");
                println!(
                    "| {target} | {heads} / {kv_heads} | {dtype} | {:.3} | {:.3} | {:.3} | {:.1} | {:.1} | {:.3} |",
                    Figures::share(f.kv_asked, f.kv_bytes),
                    Figures::share(f.other_asked, f.kv_bytes),
                    Figures::share(f.stored, f.kv_bytes),
                    1024.0 * Figures::share(f.issued, f.kv_bytes),
                    1024.0 * Figures::share(f.mma, f.kv_bytes),
                    Figures::share(f.wavefronts, f.wavefronts_least),
                );
            }
        }
    }
}
