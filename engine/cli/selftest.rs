//! `leeway selftest`: whether a device computes what it must, and how near it comes to what it can.

use std::process::ExitCode;

use clap::Args;
use engine::engine::{Device, EngineError};
use engine::selftest::{Finding, Rate, Sizes, agreement, invariance, models, roofline};
use ptx::conformance;
use ptx::cuda::Gpu;
use ptx::cuda::simulator::Mode;
use serde_json::{Value, json};

use super::table::Table;
use super::{Failure, Global};

/// Greedy tokens that are compared with the CPU's.
const TOKENS: usize = 200;

/// What a person must not overlook in a report of the simulated device.
const SIMULATED: &str = "simulated device (ptx/simt): no time is reported";

#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Check only the kernels of this op, on a CUDA device, and no models. May be repeated.
    #[arg(long)]
    op: Vec<String>,
}

/// The cases of one op.
struct Op {
    name: &'static str,
    cases: usize,
    worst: f64,
    failures: Vec<String>,
}

pub fn run(args: &SelftestArgs, global: &Global) -> Result<ExitCode, Failure> {
    let device = global.device(|| Ok(()))?;
    if device.is_cpu() && !args.op.is_empty() {
        return Err("--op names kernels of a CUDA device: add --device cuda".into());
    }
    let known: Vec<&str> = conformance::OPS.iter().map(|(name, _)| *name).collect();
    if let Some(name) = args.op.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--op {name} is none of the ops: {}", known.join(", ")).into());
    }
    if !global.json {
        super::print(format_args!("{device}\n"))?;
    }
    let simulated = device.gpu().is_some_and(Gpu::is_simulated);
    if simulated && !global.json {
        super::print(format_args!("{SIMULATED}\n"))?;
    }
    let mut object = json!({"device": device.to_string()});
    super::open::add_gpu(&mut object, super::open::gpu_json(&device).as_ref());

    let ops = device.gpu().map(|gpu| ops(gpu, &args.op, global)).transpose()?.unwrap_or_default();
    let bad_ops = ops.iter().filter(|op| !op.failures.is_empty()).count();
    object["ops"] = ops.iter().map(op_json).collect();
    if !global.json && device.gpu().is_some() {
        super::print(format_args!("\n{}", ops_table(&ops)))?;
    }
    if let Some(gpu) = device.gpu().filter(|_| simulated) {
        // The kernels were run with all checks; what follows is about their results.
        gpu.simulator().expect("it is simulated").set_mode(Mode::Fast)?;
    }
    let whole = args.op.is_empty();
    let findings = if whole { engine_findings(&device, TOKENS, global)? } else { Vec::new() };
    let bad_findings = findings.iter().filter(|finding| finding.failure.is_some()).count();
    object["checks"] = findings.iter().map(finding_json).collect();
    if whole && !global.json {
        super::print(format_args!("\n{}", findings_table(&findings)))?;
    }
    for failure in ops.iter().flat_map(|op| &op.failures) {
        eprintln!("error: {failure}");
    }
    for Finding { model, check, failure, .. } in &findings {
        if let Some(failure) = failure {
            eprintln!("error: {model}: {check}: {failure}");
        }
    }
    if let Some(gpu) = device.gpu().filter(|_| whole) {
        speed(gpu, &device, global, &mut object)?;
    }
    let good = bad_ops + bad_findings == 0;
    object["ok"] = good.into();
    if !global.json {
        let cases: usize = ops.iter().map(|op| op.cases).sum();
        let of_ops = (!ops.is_empty()).then(|| format!("{cases} cases of {} ops", ops.len()));
        let of_models = whole.then(|| format!("{} checks", findings.len()));
        let said: Vec<String> = of_ops.into_iter().chain(of_models).collect();
        let verdict = if good { "all as it must be" } else { "FAILED" };
        super::print(format_args!("\n{}: {verdict}\n", said.join(", ")))?;
    }
    global.print_json(&object)?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every op's cases on the device.
fn ops(gpu: &Gpu, wanted: &[String], global: &Global) -> Result<Vec<Op>, Failure> {
    let chosen = conformance::OPS.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name));
    let bar = global.bar(chosen.clone().count() as u64, "ops");
    bar.set_message("selftest");
    let mut all = Vec::new();
    for (name, check) in chosen {
        let mut op = Op { name, cases: 0, worst: 0.0, failures: Vec::new() };
        check(gpu, &mut |outcome| {
            op.cases += 1;
            op.worst = op.worst.max(outcome.worst);
            if let Some(failure) = outcome.failure {
                op.failures.push(format!("{name}, {}: {failure}", outcome.case));
            }
        })?;
        all.push(op);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(all)
}

fn engine_findings(device: &Device, tokens: usize, global: &Global) -> Result<Vec<Finding>, EngineError> {
    let models = models();
    let bar = global.bar(models.len() as u64, "models");
    bar.set_message("selftest");
    let mut all = Vec::new();
    for small in &models {
        let mut each = |finding| all.push(finding);
        if !device.is_cpu() {
            agreement(device, small, tokens, &mut each)?;
        }
        invariance(device, small, &mut each)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Time against the device's limits, or on the simulated device what it counts instead.
fn speed(gpu: &Gpu, device: &Device, global: &Global, object: &mut Value) -> Result<(), Failure> {
    if let Some(simulator) = gpu.simulator() {
        simulator.set_mode(Mode::Checked)?;
        simulator.reset_counters()?;
        // A few products with all counters on: what the kernels ask of a device.
        engine::selftest::agreement(device, &models()[0], 1, &mut |_| {})?;
        let counters = simulator.counters()?;
        object["counters"] = counters.iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        if !global.json {
            let mut table = Table::new(["a prompt of the first model", ""]);
            for (name, count) in counters.iter().filter(|(_, count)| *count > 0) {
                table.row([name.to_owned(), count.to_string()]);
            }
            super::print(format_args!("\n{table}{SIMULATED}\n"))?;
        }
        return Ok(());
    }
    let rates = roofline(gpu, device.cpu(), Sizes::FULL)?;
    object["roofline"] = rates.iter().map(rate_json).collect();
    if !global.json {
        let mut table = Table::new(["speed", "", "", "of the limit"]);
        for Rate { name, value, unit, share } in &rates {
            let share = share.map_or(String::new(), |share| format!("{:.1}%", 100.0 * share));
            table.row([(*name).into(), format!("{value:.1}"), (*unit).into(), share]);
        }
        super::print(format_args!("\n{table}"))?;
    }
    Ok(())
}

fn verdict(failed: bool) -> String {
    if failed { "FAILED" } else { "ok" }.to_owned()
}

fn ops_table(ops: &[Op]) -> Table {
    let mut table = Table::new(["op", "cases", "worst of tolerance", ""]);
    for op in ops {
        let worst = if op.worst == 0.0 { "same bits".to_owned() } else { format!("{:.3}", op.worst) };
        table.row([op.name.into(), op.cases.to_string(), worst, verdict(!op.failures.is_empty())]);
    }
    table
}

fn findings_table(findings: &[Finding]) -> Table {
    let mut table = Table::new(["model", "check", "worst of tolerance", ""]);
    for f in findings {
        let worst = if f.worst == 0.0 { "same".to_owned() } else { format!("{:.3}", f.worst) };
        table.row([f.model.into(), f.check.clone(), worst, verdict(f.failure.is_some())]);
    }
    table
}

fn op_json(op: &Op) -> Value {
    json!({"op": op.name, "cases": op.cases, "worst": finite(op.worst), "failures": op.failures})
}

fn finding_json(f: &Finding) -> Value {
    json!({"model": f.model, "check": f.check, "worst": finite(f.worst), "failure": f.failure})
}

fn rate_json(rate: &Rate) -> Value {
    json!({"name": rate.name, "value": rate.value, "unit": rate.unit, "share": rate.share})
}

/// JSON has no infinity: what failed altogether has no number.
fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}
