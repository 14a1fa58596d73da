//! What every bench shares: how it was asked for, random models, rows of figures, and the record of a run.
//!
//! `cargo bench --bench NAME` measures and prints a table and one line of JSON; words after `--` choose cases, and `-- --record`
//! writes both to `benches/record/<machine>/NAME.txt` and `.json`. Under `cargo test --benches` cases are small, and show only
//! that they run.

#![allow(dead_code, unused_imports, reason = "each bench takes what it needs")]

mod meter;
mod model;
mod record;
#[path = "../../engine/cli/table.rs"]
pub mod table;

use std::sync::Arc;

use opd::bench::{Figure, Gauge, HEADING};
use ptx::Cpu;

pub use meter::{Meter, criterion};
pub use model::{Seeded, Shape, folder, model};
pub use record::Record;
use table::Table;

/// Whether this is `cargo bench`; under `cargo test` benches only show that they run.
pub fn is_full() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

/// Whether the command line names no case, or this one, or a part of it: what it does not name need not be set up.
pub fn is_wanted(name: &str) -> bool {
    let mut filters = filters().peekable();
    filters.peek().is_none() || filters.any(|filter| name.contains(&filter) || filter.contains(name))
}

/// The cases that the command line names.
pub fn filters() -> impl Iterator<Item = String> {
    std::env::args().skip(1).filter(|arg| !arg.starts_with('-'))
}

/// What measures the machine's limits.
pub fn gauge(cpu: &Arc<Cpu>) -> Gauge {
    if is_full() { Gauge::new(Arc::clone(cpu)) } else { Gauge::small(Arc::clone(cpu)) }
}

/// Rounds of a full run; one of a small one.
pub fn rounds(full: usize) -> usize {
    if is_full() { full } else { 1 }
}

/// A table of figures, each with its name, and the same as `figures` of the record.
pub fn figures(record: &mut Record, figures: &[(String, Figure)]) {
    let row = |name: &str, cells: [String; 12]| -> [String; 13] {
        let all: Vec<String> = std::iter::once(name.to_owned()).chain(cells).collect();
        all.try_into().expect("one more")
    };
    let heading = row("case", HEADING.map(str::to_owned));
    let mut table = Table::new(std::array::from_fn::<&str, 13, _>(|i| &heading[i]));
    for (name, figure) in figures {
        table.row(row(name, figure.cells()));
        let mut object = figure.json();
        object["case"] = name.as_str().into();
        record.push("figures", object);
    }
    record.say(&table);
}
