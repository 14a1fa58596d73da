//! The guides do what they say: every command in them runs, in order, and prints what is shown below it, numbers apart. (That
//! numbers are the same on every machine is for other tests; seconds are not.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        fs::create_dir_all(to.parent().expect("in a folder")).expect("a folder");
        fs::copy(from, to).expect("copied");
    }
}

/// Commands of a page, each with what is shown below it.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in page.split("```sh\n").skip(1) {
        let (commands, rest) = part.split_once("```\n").expect("a block has an end");
        let shown = rest.strip_prefix("```text\n").expect("what it prints follows a command");
        let (shown, _) = shown.split_once("```").expect("a block has an end");
        found.push((commands.to_owned(), shown.to_owned()));
    }
    found
}

/// Words alone: a number is `#`, a hash too, and each run of dashes or spaces is one.
fn words(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut words = String::new();
        for c in unhashed(line.trim()).chars() {
            let c = if c.is_ascii_digit() { '#' } else { c };
            let last = words.chars().last();
            let repeated = matches!(c, '#' | ' ' | '-') && last == Some(c);
            // 0.12, 1.2e-1 and 12.5% are numbers, whatever their length.
            let inside = last == Some('#') && matches!(c, '.' | 'e');
            if !repeated && !inside {
                words.push(c);
            }
        }
        words.replace("#-#", "#").replace(" -#", " #")
    };
    text.trim().lines().map(line).collect()
}

/// The line with a digit for each hash, 64 hexadecimal digits.
fn unhashed(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let Some(c) = rest.chars().next() {
        let digits = rest.bytes().take_while(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).count();
        let taken = if digits == 64 { digits } else { digits.max(c.len_utf8()) };
        text.push_str(if digits == 64 { "0" } else { &rest[..taken] });
        rest = &rest[taken..];
    }
    text
}

fn runs(name: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The path as the system gives it, since it stands in what commands print.
    let dir = folder.path().canonicalize().expect("it is there");
    let certificate = "experiments/results/chain-steady/certificate.json";
    for part in ["examples", "experiments/pairs", certificate] {
        copy(&root().join(part), &dir.join(part));
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_leeway"));
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", binary.parent().expect("in a folder").display());
    let page = fs::read_to_string(root().join("docs/guide").join(name)).expect("a guide");
    let blocks = blocks(&page);
    assert!(blocks.len() >= 4, "{name} has few commands");
    for (commands, shown) in blocks {
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &format!("set -euo pipefail\n{commands}")]).current_dir(&dir).env("PATH", &path);
        let output = output.output().expect("bash runs");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}\n{commands}\n{stderr}");
        let stdout = stdout.replace(&format!("{}/", dir.display()), "");
        assert_eq!(words(&stdout), words(&shown), "{name}\n{commands}\nprints\n{stdout}");
    }
}

#[test]
fn training() {
    runs("train.md");
}

#[test]
fn tuning() {
    runs("tune.md");
}

#[test]
fn admission() {
    runs("admit.md");
}

#[test]
fn speed() {
    runs("bench.md");
}

#[test]
fn what_a_line_is_without_its_numbers() {
    assert_eq!(words("D, nats/token  1.959e-1  -0.68%\n-----\n"), ["D, nats/token # #%", "-"]);
    assert_ne!(words("status 3"), words("status three"));
    let hash = "9e2b23500cecbc2f66a712f2eb28a728d99433d6365662ad24ddab28418043d8";
    assert_eq!(words(&format!("hash  {hash}")), ["hash #"]);
    assert_eq!(words(&format!("\"{hash}\"")), ["\"#\""]);
    assert_eq!(words("added – bed"), ["added – bed"]);
}
