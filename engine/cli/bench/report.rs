//! What `leeway bench` prints.

use std::fmt;

use engine::config::ModelConfig;
use opd::bench::{Capacity, Figure, HEADING, LimitsSpread, cpu_name};
use ptx::Cpu;
use serde_json::{Value, json};

use crate::cli::capacity::size;
use crate::cli::open::Origin;
use crate::cli::table::Table;

/// All that was measured, and on what.
pub struct Report<'a> {
    pub limits: LimitsSpread,
    pub figures: Vec<Figure>,
    pub capacity: Option<Capacity>,
    pub origin: Origin,
    pub config: &'a ModelConfig,
    pub cpu: &'a Cpu,
    pub seed: u64,
    /// Resident bytes with the engine, where the system tells.
    pub rss: Option<usize>,
    /// Bytes of the weights as the engine holds them.
    pub weights: usize,
}

impl Report<'_> {
    pub fn json(&self) -> Value {
        let Report { limits, figures, origin, config, cpu, seed, rss, weights, .. } = self;
        let mut object = json!({
            "device": origin.device, "threads": cpu.threads(), "isa": cpu.isa().name(), "model": origin.model_hash(),
            "model_type": config.arch.model_type(), "parameters": config.parameters(), "recipe": origin.recipe,
            "recipe_hash": origin.recipe_hash, "weights_version": 0, "seed": seed, "cpu": cpu_name(),
            "limits": limits.json(), "figures": figures.iter().map(Figure::json).collect::<Vec<_>>(),
        });
        if let Some(capacity) = &self.capacity {
            object["capacity"] = capacity.json();
        }
        object["rss_bytes"] = json!(rss);
        object["weights_bytes"] = json!(weights);
        object
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut limits = Table::new(["limits", "", "median", "low to high"]);
        self.limits.cells().into_iter().for_each(|cells| limits.row(cells));
        write!(f, "{limits}")?;
        if !self.figures.is_empty() {
            let mut table = Table::new(HEADING);
            self.figures.iter().for_each(|figure| table.row(figure.cells()));
            write!(f, "\n{table}")?;
        }
        if let Some(Capacity { plan, sequences, ratio_kv }) = &self.capacity {
            let mut table = Table::new(["capacity", ""]);
            table.row(["KV pool".into(), size(plan.pool)]);
            table.row(["bytes per token".into(), format!("{:.1}", plan.layout.token_bytes_total())]);
            table.row(["tokens".into(), plan.capacity.tokens.to_string()]);
            table.row([
                "ratio to bf16".into(),
                ratio_kv.map_or("bf16 has no page".into(), |ratio| format!("{ratio:.3}")),
            ]);
            table.row([format!("largest batch at length {}", plan.settings.length), sequences.to_string()]);
            write!(f, "\n{table}")?;
        }
        let mut memory = Table::new(["memory", ""]);
        memory.row(["weights".into(), size(self.weights)]);
        memory.row(["resident, with buffers and the pool in use".into(), self.rss.map_or("unknown".into(), size)]);
        for Figure { resident, measured, .. } in &self.figures {
            if let Some(resident) = resident {
                let growth = resident.after.saturating_sub(resident.before);
                memory.row([format!("grown over {} rounds of updates", measured.samples.seconds.len()), size(growth)]);
            }
        }
        write!(f, "\n{memory}")
    }
}
