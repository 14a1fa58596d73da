//! The one table.

use crate::outcome::{JobLimits, Row};
use crate::stats::Spread;

const HEAD: [&str; 6] =
    ["", "tokens/s", "low to high", "of the limit", "leeway bf16 or f32 over it", "leeway e4m3 over it"];

/// Rows as text, a line for each; a line above whatever is measured says what it is.
pub fn text(rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![HEAD.map(str::to_owned).to_vec()];
    let mut last = String::new();
    for row in rows {
        let title = title(row);
        if title != last {
            lines.push(vec![title.clone()]);
            last = title;
        }
        let ratio = |index: usize| row.ratios.get(index).map_or(String::new(), |ratio| times(ratio.over));
        lines.push(vec![
            format!("  {} {}", row.who, row.weights),
            rate(row.tokens_per_s.median),
            format!("{} to {}", rate(row.tokens_per_s.low), rate(row.tokens_per_s.high)),
            format!("{:.0}% {}", 100.0 * row.share.median, row.bound),
            ratio(0),
            ratio(1),
        ]);
    }
    let cells = lines.iter().filter(|line| line.len() == HEAD.len());
    let width = |column: usize| cells.clone().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let padded = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") }
        });
        text += padded.collect::<String>().trim_end();
        text.push('\n');
        if index == 0 {
            text += &"-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
            text.push('\n');
        }
    }
    text
}

/// The limits beside a job, in a line.
pub fn limits(of: &JobLimits) -> String {
    let spread = |s: Spread| format!("{:.0} ({:.0} to {:.0})", s.median, s.low, s.high);
    format!(
        "limits beside {} {}: read {} GB/s, one thread {}; FMA {} GFLOP/s, one thread {}\n",
        of.model,
        of.kind,
        spread(of.read_gb_s),
        spread(of.read_one_gb_s),
        spread(of.fma_gflop_s),
        spread(of.fma_one_gflop_s),
    )
}

fn title(row: &Row) -> String {
    match row.what.as_str() {
        "decode" => format!("{}, decode, batch {}, after {} tokens", row.model, row.batch, row.length),
        "train" => format!("{}, train, {} x {} tokens, forward, backward, AdamW", row.model, row.batch, row.length),
        what => format!("{}, {what}, {} tokens", row.model, row.length),
    }
}

/// Three digits that mean something.
fn rate(x: f64) -> String {
    if x < 10.0 {
        format!("{x:.2}")
    } else if x < 100.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.0}")
    }
}

fn times(s: Spread) -> String {
    format!("{:.2} ({:.2} to {:.2})", s.median, s.low, s.high)
}
