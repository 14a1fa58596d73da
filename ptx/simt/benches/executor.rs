//! How fast the executor runs, on one thread: lane-instructions a second, and for the matrix product floating-point
//! operations a second, shown by criterion as elements. Aims: 1 G lane-instructions a second in fast mode, 500 M with all
//! checks and counters, 8 G operations a second of `mma`. `update` is little but loads and stores of what the launch
//! changes, the dearest there is for the checks. None of it says anything of a GPU.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use simt::{Config, Device, Launch, Mode, Module};

/// A kernel with the sizes of its inputs.
struct Load {
    kernel: &'static str,
    /// Elements of the output, and of each input, all filled with small bf16 or f32 numbers.
    output: usize,
    inputs: Vec<usize>,
    words: Vec<u32>,
    launch: Launch,
    /// Counts `mma` operations rather than lane-instructions.
    flops: bool,
}

fn loads() -> Vec<Load> {
    let launch = |blocks, threads, shared_bytes| Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes };
    vec![
        Load {
            kernel: "gemv",
            output: 512,
            inputs: vec![512 * 2048 / 2, 2048],
            words: vec![512, 256],
            launch: launch(128, 128, 0),
            flops: false,
        },
        Load {
            kernel: "attend",
            output: 8 * 64,
            inputs: vec![8 * 64, 8 * 256 * 64, 8 * 256 * 64],
            words: vec![256],
            launch: launch(8, 64, 4 * (64 * 68 + 128)),
            flops: false,
        },
        Load {
            kernel: "multiply",
            output: 16 * 32 * 16,
            inputs: vec![(16 + 63) * 32 * 4, (16 + 4 * 64) * 32 * 2],
            words: vec![64],
            launch: launch(16, 32, 0),
            flops: true,
        },
        Load {
            kernel: "update",
            output: 1 << 18,
            inputs: vec![1 << 18],
            words: vec![1 << 16],
            launch: launch(512, 128, 0),
            flops: false,
        },
    ]
}

fn main() {
    let module = Module::load(include_str!("kernels.ptx")).expect("the committed PTX loads");
    let mut c = Criterion::default().configure_from_args();
    for load in loads() {
        let entry = module.entry(load.kernel).expect("the kernel is there");
        let mut group = c.benchmark_group(load.kernel);
        let mut work = 0;
        for (name, mode) in [("checked", Mode::Checked), ("fast", Mode::Fast)] {
            let mut device = Device::new(Config { mode, ..Config::default() });
            let output = device.alloc(load.output as u64 * 4).expect("memory");
            device.fill(output, &[0], load.output as u64 * 4).expect("memory");
            let mut params = output.to_le_bytes().to_vec();
            for &n in &load.inputs {
                let at = device.alloc(n as u64 * 4).expect("memory");
                device.fill(at, &[0x80, 0x3c, 0x10, 0x3d], n as u64 * 4).expect("memory");
                params.extend(at.to_le_bytes());
            }
            params.extend(load.words.iter().flat_map(|w| w.to_le_bytes()));
            let stats = device.launch(entry, load.launch, &params).expect("a clean launch");
            if mode == Mode::Checked {
                work = if load.flops { stats.mma_flops } else { stats.lane_instructions };
            }
            group.throughput(Throughput::Elements(work));
            group.bench_function(name, |b| {
                b.iter(|| black_box(device.launch(entry, load.launch, &params).expect("a clean launch")));
            });
        }
        group.finish();
    }
    c.final_summary();
}
