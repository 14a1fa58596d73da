//! Repository chores, run as `cargo xtask <command>`. Plain Rust, so that they work wherever the project builds.
#![forbid(unsafe_code)]

mod files;
mod golden;
mod licences;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What a step says when it passes (may be empty), or everything that is wrong, one finding a line.
type Outcome = Result<String, String>;

/// A step's name and what it does in the repository's root.
type Step = (&'static str, fn(&Path) -> Outcome);

const HELP: &str = "usage: cargo xtask <command>
  check    everything that must hold before a change lands, except the tests
  golden   writes tests/golden/B3SUMS anew, after a deliberate change of golden files";

const CHECKS: [Step; 7] = [
    ("files", files::check),
    ("golden", golden::check),
    ("lock", lock),
    ("licences", licences::check),
    ("fmt", |root| cargo(root, &["fmt", "--all", "--", "--check"], &[])),
    ("clippy", |root| {
        cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"], &[])
    }),
    ("rustdoc", |root| {
        cargo(root, &["doc", "--workspace", "--no-deps", "--locked", "--quiet"], &[("RUSTDOCFLAGS", "-D warnings")])
    }),
];

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).expect("xtask lies in the root");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["check"] => run(&root, &CHECKS),
        ["golden"] => run(&root, &[("golden", golden::write)]),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("xtask: no such command: {}\n{HELP}", words.join(" "));
            ExitCode::from(2)
        }
    }
}

/// Runs every step even when one fails, so that one run shows all there is to mend.
fn run(root: &Path, steps: &[Step]) -> ExitCode {
    let mut failed = Vec::new();
    for (name, step) in steps {
        #[allow(clippy::disallowed_methods, reason = "how long a step took is printed for people and decides nothing")]
        let start = std::time::Instant::now();
        let outcome = step(root);
        let time_s = start.elapsed().as_secs_f64();
        match outcome {
            Ok(said) => println!("{name:9} ok     {time_s:6.1} s  {said}"),
            Err(findings) => {
                println!("{name:9} FAILED {time_s:6.1} s\n{findings}");
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}

/// Cargo.lock is part of the repository and says what the manifests ask for.
fn lock(root: &Path) -> Outcome {
    output(root, "git", &["ls-files", "--error-unmatch", "Cargo.lock"])?;
    output(root, "cargo", &["metadata", "--locked", "--format-version", "1"])?;
    Ok(String::new())
}

/// Runs cargo with its own output going straight to the terminal.
fn cargo(root: &Path, words: &[&str], env: &[(&str, &str)]) -> Outcome {
    let status = Command::new("cargo").args(words).envs(env.iter().copied()).current_dir(root).status();
    match status {
        Ok(status) if status.success() => Ok(String::new()),
        Ok(status) => Err(format!("  cargo {}: {status}", words.join(" "))),
        Err(error) => Err(format!("  cargo {}: {error}", words.join(" "))),
    }
}

/// Standard output of a command that must succeed.
fn output(root: &Path, program: &str, words: &[&str]) -> Outcome {
    let line = || format!("  {program} {}", words.join(" "));
    let done =
        Command::new(program).args(words).current_dir(root).output().map_err(|error| format!("{}: {error}", line()))?;
    if !done.status.success() {
        return Err(format!("{}: {}\n{}", line(), done.status, String::from_utf8_lossy(&done.stderr)));
    }
    String::from_utf8(done.stdout).map_err(|error| format!("{}: {error}", line()))
}
