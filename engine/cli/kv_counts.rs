//! What the 8-bit cache lost, as a table by layer and as JSON by layer and head.

use ptx::kv_tile::{FormatCounts, KvCounts};
use serde_json::{Value, json};

use super::table::Table;

/// A row a layer with 8-bit keys or values: shares over all heads, and the head that lost most.
pub fn table(counts: &[KvCounts], heads: usize) -> Table {
    let mut table =
        Table::new(["layer", "K clipped", "K to zero", "worst head", "V clipped", "V to zero", "worst head"]);
    for (layer, counts) in counts.chunks_exact(heads).enumerate() {
        let [k, v] = [columns(counts, |c| c.k), columns(counts, |c| c.v)];
        if k.is_none() && v.is_none() {
            continue;
        }
        let none = || ["-", "-", "-"].map(str::to_owned);
        let ([a, b, c], [d, e, f]) = (k.unwrap_or_else(none), v.unwrap_or_else(none));
        table.row([layer.to_string(), a, b, c, d, e, f]);
    }
    table
}

fn columns(heads: &[KvCounts], of: impl Fn(&KvCounts) -> FormatCounts) -> Option<[String; 3]> {
    let mut sum = FormatCounts::default();
    heads.iter().for_each(|head| sum += of(head));
    let worst = heads.iter().map(&of).enumerate().max_by_key(|(_, c)| c.saturated + c.underflowed)?.0;
    let share = |count: u64| format!("{:.4}%", 100.0 * count as f64 / sum.elements as f64);
    (sum.elements > 0).then(|| [share(sum.saturated), share(sum.underflowed), worst.to_string()])
}

/// `[layer][head]` of `{"k": {"elements", "saturated", "underflowed"}, "v": ..}`.
pub fn json(counts: &[KvCounts], heads: usize) -> Value {
    let one = |c: FormatCounts| json!({"elements": c.elements, "saturated": c.saturated, "underflowed": c.underflowed});
    let layer = |heads: &[KvCounts]| heads.iter().map(|c| json!({"k": one(c.k), "v": one(c.v)})).collect::<Vec<_>>();
    json!(counts.chunks_exact(heads).map(layer).collect::<Vec<_>>())
}
