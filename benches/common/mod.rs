//! What every bench shares: random models, the machine's limits measured beside the code, and the line that is printed.

#![allow(dead_code, reason = "each bench takes what it needs")]

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode};
use engine::checkpoint::CheckpointError;
use engine::config::ModelConfig;
use engine::model::{Model, WeightSource};
use engine::recipe::{Precision, Recipe};
use ptx::{Cpu, limits};
use serde_json::json;

/// Bytes read to measure the memory: far beyond any cache.
const READ_BYTES: usize = 512 << 20;
/// Tasks of multiply-adds: some 10 ms a core.
const FMA_TASKS: usize = 64;

/// Whether this is `cargo bench`; under `cargo test` benches only show that they run.
pub fn is_full() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

/// Whether the command line names no bench, or one that `name` is part of: what it does not name need not be set up.
pub fn is_wanted(name: &str) -> bool {
    let mut filters = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| filter.contains(name))
}

/// Criterion as all benches use it: whole runs take too long for its default of a hundred samples.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(200))
        .without_plots()
        .configure_from_args()
}

/// A decoder's shape.
#[derive(Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub vocab: usize,
}

impl Shape {
    /// A Qwen3 of this shape with a tied head.
    pub fn config(self) -> ModelConfig {
        let raw = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "max_position_embeddings": 4096,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": true,
            "attention_bias": false,
            "vocab_size": self.vocab,
        });
        ModelConfig::parse(&raw.to_string()).expect("a Qwen3 configuration")
    }

    /// Parameters of the matrices, the embedding once.
    pub fn parameters(self) -> f64 {
        (self.layer_parameters() + self.vocab * self.hidden) as f64
    }

    /// Parameters of the layers' matrices.
    pub fn layer_parameters(self) -> usize {
        let attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads);
        self.layers * (attention + 3 * self.hidden * self.ffn)
    }
}

/// Weights from a seed: uniform, of the deviation that keeps activations near 1; norms are ones.
pub struct Seeded {
    pub state: u64,
}

impl WeightSource for Seeded {
    fn rows(&mut self, name: &str, _first: usize, _rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        if name.contains("norm") {
            out.fill(1.0);
            return Ok(());
        }
        for x in out {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *x = ((self.state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.04;
        }
        Ok(())
    }
}

/// A model with weights from a seed.
pub fn model(cpu: &Cpu, shape: Shape, recipe: &str, precision: Precision) -> Model {
    let config = shape.config();
    let recipe = Recipe::built_in(recipe, precision, &config).expect("a built-in recipe");
    let mut model = Model::empty(config, recipe);
    model.update(cpu, 0, &mut Seeded { state: 1 }).expect("it reads from memory");
    model
}

/// One measurement: seconds, and the machine's limits just before it.
#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    read_one: f64,
    read: f64,
    fma: f64,
}

/// Measures code and the machine's limits in turns, and prints the share of the limit that the code reached.
pub struct Meter {
    pub cpu: Arc<Cpu>,
    one: Cpu,
    buffer: Vec<u64>,
    samples: RefCell<Vec<Sample>>,
}

/// What one run of the measured code does.
#[derive(Clone, Copy)]
pub struct Work {
    pub tokens: f64,
    /// Bytes of weights read, where memory is the limit.
    pub bytes: Option<f64>,
    pub flops: f64,
}

impl Meter {
    pub fn new() -> Meter {
        let words = if is_full() { READ_BYTES / 8 } else { 1 << 17 };
        let buffer = (0..words as u64).collect();
        Meter { cpu: Arc::new(Cpu::new(0)), one: Cpu::new(1), buffer, samples: RefCell::default() }
    }

    /// Runs `work` under Criterion and prints tokens a second beside the limits; medians over all samples.
    pub fn run(&self, c: &mut Criterion, group: &str, name: &str, amount: Work, mut work: impl FnMut()) {
        self.samples.borrow_mut().clear();
        let mut benches = c.benchmark_group(group);
        benches.sampling_mode(SamplingMode::Flat);
        benches.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|iterations| (0..iterations).map(|_| self.sample(&mut work)).sum());
        });
        benches.finish();
        if is_full() {
            self.print(&format!("{group}/{name}"), amount);
        }
    }

    fn sample(&self, work: &mut impl FnMut()) -> Duration {
        let bytes = (8 * self.buffer.len()) as f64;
        let tasks = if is_full() { FMA_TASKS * self.cpu.threads() } else { 1 };
        let (read_one, _) = timed(|| limits::read(&self.one, &self.buffer));
        let (read, _) = timed(|| limits::read(&self.cpu, &self.buffer));
        let (fma, flops) = timed(|| limits::multiply_add(&self.cpu, tasks));
        let (time, ()) = timed(work);
        let seconds = |t: Duration| t.as_secs_f64();
        self.samples.borrow_mut().push(Sample {
            seconds: seconds(time),
            read_one: bytes / seconds(read_one),
            read: bytes / seconds(read),
            fma: flops / seconds(fma),
        });
        time
    }

    fn print(&self, name: &str, amount: Work) {
        let samples = self.samples.borrow();
        let samples = &samples[samples.len().min(1)..]; // the first warms caches and buffers
        if samples.len() < 5 {
            return; // filtered out
        }
        let median = |of: &dyn Fn(&Sample) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let seconds = median(&|s| s.seconds);
        let (one, read, fma) = (median(&|s| s.read_one), median(&|s| s.read), median(&|s| s.fma));
        println!(
            "LIMIT {name}: {:.1} tok/s, {:.4} s; {}{:.1} GFLOP/s = {:.0} % of FMA; machine: read {:.1} GB/s (one thread \
             {:.1}), FMA {:.0} GFLOP/s ({}, {} samples)",
            amount.tokens / seconds,
            seconds,
            amount.bytes.map_or(String::new(), |bytes| {
                format!("{:.1} GB/s = {:.0} % of reading, ", bytes / seconds / 1e9, 100.0 * bytes / seconds / read)
            }),
            amount.flops / seconds / 1e9,
            100.0 * amount.flops / seconds / fma,
            read / 1e9,
            one / 1e9,
            fma / 1e9,
            self.cpu,
            samples.len(),
        );
    }
}

#[allow(clippy::disallowed_methods, reason = "a bench exists to read the clock; no result depends on it")]
/// How long `work` takes.
pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = black_box(work());
    (start.elapsed(), result)
}

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
