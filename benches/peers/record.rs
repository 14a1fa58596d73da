//! What is kept of a run: the machine, the commit, the versions and settings of all, limits and rows; as JSON and as text.

use std::path::{Path, PathBuf};
use std::process::Command;

use ptx::Cpu;
use serde::Serialize;

use crate::install::CMAKE_FLAGS;
use crate::outcome::{JobLimits, Row};
use crate::table;

/// A whole run.
#[derive(Serialize)]
pub struct Record {
    pub commit: String,
    pub date: String,
    /// The processor, and the instruction set that leeway took.
    pub machine: String,
    pub threads: usize,
    pub rounds: usize,
    pub contestants: Vec<Version>,
    pub llama_cpp_flags: Vec<&'static str>,
    pub limits: Vec<JobLimits>,
    pub rows: Vec<Row>,
}

/// What ran and how.
#[derive(Clone, PartialEq, Serialize)]
pub struct Version {
    pub name: String,
    pub version: String,
    pub settings: String,
}

impl Record {
    /// A record of this commit and day, still without rows.
    pub fn new(root: &Path, threads: usize, rounds: usize) -> Record {
        let said = |program: &str, words: &[&str]| {
            let output = Command::new(program).args(words).current_dir(root).output().ok();
            let output = output.filter(|output| output.status.success());
            output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let changed = !said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
        let commit = said("git", &["rev-parse", "--short", "HEAD"]);
        Record {
            commit: commit + if changed { " and changes" } else { "" },
            date: said("date", &["-u", "+%F"]),
            machine: opd::bench::machine_name(&Cpu::new(threads)),
            threads,
            rounds,
            contestants: Vec::new(),
            llama_cpp_flags: CMAKE_FLAGS.to_vec(),
            limits: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The table with what is needed to read it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "commit {}, {}, {}, {} threads, {} rounds in turns: medians, low to high\n\n{}\n",
            self.commit,
            self.date,
            self.machine,
            self.threads,
            self.rounds,
            table::text(&self.rows)
        );
        self.limits.iter().for_each(|limits| text += &table::limits(limits));
        text += "\"over it\": ours over this contestant, tokens/s in the same round\n";
        // Formats of one program, which differ in nothing else, in one line.
        let same = |a: &Version, b: &Version| (&a.version, &a.settings) == (&b.version, &b.settings);
        for group in self.ordered().chunk_by(same) {
            let names: Vec<&str> = group.iter().map(|contestant| contestant.name.as_str()).collect();
            text += &format!("{}: {}; {}\n", names.join(", "), group[0].version, group[0].settings);
        }
        if self.contestants.iter().any(|contestant| contestant.name.starts_with("llama.cpp")) {
            text += &format!("llama.cpp is built with {}\n", self.llama_cpp_flags.join(" "));
        }
        text
    }

    /// The contestants, those of one program together.
    fn ordered(&self) -> Vec<Version> {
        let mut all = self.contestants.clone();
        all.sort_by(|a, b| (&a.version, &a.settings).cmp(&(&b.version, &b.settings)));
        all
    }

    /// Writes both files into the machine's folder and returns it.
    pub fn write(&self, records: &Path, name: &str) -> Result<PathBuf, String> {
        let folder = records.join(&self.machine);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let json = serde_json::to_string_pretty(self).map_err(|e| e.to_string())? + "\n";
        for (kind, text) in [("json", json), ("txt", self.text())] {
            let path = folder.join(format!("{name}.{kind}"));
            std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(folder)
    }
}
