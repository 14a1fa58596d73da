//! `leeway doctor`: what this machine can run, and whether a model folder is sound.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::engine::{PAGE_LEN, kv_shapes};
use engine::recipe::{BUILT_IN, Precision, Recipe};
use kv::Layout;
use ptx::Isa;
use ptx::cuda::Gpu;
use serde_json::{Value, json};

use super::open::Folder;
use super::table::Table;
use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check this model folder: files, weights, tokenizer, and what its KV cache takes.
    #[arg(long)]
    model: Option<PathBuf>,
}

pub fn run(args: &DoctorArgs, global: &Global) -> Result<ExitCode, Failure> {
    let device = global.device(|| Ok(()))?;
    let cpu = device.cpu();
    let cuda = cuda();
    let isas: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let mut machine = Table::new(["machine", ""]);
    machine.row(["device".into(), device.to_string()]);
    machine.row(["instruction sets".into(), isas.join(", ")]);
    machine.row(["memory".into(), memory_bytes().map_or("unknown".into(), |b| format!("{:.1} GiB", gib(b)))]);
    machine.row(["cuda".into(), cuda.clone()]);
    machine.row(["recipes".into(), BUILT_IN.join(", ")]);
    let model = args.model.as_ref().map(|dir| examine(dir)).transpose()?;
    if !global.json {
        super::print(format_args!("{machine}"))?;
        if let Some((table, _)) = &model {
            super::print(format_args!("\n{table}"))?;
        }
    }
    global.print_json(&json!({
        "device": device.to_string(), "cuda": cuda, "isa": isas, "threads": cpu.threads(), "memory_bytes": memory_bytes(),
        "recipes": BUILT_IN, "model": model.map(|(_, value)| value),
    }))?;
    Ok(ExitCode::SUCCESS)
}

/// What CUDA device there is, or why there is none, in one line.
fn cuda() -> String {
    let described = Gpu::open(0).and_then(|gpu| {
        let (major, minor) = gpu.capability();
        let simulated = if gpu.is_simulated() { ", simulated by ptx/simt" } else { "" };
        let total = gib(gpu.memory_info()?.total);
        Ok(format!("cuda:0 {}, compute capability {major}.{minor}, {total:.1} GiB{simulated}", gpu.name()))
    });
    described.unwrap_or_else(|why| format!("none: {why}"))
}

/// Opens a folder and reads every weight once.
fn examine(dir: &std::path::Path) -> Result<(Table, Value), Failure> {
    let folder = Folder::open(dir)?;
    let config = folder.checkpoint.config();
    for tensor in folder.checkpoint.tensors() {
        folder.checkpoint.check_finite(&tensor.name)?;
    }
    let mut table = Table::new(["model", ""]);
    table.row(["architecture".into(), config.arch.model_type().into()]);
    table.row(["parameters".into(), config.parameters().to_string()]);
    table.row(["layers, hidden".into(), format!("{}, {}", config.layers, config.hidden)]);
    table.row(["context".into(), config.max_positions.to_string()]);
    table.row(["vocabulary".into(), config.vocab.to_string()]);
    let real = folder.tokenizer.as_ref().map(|t| t.size());
    table.row(["tokenizer".into(), real.map_or("none".into(), |n| format!("{n} ids"))]);
    table.row(["chat template".into(), if folder.chat.is_some() { "yes" } else { "no" }.into()]);
    table.row(["stop ids".into(), format!("{:?}", config.stop_ids)]);
    table.row(["weights".into(), "every value is finite".into()]);
    let mut kv = Vec::new();
    for name in ["f32", "bf16", "fp8"] {
        let recipe = Recipe::built_in(name, Precision::Bf16, config)?;
        let bytes = Layout::new(kv_shapes(config, &recipe, PAGE_LEN)).page_bytes() / PAGE_LEN;
        table.row([format!("KV bytes per token, {name}"), bytes.to_string()]);
        kv.push(json!({"recipe": name, "bytes_per_token": bytes}));
    }
    let hash = folder.checkpoint.model_hash();
    table.row(["hash".into(), hash.clone()]);
    let value = json!({
        "architecture": config.arch.model_type(), "parameters": config.parameters(), "hash": hash, "vocab": config.vocab,
        "tokenizer_ids": real, "stop_ids": config.stop_ids, "kv": kv,
    });
    Ok((table, value))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Memory of the machine, where the system tells.
pub fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
