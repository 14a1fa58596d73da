//! What `measure` says: one screen, and the object of `--json`.

use budget::mismatch::RatioEstimate;
use budget::stats::Interval;
use serde_json::{Value, json};

use super::super::table::Table;
use super::numbers::{ESS_LEAST, Measured, agrees};

/// Layers that the screen names.
const SHOWN: usize = 5;

pub fn screen(m: &Measured) -> String {
    let mut whole = Table::new(["mismatch", "", "95% interval"]);
    let row = |table: &mut Table, name: &str, d: &RatioEstimate| {
        table.row([name.into(), number(d.ratio), between(d.ci95)]);
    };
    if let Some(d) = &m.d {
        row(&mut whole, "D, nats per token", d);
        if d.ratio != 0.0 {
            let other = if d.ci95 == d.linear { d.bootstrap } else { d.linear };
            let name =
                if d.ci95 == d.linear { "the narrower interval, bootstrap" } else { "the narrower one, linearised" };
            whole.row([format!("  {name}"), String::new(), between(other)]);
        }
    }
    row(&mut whole, "k3, from sampled tokens", &m.k3);
    if let Some(d) = &m.d {
        let agree = if agrees(d, &m.k3) { "yes" } else { "NO" };
        whole.row(["  agrees with D".into(), agree.into(), String::new()]);
    }
    if let Some(sources) = &m.sources {
        for source in sources {
            match &source.d {
                Some(d) => row(&mut whole, &format!("  of {} alone", source.name), d),
                None => whole.row([format!("  of {} alone", source.name), number(0.0), String::new()]),
            }
        }
        if let Some((sum, cross)) = sum_and_cross(m) {
            whole.row(["  their sum; D less their sum".into(), number(sum), number(cross)]);
        }
    }
    let (mean, ci) = (m.ratio.ratio, m.ratio.ci95);
    whole.row([
        "mean ratio p_trained / p_rollout".into(),
        format!("{mean:.5}"),
        format!("{:.5} to {:.5}", ci.low, ci.high),
    ]);
    let one = if ci.contains(1.0) { "yes" } else { "NO" };
    whole.row(["  1 is in it, as it must be".into(), one.into(), String::new()]);
    let s = &m.statistics;
    whole.row(["ESS, chi-square".into(), format!("{:.4}", s.ess), number(s.chi2)]);
    whole.row(["M2, perplexity ratio".into(), number(s.m2), format!("{:.5}", m.perplexity_ratio)]);
    let worst = format!("{:.1}% of {}", 100.0 * m.tails.share_worst_hundredth, if m.d.is_some() { "D" } else { "k3" });
    whole.row(["|ln ratio| 99.9%, worst 1% of positions".into(), number(m.tails.log_ratio_p999), worst]);
    match &m.coherence {
        Some(Some(c)) => row(&mut whole, "coherence share of two replicates", c),
        Some(None) => whole.row(["coherence share".into(), "nothing varies".into(), String::new()]),
        None => whole.row(["coherence share".into(), "needs --replicate".into(), String::new()]),
    }

    let mut drift = Table::new(["drift after t tokens", "survival S", "95% interval", "K, nats", "prefix TV at most"]);
    for at in &m.survival {
        let cells =
            [at.t.to_string(), format!("{:.4}", at.s.ratio), between(at.s.ci95), number(at.k), number(at.bounds.tv())];
        drift.row(cells);
    }
    let half = m.half_life.map_or("not reached".to_owned(), |t| format!("{t} tokens"));
    let mut lines = format!("half-life of coupled prefixes: {half}\n");
    let snis = &m.snis;
    let trusted = snis.trusted_to(ESS_LEAST).map_or("all positions".to_owned(), |t| format!("positions below {t}"));
    lines += &format!(
        "{} by prefixes of the trained model (reweighted): {:.4}, on the rollouts {:.4}; weights hold for {trusted}\n",
        snis_name(m),
        snis.weighted.ratio,
        snis.plain.ratio
    );
    if let Some(loss) = &m.loss {
        let d = &loss.delta;
        let share = d.relative().map_or("-".to_owned(), |share| format!("{:+.2}%", 100.0 * share));
        lines += &format!(
            "loss on both kinds of prefixes: {:+.3e} nats per token ({}), {share} of {:.4}; D on the trained model's: {}\n",
            d.difference,
            between(d.ci95),
            d.second,
            number(loss.d_on_trained.ratio)
        );
    }
    let name = if m.d.is_some() { "D, nats per token" } else { "k3, nats per token" };
    let mut places = Table::new(["positions", "tokens", name, "95% interval"]);
    for b in &m.positions {
        let name = if b.end - b.first == 1 { b.first.to_string() } else { format!("{} to {}", b.first, b.end - 1) };
        let (d, ci) = b.d.map_or(("-".to_owned(), String::new()), |d| (number(d.ratio), between(d.ci95)));
        places.row([name, b.tokens.to_string(), d, ci]);
    }
    let layers = m.layers.as_ref().map_or(String::new(), |(layers, tokens)| {
        let mut table = Table::new(["worst parts alone", "D, nats per token", "95% interval"]);
        let mut worst: Vec<_> = layers.iter().collect();
        worst.sort_by(|a, b| b.d.ratio.total_cmp(&a.d.ratio));
        for layer in worst.into_iter().take(SHOWN) {
            table.row([part(layer.layer), number(layer.d.ratio), between(layer.d.ci95)]);
        }
        format!("\n{table}of {} parts, on {tokens} tokens\n", layers.len())
    });
    let gap = m
        .logged_gap
        .map_or(String::new(), |gap| format!(", logged logprobs within {} nats of computed ones", number(gap)));
    format!(
        "{whole}\n{drift}{lines}\n{places}{layers}\n{} tokens of {} prompts{gap}, {:.1} s\n",
        m.tokens, m.prompts, m.wall_s
    )
}

fn snis_name(m: &Measured) -> &'static str {
    if m.functional == "nll" { "-ln p" } else { "KL to the teacher" }
}

fn part(layer: Option<usize>) -> String {
    layer.map_or("embedding, last norm, head".to_owned(), |layer| format!("layers.{layer}"))
}

fn number(x: f64) -> String {
    if x == 0.0 { "0.0 (exactly)".to_owned() } else { format!("{x:.3e}") }
}

fn between(ci: Interval) -> String {
    if ci.low == ci.high { String::new() } else { format!("{:.3e} to {:.3e}", ci.low, ci.high) }
}

/// The sum of the sources alone, and what D has beyond it; nothing without sources.
fn sum_and_cross(m: &Measured) -> Option<(f64, f64)> {
    let (sources, d) = (m.sources.as_ref()?, m.d?);
    let sum = sources.iter().filter_map(|source| source.d).fold(0.0, |sum, d| sum + d.ratio);
    Some((sum, d.ratio - sum))
}

pub fn object(m: &Measured) -> Value {
    let ci = |ci: Interval| json!([ci.low, ci.high]);
    let (mut by_source, mut by_source_ci95) = (Value::Null, Value::Null);
    if let Some(sources) = &m.sources {
        (by_source, by_source_ci95) = (json!({}), json!({}));
        for source in sources {
            by_source[source.name] = json!(source.d.map_or(0.0, |d| d.ratio));
            by_source_ci95[source.name] = source.d.map_or(json!([0.0, 0.0]), |d| ci(d.ci95));
        }
    }
    let by_layer = m.layers.as_ref().map(|(layers, _)| -> Value {
        let one = |l: &super::numbers::Layer| {
            json!({"layer": l.layer, "part": part(l.layer), "d_nats": l.d.ratio, "ci95": ci(l.d.ci95)})
        };
        layers.iter().map(one).collect()
    });
    let survival: Value =
        m.survival.iter().map(|at| json!({"t": at.t, "s": at.s.ratio, "ci95": ci(at.s.ci95)})).collect();
    let bounds: Value = m
        .survival
        .iter()
        .map(|at| {
            json!({"t": at.t, "k_nats": at.k, "coupling": at.bounds.coupling, "pinsker": at.bounds.pinsker,
                "bretagnolle_huber": at.bounds.bretagnolle_huber, "tv": at.bounds.tv()})
        })
        .collect();
    let by_position: Value = m
        .positions
        .iter()
        .map(|b| {
            let what = if m.d.is_some() { "d_nats" } else { "k3" };
            json!({"first": b.first, "end": b.end, "tokens": b.tokens, what: b.d.map(|d| d.ratio),
                "ci95": b.d.map(|d| ci(d.ci95))})
        })
        .collect();
    let last = m.survival.last().expect("there is a longest completion");
    let hazard = if last.s.ratio == 1.0 { 0.0 } else { -last.s.ratio.ln() / last.t as f64 };
    let snis = &m.snis;
    let delta_loss = m.loss.as_ref().map(|loss| {
        let d = &loss.delta;
        json!({"difference": d.difference, "ci95": ci(d.ci95), "relative": d.relative(), "rollout": d.first,
            "trained": d.second})
    });
    let drift = json!({
        "half_life": m.half_life,
        "hazard": hazard,
        "bounds": bounds,
        "snis": {"functional": m.functional, "rollout": snis.plain.ratio, "rollout_ci95": ci(snis.plain.ci95),
            "trained": snis.weighted.ratio, "difference": snis.plain.ratio - snis.weighted.ratio, "trained_ci95": ci(snis.weighted.ci95), "trusted_below": snis.trusted_to(ESS_LEAST),
            "ess": snis.ess.iter().map(|at| at.share).collect::<Vec<_>>()},
        "delta_loss": delta_loss,
        "d_on_trained_prefixes": m.loss.as_ref().map(|loss| loss.d_on_trained.ratio),
    });
    let cross = sum_and_cross(m);
    json!({
        "d_nats": m.d.map(|d| d.ratio), "ci95": m.d.map(|d| ci(d.ci95)), "ucb95": m.d.map(|d| d.ucb95),
        "linear95": m.d.map(|d| ci(d.linear)), "bootstrap95": m.d.map(|d| ci(d.bootstrap)),
        "k3": m.k3.ratio, "k3_ci95": ci(m.k3.ci95), "k3_agrees": m.d.map(|d| agrees(&d, &m.k3)),
        "k1": m.k1.ratio, "k1_ci95": ci(m.k1.ci95),
        "by_source": by_source, "by_source_ci95": by_source_ci95, "by_source_sum": cross.map(|(sum, _)| sum),
        "by_source_cross": cross.map(|(_, cross)| cross),
        "by_layer": by_layer, "layer_tokens": m.layers.as_ref().map(|(_, tokens)| tokens),
        "by_position": by_position, "survival": survival, "drift": drift,
        "ratio_mean": m.ratio.ratio, "ratio_ci95": ci(m.ratio.ci95), "ratio_is_one": m.ratio.ci95.contains(1.0),
        "ess": m.statistics.ess, "chi2_token": m.statistics.chi2, "m2": m.statistics.m2,
        "ppl_ratio": m.perplexity_ratio,
        "log_ratio_p999": m.tails.log_ratio_p999, "share_worst_hundredth": m.tails.share_worst_hundredth,
        "coherence": m.coherence.flatten().map(|c| c.ratio),
        "coherence_ci95": m.coherence.flatten().map(|c| ci(c.ci95)),
        "logged_gap_nats": m.logged_gap,
        "by_version": m.versions.as_ref().map(|versions| {
            versions.iter().map(|v| json!({"version": v.version, "tokens": v.tokens, "k3": v.k3})).collect::<Value>()
        }),
        "prompts": m.prompts, "tokens": m.tokens,
    })
}
