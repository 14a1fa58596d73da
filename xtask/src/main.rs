//! Repository chores, run as `cargo xtask <command>`. Plain Rust, so that they work wherever the project builds.
#![forbid(unsafe_code)]

mod files;
mod golden;
mod licences;
mod mutate;
mod ptx;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What a step says when it passes (may be empty), or everything that is wrong, one finding a line.
type Outcome = Result<String, String>;

/// A step's name and what it does.
type Step = (&'static str, fn(&Setup) -> Outcome);

/// Where a command works and with what.
struct Setup {
    root: PathBuf,
    /// A ptxas other than the one of the package.
    ptxas: Option<PathBuf>,
}

const HELP: &str = "usage: cargo xtask <command>
  check          everything that must hold before a change lands, except the tests
  golden         writes tests/golden/B3SUMS anew, after a deliberate change of golden files
  ptx            compiles the kernels and writes their PTX and the table of docs/kernels.md
  ptx --check    compiles the kernels and compares; assembles the committed PTX; a part of check
  mutate         changes committed PTX in seeded places and says which mistakes the kernels' cases notice
options of check and ptx
  --ptxas PATH   assembles with this ptxas instead of the one of the Python package nvidia-cuda-nvcc
options of mutate
  --op OP        mutants of this op alone
  --count N      so many mutants (240)
  --seed S       which ones (1)
  --write        writes the tables into docs/mutation.md";

const CHECKS: [Step; 8] = [
    ("files", |setup| files::check(&setup.root)),
    ("golden", |setup| golden::check(&setup.root)),
    ("lock", |setup| lock(&setup.root)),
    ("licences", |setup| licences::check(&setup.root)),
    ("ptx", |setup| ptx::check(&setup.root, setup.ptxas.as_deref())),
    ("fmt", |setup| cargo(&setup.root, &["fmt", "--all", "--", "--check"], &[])),
    ("clippy", |setup| {
        cargo(
            &setup.root,
            &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"],
            &[],
        )
    }),
    ("rustdoc", |setup| {
        cargo(
            &setup.root,
            &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        )
    }),
];

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).expect("xtask lies in the root");
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let ptxas = take_option(&mut words, "--ptxas").map(PathBuf::from);
    let (op, count, seed) =
        (take_option(&mut words, "--op"), take_option(&mut words, "--count"), take_option(&mut words, "--seed"));
    let number = |text: Option<String>, default: u64| text.map_or(Some(default), |text| text.parse::<u64>().ok());
    let setup = Setup { root, ptxas };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["check"] => run(&setup, &CHECKS),
        ["golden"] => run(&setup, &[("golden", |setup| golden::write(&setup.root))]),
        ["ptx"] => run(&setup, &[("ptx", |setup| ptx::write(&setup.root, setup.ptxas.as_deref()))]),
        ["ptx", "--check"] => run(&setup, &[("ptx", |setup| ptx::check(&setup.root, setup.ptxas.as_deref()))]),
        ["mutate", ref flags @ ..] if matches!(flags, [] | ["--write"]) => {
            let (Some(count), Some(seed)) = (number(count, 240), number(seed, 1)) else {
                eprintln!("xtask: --count and --seed are whole numbers");
                return ExitCode::from(2);
            };
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let wanted = mutate::Wanted { op, count, seed, write: !flags.is_empty() };
            report("mutate", || mutate::run(&setup.root, &wanted)).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
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

/// Takes `name VALUE` out of the words. An option without its value stays, and so makes the command unknown.
fn take_option(words: &mut Vec<String>, name: &str) -> Option<String> {
    let at = words.iter().position(|word| word == name).filter(|at| at + 1 < words.len())?;
    words.drain(at..at + 2).nth(1)
}

/// Runs every step even when one fails, so that one run shows all there is to mend.
fn run(setup: &Setup, steps: &[Step]) -> ExitCode {
    let failed: Vec<&str> =
        steps.iter().filter_map(|(name, step)| report(name, || step(setup)).is_err().then_some(*name)).collect();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}

/// Runs one step and prints how it went.
fn report(name: &str, step: impl FnOnce() -> Outcome) -> Result<(), ()> {
    #[allow(clippy::disallowed_methods, reason = "how long a step took is printed for people and decides nothing")]
    let start = std::time::Instant::now();
    let outcome = step();
    let time_s = start.elapsed().as_secs_f64();
    match &outcome {
        Ok(said) => println!("{name:9} ok     {time_s:6.1} s  {said}"),
        Err(findings) => println!("{name:9} FAILED {time_s:6.1} s\n{findings}"),
    }
    outcome.map(drop).map_err(drop)
}

/// A document with all between two lines replaced.
fn between(document: &str, opens: &str, closes: &str, new: &str) -> Result<String, String> {
    let missing = || format!("no lines {:?} and {closes:?}", opens.trim_end());
    let (before, rest) = document.split_once(opens).ok_or_else(missing)?;
    let (_, after) = rest.split_once(closes).ok_or_else(missing)?;
    Ok(format!("{before}{opens}{new}{closes}{after}"))
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
