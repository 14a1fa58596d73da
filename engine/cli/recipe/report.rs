//! What `recipe tune` leaves behind: table, picture, summary and the object of `--json`.

use std::fmt::Write as _;
use std::path::Path;

use opd::tune::{Cell, STATE, draw, write_whole};
use serde_json::{Map, Value, json};

use super::super::Failure;
use super::super::table::Table;
use super::measure::{Measured, Outcome};

/// Units that the summary names.
const SHOWN: usize = 10;

/// Writes `sensitivity.csv` and `sensitivity.svg`.
pub fn write_files(out: &Path, model: &Path, outcome: &Outcome) -> Result<(), Failure> {
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
    let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
    let svg = draw(&cells, &format!("{name}: what each unit costs in 8 bits"))?;
    for (file, text) in [("sensitivity.csv", csv), ("sensitivity.svg", svg)] {
        let path = out.join(file);
        write_whole(&path, text.as_bytes()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// The summary for people.
pub fn tables(outcome: &Outcome, prompts: usize, tokens: usize, out: &Path) -> String {
    let mut worst: Vec<&Measured> = outcome.units.iter().collect();
    worst.sort_by(|a, b| b.cost.ratio.total_cmp(&a.cost.ratio));
    let total: f64 = worst.iter().map(|m| m.cost.ratio).sum();
    let mut units = Table::new(["worst units", "D, nats per token", "95% interval", "share", "in 8 bits"]);
    for m in worst.iter().take(SHOWN) {
        let share = if total > 0.0 { 100.0 * m.cost.ratio / total } else { 0.0 };
        units.row([
            m.unit.to_string(),
            format!("{:.3e}", m.cost.ratio),
            format!("{:.3e} to {:.3e}", m.cost.ci95.low, m.cost.ci95.high),
            format!("{share:.1}%"),
            if m.chosen { "yes" } else { "no" }.into(),
        ]);
    }
    let interval = |low: f64, high: f64| format!("{low:.3e} to {high:.3e}");
    let chosen = outcome.units.iter().filter(|m| m.chosen).count();
    let mut whole = Table::new(["recipe", ""]);
    whole.row(["units in 8 bits".into(), format!("{chosen} of {}", outcome.units.len())]);
    whole.row(["D, nats per token".into(), format!("{:.4e}", outcome.chosen.ratio)]);
    whole.row(["95% interval".into(), interval(outcome.chosen.ci95.low, outcome.chosen.ci95.high)]);
    whole.row(["sum of its units".into(), format!("{:.4e}", sum_chosen(outcome))]);
    whole.row(["D of all units".into(), format!("{:.4e}", outcome.all.ratio)]);
    whole.row(["KV tokens, of bf16's".into(), format!("{:.4}", outcome.kv_ratio)]);
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
    whole.row(["measured on".into(), format!("{tokens} tokens of {prompts} prompts")]);
    format!(
        "{units}\n{whole}\n{}: use it with --recipe; {} holds the measurements\n",
        outcome.recipe_file.display(),
        out.join(STATE).display()
    )
}

fn sum_chosen(outcome: &Outcome) -> f64 {
    outcome.units.iter().filter(|m| m.chosen).map(|m| m.cost.ratio).sum()
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
    let bytes: u64 = outcome.units.iter().filter(|m| m.chosen).map(|m| m.bytes).sum();
    let (c, ci) = (&outcome.concentration, outcome.chosen.ci95);
    let object = json!({
        "d_nats": outcome.chosen.ratio, "ci95": [ci.low, ci.high], "d_sum_nats": sum_chosen(outcome),
        "d_all_nats": outcome.all.ratio, "kv_ratio": outcome.kv_ratio, "bytes_saved": bytes, "units": units,
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
