//! Criterion for kernels, with the machine's limits before each of its samples.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode};
use opd::bench::{Cost, Gauge, Limits, Measured, Samples};
use opd::clock::Stopwatch;
use ptx::Cpu;
use serde_json::Map;

use super::Record;
use super::record::wanted;
use super::table::Table;

/// Criterion as all benches use it: whole runs take too long for its default of a hundred samples.
pub fn criterion() -> Criterion {
    let criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(200))
        .without_plots();
    // Its own command line does not know our flag, and whoever records takes all cases.
    if wanted() { criterion } else { criterion.configure_from_args() }
}

/// Measures kernels and limits in turns, on one thread and on all.
pub struct Meter {
    gauge: Gauge,
    one: Arc<Cpu>,
    table: Table,
    objects: Vec<serde_json::Value>,
}

impl Meter {
    pub fn new() -> Meter {
        let all = Arc::new(Cpu::new(0));
        let table =
            Table::new(["kernel", "threads", "us", "low to high", "GB/s", "GFLOP/s", "of read", "of fma", "bound"]);
        Meter { gauge: super::gauge(&all), one: Arc::new(Cpu::new(1)), table, objects: Vec::new() }
    }

    /// All threads.
    pub fn cpu(&self) -> &Arc<Cpu> {
        self.gauge.cpu()
    }

    /// One thread, and all of them where there are more.
    pub fn devices(&self) -> Vec<Arc<Cpu>> {
        let all = Arc::clone(self.cpu());
        if all.threads() == 1 { vec![all] } else { vec![Arc::clone(&self.one), all] }
    }

    /// Runs `work` on `cpu` under Criterion, and keeps a row of it beside the limits of as many threads.
    pub fn run(
        &mut self,
        c: &mut Criterion,
        cpu: &Cpu,
        group: &str,
        name: &str,
        cost: Cost,
        mut work: impl FnMut(&Cpu),
    ) {
        let mut samples = Samples { seconds: Vec::new(), limits: Vec::new() };
        let mut benches = c.benchmark_group(group);
        benches.sampling_mode(SamplingMode::Flat);
        let id = BenchmarkId::new(name, cpu.threads());
        benches.bench_function(id, |b| {
            b.iter_custom(|iterations| {
                let mut sum = 0.0;
                for _ in 0..iterations {
                    let limits = self.gauge.measure();
                    let watch = Stopwatch::start();
                    work(cpu);
                    let seconds = watch.elapsed_s();
                    sum += seconds;
                    samples.seconds.push(seconds);
                    let Limits { read_one, fma_one, .. } = limits;
                    samples.limits.push(if cpu.threads() == 1 {
                        Limits { read: read_one, fma: fma_one, ..limits }
                    } else {
                        limits
                    });
                }
                Duration::from_secs_f64(sum)
            });
        });
        benches.finish();
        // The first warms caches and buffers; what was filtered out has none.
        if samples.seconds.len() > 1 {
            samples.seconds.remove(0);
            samples.limits.remove(0);
            self.keep(&format!("{group}/{name}"), cpu.threads(), &Measured { cost, samples });
        }
    }

    fn keep(&mut self, name: &str, threads: usize, measured: &Measured) {
        let us = measured.seconds().times(1e6);
        let rate = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!("{rate:.2}"));
        let share = |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.1}%", 100.0 * share));
        self.table.row([
            name.to_owned(),
            threads.to_string(),
            format!("{:.1}", us.median),
            format!("{:.1} to {:.1}", us.low, us.high),
            rate(measured.gb_s()),
            rate(measured.gflop_s()),
            share(measured.share_read()),
            share(measured.share_fma()),
            measured.bound().name().to_owned(),
        ]);
        let mut object = Map::new();
        object.insert("kernel".to_owned(), name.into());
        object.insert("threads".to_owned(), threads.into());
        measured.put(&mut object);
        self.objects.push(object.into());
    }

    /// The rows and their numbers as a record.
    pub fn finish(self, c: &mut Criterion, bench: &'static str) {
        c.final_summary();
        let mut record = Record::new(bench, self.gauge.cpu());
        record.say(&self.table);
        self.objects.into_iter().for_each(|object| record.push("kernels", object));
        record.finish();
    }
}
