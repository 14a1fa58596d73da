//! `cargo xtask mutate`: do the cases notice when a kernel is wrong? Committed PTX is changed in seeded places, each as a
//! mistake would, and every mutant runs its op's conformance cases on the simulated device with all its checks.
//!
//! Each mutant runs in a process of its own, `ptx/examples/mutate.rs`, so that one that hangs or aborts ends alone.

mod choice;
mod equivalent;
mod instruction;
mod report;
mod sites;

use crate::Outcome;
use crate::ptx::parallel;
use choice::{Chosen, Text, choose};
use report::{Tried, Verdict};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const OPS: &str = "ptx/src/ops";
const DOCUMENT: &str = "docs/mutation.md";
const OPENS: &str = "<!-- mutants: written by cargo xtask mutate --write -->\n";
const CLOSES: &str = "<!-- /mutants -->";
const TARGETS: [&str; 2] = ["sm80", "sm89"];

/// The share of mutants that must be killed.
const GOAL: f64 = 0.95;

/// What to try.
pub struct Wanted {
    /// One op, or all.
    pub op: Option<String>,
    pub count: usize,
    pub seed: u64,
    /// Whether the tables go into `docs/mutation.md`.
    pub write: bool,
}

/// Tries mutants, prints and perhaps writes what became of them, and fails below the goal.
pub fn run(root: &Path, wanted: &Wanted) -> Outcome {
    let all = texts(root, wanted.op.as_deref())?;
    let runner = build(root)?;
    let folder = root.join("target/mutants");
    std::fs::create_dir_all(&folder).map_err(|error| format!("  {}: {error}", folder.display()))?;
    let trial = Trial { root, runner, folder };

    // As they are, all must pass; how long that takes bounds how long a mutant may take.
    let whole = parallel(&all, |text| {
        #[allow(
            clippy::disallowed_methods,
            reason = "bounds the time of a mutant; a verdict other than a hang does not depend on it"
        )]
        let start = std::time::Instant::now();
        let (verdict, said) = trial.run(text, &text.ptx, Duration::from_secs(600));
        let time = start.elapsed();
        match verdict {
            Verdict::Survived => Ok(time),
            _ => Err(format!("  {}.{}.ptx fails as it is: {said}", text.op, text.target)),
        }
    });
    // An op that fails as it is has no mutants; the command fails in the end.
    let mut failing = Vec::new();
    let (mut texts, mut times) = (Vec::new(), Vec::new());
    for (text, outcome) in all.into_iter().zip(whole) {
        match outcome {
            Ok(time) => {
                texts.push(text);
                times.push(time);
            }
            Err(found) => failing.push(found),
        }
    }
    if !failing.is_empty() {
        println!("{}", failing.join("\n"));
    }

    let equivalents = equivalent::all()?;
    failing.extend(equivalents.iter().filter(|one| one.is_stale(&texts)).map(|one| {
        format!("  equivalent.toml: {} has no such mutant any more: `{}` to `{}`", one.kernel, one.line, one.became)
    }));
    let chosen = choose(&texts, wanted.count, wanted.seed);
    let done = AtomicUsize::new(0);
    let verdicts = parallel(&chosen, |Chosen { text, mutant }| {
        let verdict =
            trial.run(&texts[*text], &mutant.apply(&texts[*text].ptx), times[*text] * 10 + Duration::from_secs(10));
        let now = done.fetch_add(1, Ordering::Relaxed) + 1;
        if now.is_multiple_of(20) {
            println!("{now} of {}", chosen.len());
        }
        verdict
    });
    let tried: Vec<Tried> = chosen
        .into_iter()
        .zip(verdicts)
        .map(|(chosen, (verdict, said))| {
            let known = equivalents.iter().find(|one| one.is(&texts, &chosen));
            Tried { verdict, said, equivalent: known.map(|one| one.why.clone()), chosen }
        })
        .collect();
    let told_apart =
        |one: &&Tried| one.equivalent.is_some() && !matches!(one.verdict, Verdict::Survived | Verdict::Refused);
    failing.extend(
        tried
            .iter()
            .filter(told_apart)
            .map(|one| format!("  equivalent.toml is wrong about `{}`: {}", one.chosen.mutant.after, one.said)),
    );

    let tables = report::markdown(&texts, &tried, wanted.seed);
    println!("{tables}");
    for one in tried.iter().filter(|one| one.verdict == Verdict::Refused) {
        println!("refused: {}: {}", one.chosen.mutant.after, one.said);
    }
    if wanted.write {
        write(root, &tables)?;
    }
    let share = report::killed_share(&tried);
    let said =
        format!("{:.1}% of {} mutants killed, without those known to compute the same", 100.0 * share, tried.len());
    if share < GOAL {
        failing.push(format!("  {said}; the goal is {:.0}%", 100.0 * GOAL));
    }
    if failing.is_empty() { Ok(said) } else { Err(failing.join("\n")) }
}

/// Committed PTX, of one op or of all.
fn texts(root: &Path, op: Option<&str>) -> Result<Vec<Text>, String> {
    let mut texts = Vec::new();
    let folder = root.join(OPS);
    let mut ops: Vec<String> = std::fs::read_dir(&folder)
        .map_err(|error| format!("  {OPS}: {error}"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| op.is_none_or(|op| op == name))
        .collect();
    ops.sort();
    for op in ops {
        for target in TARGETS {
            let path = folder.join(&op).join(format!("{op}.{target}.ptx"));
            if let Ok(ptx) = std::fs::read_to_string(path) {
                texts.push(Text { op: op.clone(), target, ptx });
            }
        }
    }
    if texts.is_empty() { Err("  no such op with PTX".to_owned()) } else { Ok(texts) }
}

/// Builds the program that runs one mutant.
fn build(root: &Path) -> Result<PathBuf, String> {
    let words = ["build", "--quiet", "--locked", "-p", "leeway-ptx", "--example", "mutate", "--message-format", "json"];
    let messages = crate::output(root, "cargo", &words)?;
    let of_example = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "mutate" && message["target"]["kind"][0] == "example";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    };
    messages.lines().find_map(of_example).ok_or_else(|| "  cargo named no executable of the example".to_owned())
}

struct Trial<'a> {
    root: &'a Path,
    runner: PathBuf,
    folder: PathBuf,
}

impl Trial<'_> {
    /// Runs the cases of an op with this PTX in place of the committed one.
    fn run(&self, text: &Text, ptx: &str, limit: Duration) -> (Verdict, String) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = |what: &str| self.folder.join(format!("{}-{number}.{what}", std::process::id()));
        let (file, log) = (path("ptx"), path("txt"));
        let outcome = std::fs::write(&file, ptx)
            .and_then(|()| std::fs::File::create(&log))
            .and_then(|out| Ok((out.try_clone()?, out)))
            .and_then(|(out, err)| {
                let mut command = Command::new(&self.runner);
                command.args([&text.op, text.target]).arg(&file).current_dir(self.root);
                command.stdin(Stdio::null()).stdout(out).stderr(err).spawn()
            })
            .and_then(|child| ended(child, limit));
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        // They lie under `target/` and harm nobody if they stay.
        let _ = std::fs::remove_file(&file).and_then(|()| std::fs::remove_file(&log));
        let last = said.lines().next_back().unwrap_or_default().to_owned();
        match outcome {
            Ok(Some(0)) => (Verdict::Survived, last),
            Ok(Some(1)) => (Verdict::Wrong, last),
            Ok(Some(3)) => (Verdict::Refused, last),
            // 2: a fault of the device; otherwise a panic or an abort.
            Ok(Some(_)) => (Verdict::Fault, last),
            Ok(None) => (Verdict::Hang, format!("ran past {} s", limit.as_secs())),
            Err(error) => (Verdict::Refused, format!("{}: {error}", self.runner.display())),
        }
    }
}

/// Waits for the end of a process, and ends it at the limit: `None`. A process ended by a signal counts as -1.
fn ended(mut child: std::process::Child, limit: Duration) -> std::io::Result<Option<i32>> {
    #[allow(clippy::disallowed_methods, reason = "a mutant that hangs is to be ended")]
    let start = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code().unwrap_or(-1)));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn write(root: &Path, tables: &str) -> Result<(), String> {
    let path = root.join(DOCUMENT);
    let document = std::fs::read_to_string(&path).map_err(|error| format!("  {DOCUMENT}: {error}"))?;
    let new = crate::between(&document, OPENS, CLOSES, tables).map_err(|why| format!("  {DOCUMENT}: {why}"))?;
    std::fs::write(&path, new).map_err(|error| format!("  {DOCUMENT}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_by_itself_or_at_the_limit() {
        let start = |script: &str| Command::new("sh").args(["-c", script]).spawn().expect("a shell");
        assert_eq!(ended(start("exit 3"), Duration::from_secs(10)).expect("a status"), Some(3));
        assert_eq!(ended(start("kill -9 $$"), Duration::from_secs(10)).expect("a status"), Some(-1));
        assert_eq!(ended(start("exec sleep 10"), Duration::from_millis(20)).expect("killed"), None);
    }
}
