//! The table of `docs/kernels.md`: what every kernel takes of a card, as ptxas says.

use super::{occupancy, ptxas};
use std::fmt::Write;

const OPENS: &str = "<!-- kernels: written by cargo xtask ptx -->\n";
const CLOSES: &str = "<!-- /kernels -->";

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub op: String,
    pub kernel: String,
    /// Threads of a block at most, if the source bounds them.
    pub threads: Option<u32>,
    /// Static shared memory in bytes.
    pub shared_bytes: u32,
    /// Shared memory that the launch gives.
    pub dynamic: Dynamic,
    /// Registers of a thread by architecture, of the PTX that is loaded there; `None` where the kernel does not exist.
    pub registers: Vec<(u32, Option<u32>)>,
}

/// Shared memory that a launch adds to the static.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dynamic {
    None,
    /// At most so many bytes, as a line `// shared: <kernel> <bytes>` of the source says.
    Bytes(u32),
    /// The source does not say how much.
    Unstated,
}

/// The largest dynamic shared memory that a source states for a kernel.
pub fn stated(source: &str, kernel: &str) -> Option<u32> {
    source.lines().filter_map(|line| line.trim().strip_prefix("// shared: ")).find_map(|rest| {
        let mut words = rest.split_whitespace();
        (words.next() == Some(kernel)).then(|| words.next()?.parse().ok()).flatten()
    })
}

/// The table as Markdown.
fn markdown(rows: &[Row]) -> String {
    let mut out = String::from("| op | kernel | threads | shared, bytes | registers,");
    let archs = ptxas::ARCHS.map(|arch| format!(" sm_{arch} |"));
    writeln!(
        out,
        "{} blocks, sm_80 | sm_90 |\n|---|---|---|---|{}---|---|",
        archs.concat(),
        "---|".repeat(archs.len())
    )
    .expect("writing to a string");
    for row in rows {
        let shared = match (row.shared_bytes, row.dynamic) {
            (fixed, Dynamic::None) => format!("{fixed}"),
            (0, Dynamic::Bytes(more)) => format!("{more} dynamic"),
            (0, Dynamic::Unstated) => "dynamic".to_owned(),
            (fixed, Dynamic::Bytes(more)) => format!("{fixed} + {more} dynamic"),
            (fixed, Dynamic::Unstated) => format!("{fixed} + dynamic"),
        };
        let of = |arch| row.registers.iter().find(|(a, _)| *a == arch).and_then(|(_, registers)| *registers);
        let registers = ptxas::ARCHS.map(|arch| of(arch).map_or(" - |".to_owned(), |n| format!(" {n} |")));
        let (dynamic, sign) = match row.dynamic {
            Dynamic::None => (0, ""),
            Dynamic::Bytes(more) => (more, ""),
            Dynamic::Unstated => (0, "≤ "),
        };
        let blocks = [80, 90].map(|arch| {
            let blocks = of(arch)
                .zip(row.threads)
                .and_then(|(n, threads)| occupancy::blocks(arch, threads, n, row.shared_bytes + dynamic));
            blocks.map_or(" - |".to_owned(), |n| format!(" {sign}{n} |"))
        });
        let registers = registers.concat();
        let threads = row.threads.map_or("-".to_owned(), |n| n.to_string());
        writeln!(
            out,
            "| {} | `{}` | {threads} | {shared} |{registers}{} |",
            row.op,
            row.kernel,
            blocks.concat().trim_end_matches(" |")
        )
        .expect("writing to a string");
    }
    out
}

/// The document with its table replaced.
pub fn replaced(document: &str, rows: &[Row]) -> Result<String, String> {
    crate::between(document, OPENS, CLOSES, &markdown(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(dynamic: Dynamic) -> Row {
        let registers = vec![(80, None), (89, Some(40)), (90, Some(40)), (100, Some(32))];
        Row { op: "a".into(), kernel: "a_f32".into(), threads: Some(256), shared_bytes: 512, dynamic, registers }
    }

    #[test]
    fn a_table_is_replaced_and_nothing_else() {
        let document = format!("# Before\n\n{OPENS}old\n{CLOSES}\nafter\n");
        let new = replaced(&document, &[row(Dynamic::Bytes(49152))]).expect("both lines are there");
        assert!(new.starts_with("# Before\n\n") && new.ends_with("\nafter\n") && !new.contains("old"), "{new}");
        assert!(new.contains("| a | `a_f32` | 256 | 512 + 49152 dynamic | - | 40 | 40 | 32 | - | - | 4 |\n"), "{new}");
        assert_eq!(replaced(&new, &[row(Dynamic::Bytes(49152))]).as_ref(), Ok(&new), "writing twice changes nothing");
        assert!(replaced("no table", &[]).is_err());
    }

    #[test]
    fn unstated_shared_memory_gives_a_bound() {
        assert!(markdown(&[row(Dynamic::Unstated)]).contains("| 512 + dynamic | - | 40 | 40 | 32 | - | - | ≤ 6 |"));
        assert!(markdown(&[row(Dynamic::None)]).contains("| 512 | - | 40 | 40 | 32 | - | - | 6 |"));
    }

    #[test]
    fn a_source_states_its_shared_memory() {
        let source = "// a\n// shared: a_f32 49152\nKERNEL a_f32() {}\n";
        assert_eq!((stated(source, "a_f32"), stated(source, "a_f3")), (Some(49152), None));
    }
}
