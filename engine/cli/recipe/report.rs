//! What `recipe tune` leaves behind: table, picture, summary and the object of `--json`.

use std::fmt::Write as _;

use engine::recipe::to_toml;
use opd::tune::{Cell, STATE, draw, write_whole};
use serde_json::{Map, Value, json};

use super::super::Failure;
use super::super::table::Table;
use super::measure::{Measured, Outcome};
use super::tune::TuneArgs;

/// Units that the summary names.
const SHOWN: usize = 10;

/// What was measured, and on how much.
pub struct Set<'a> {
    pub prompts: usize,
    pub tokens: usize,
    pub model_hash: &'a str,
    pub model_type: &'a str,
}

/// Writes `recipe.toml`, `sensitivity.csv` and `sensitivity.svg`.
pub fn write_files(args: &TuneArgs, outcome: &Outcome, set: &Set<'_>) -> Result<(), Failure> {
    let mut csv = String::from("unit,layer,kind,bytes_saved,d_nats,low,high,chosen\n");
    for m in &outcome.units {
        let layer = m.unit.layer().map_or(String::new(), |layer| layer.to_string());
        let ci = m.cost.ci95;
        let (d, bytes) = (m.cost.ratio, m.bytes);
        writeln!(
            csv,
            "{},{layer},{},{bytes},{d:e},{:e},{:e},{}",
            m.unit,
            m.unit.kind_name(),
            ci.low,
            ci.high,
            m.chosen
        )?;
    }
    let cells: Vec<Cell> =
        outcome.units.iter().map(|m| Cell { unit: m.unit, d_nats: m.cost.ratio, chosen: m.chosen }).collect();
    let name = args.model.file_name().unwrap_or(args.model.as_os_str()).to_string_lossy();
    let svg = draw(&cells, &format!("{name}: what each unit costs in 8 bits"))?;
    let recipe = origin(args, outcome, set) + &to_toml(&outcome.recipe, set.model_type);
    let files = [
        (outcome.recipe_file.clone(), recipe),
        (args.out.join("sensitivity.csv"), csv),
        (args.out.join("sensitivity.svg"), svg),
    ];
    for (path, text) in files {
        write_whole(&path, text.as_bytes()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// Comments at the head of the recipe: a later goal takes the same file, and then nothing else says which one this is.
fn origin(args: &TuneArgs, outcome: &Outcome, set: &Set<'_>) -> String {
    let (d, ci) = (outcome.chosen.ratio, outcome.chosen.ci95);
    format!(
        "# leeway recipe tune, {}: {} of {} units in 8 bits\n\
         # D {d:.3e} nats per token, {:.3e} to {:.3e}, on {} tokens of {} prompts; KV tokens {:.4} of bf16's\n\
         # model {}\n",
        args.goal.words(),
        outcome.units.iter().filter(|m| m.chosen).count(),
        outcome.units.len(),
        ci.low,
        ci.high,
        set.tokens,
        set.prompts,
        outcome.kv_ratio,
        set.model_hash,
    )
}

/// Bytes to be read at a glance.
#[allow(clippy::cast_precision_loss)] // three digits are shown
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.2} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// The summary for people.
pub fn tables(args: &TuneArgs, outcome: &Outcome, set: &Set<'_>) -> String {
    let mut worst: Vec<&Measured> = outcome.units.iter().collect();
    worst.sort_by(|a, b| b.cost.ratio.total_cmp(&a.cost.ratio));
    let total: f64 = worst.iter().map(|m| m.cost.ratio).sum();
    let mut units = Table::new(["worst units", "D, nats per token", "95% interval", "share", "saves", "in 8 bits"]);
    for m in worst.iter().take(SHOWN) {
        let share = if total > 0.0 { 100.0 * m.cost.ratio / total } else { 0.0 };
        units.row([
            m.unit.to_string(),
            format!("{:.3e}", m.cost.ratio),
            format!("{:.3e} to {:.3e}", m.cost.ci95.low, m.cost.ci95.high),
            format!("{share:.1}%"),
            size(m.bytes),
            if m.chosen { "yes" } else { "no" }.into(),
        ]);
    }
    let interval = |low: f64, high: f64| format!("{low:.3e} to {high:.3e}");
    let chosen = outcome.units.iter().filter(|m| m.chosen).count();
    let mut whole = Table::new(["recipe", ""]);
    whole.row(["asked for".into(), args.goal.words()]);
    whole.row(["units in 8 bits".into(), format!("{chosen} of {}", outcome.units.len())]);
    whole.row(["D, nats per token".into(), format!("{:.4e}", outcome.chosen.ratio)]);
    whole.row(["95% interval".into(), interval(outcome.chosen.ci95.low, outcome.chosen.ci95.high)]);
    whole.row(["sum of its units".into(), format!("{:.4e}", sum_chosen(outcome))]);
    whole.row(["D of all units".into(), format!("{:.4e}", outcome.all.ratio)]);
    whole.row(["KV tokens, of bf16's".into(), format!("{:.4}", outcome.kv_ratio)]);
    whole.row([format!("saves, of {}", size(args.memory as u64)), size(bytes_saved(outcome))]);
    let c = &outcome.concentration;
    whole.row([
        "worst tenth of the units".into(),
        format!("{:.1}% of D, {:.1}% if all were equal", 100.0 * c.share_worst_tenth, 100.0 * c.share_if_equal),
    ]);
    let verdict = if c.concentrated { "a few units carry it" } else { "no concentration" };
    whole.row(["Gini".into(), format!("{:.3}: {verdict}", c.gini)]);
    if let Some(a) = &outcome.additivity {
        let r2 = a.r2.map_or("none".into(), |r2| format!("{r2:.4}"));
        whole.row(["do costs add up".into(), format!("R2 {r2}, measured up to {:.3} of the sum", a.worst_ratio)]);
    }
    whole.row(["measured on".into(), format!("{} tokens of {} prompts", set.tokens, set.prompts)]);
    format!(
        "{units}\n{whole}\n{}: use it with --recipe; {} holds the measurements\n",
        outcome.recipe_file.display(),
        args.out.join(STATE).display()
    )
}

fn sum_chosen(outcome: &Outcome) -> f64 {
    outcome.units.iter().filter(|m| m.chosen).map(|m| m.cost.ratio).sum()
}

fn bytes_saved(outcome: &Outcome) -> u64 {
    outcome.units.iter().filter(|m| m.chosen).map(|m| m.bytes).sum()
}

/// The object of `--json`, without what does not depend on the measurements.
pub fn object(outcome: &Outcome) -> Map<String, Value> {
    let units: Vec<Value> = outcome
        .units
        .iter()
        .map(|m| {
            json!({
                "unit": m.unit.to_string(), "layer": m.unit.layer(), "kind": m.unit.kind_name(), "bytes_saved": m.bytes,
                "d_nats": m.cost.ratio, "ci95": [m.cost.ci95.low, m.cost.ci95.high], "chosen": m.chosen,
            })
        })
        .collect();
    let (c, ci) = (&outcome.concentration, outcome.chosen.ci95);
    let object = json!({
        "d_nats": outcome.chosen.ratio, "ci95": [ci.low, ci.high], "d_sum_nats": sum_chosen(outcome),
        "d_all_nats": outcome.all.ratio, "kv_ratio": outcome.kv_ratio, "bytes_saved": bytes_saved(outcome), "units": units,
        "share_worst_tenth": c.share_worst_tenth, "share_if_equal": c.share_if_equal, "gini": c.gini,
        "concentrated": c.concentrated, "additivity_r2": outcome.additivity.and_then(|a| a.r2),
        "additivity_worst_ratio": outcome.additivity.map(|a| a.worst_ratio), "recipe": outcome.recipe_file,
        "recipe_hash": outcome.recipe.hash(),
    });
    match object {
        Value::Object(map) => map,
        _ => unreachable!("made as an object"),
    }
}
