//! Every package in the tree comes from crates.io under a licence of the list in `deny.toml`.
//!
//! This is the part of cargo-deny that needs no tool of its own; with the tool, `cargo deny check` reads the same file.

use crate::{Outcome, output};
use std::path::Path;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Asks cargo for all packages, those of other platforms included.
pub fn check(root: &Path) -> Outcome {
    let path = root.join("deny.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("  {}: {error}", path.display()))?;
    let allowed = allow_list(&text)?;
    let metadata = output(root, "cargo", &["metadata", "--locked", "--format-version", "1"])?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("  metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("  metadata without packages")?;
    let findings: Vec<String> = packages.iter().filter_map(|package| problem(package, &allowed)).collect();
    if findings.is_empty() { Ok(format!("{} packages", packages.len())) } else { Err(findings.join("\n")) }
}

fn allow_list(deny: &str) -> Result<Vec<String>, String> {
    let deny: toml::Table = deny.parse().map_err(|error| format!("  deny.toml: {error}"))?;
    let list = deny.get("licenses").and_then(|table| table.get("allow")).and_then(toml::Value::as_array);
    let list = list.ok_or("  deny.toml: no [licenses] allow")?;
    Ok(list.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
}

fn problem(package: &serde_json::Value, allowed: &[String]) -> Option<String> {
    let name = format!("  {} {}", package["name"].as_str()?, package["version"].as_str()?);
    let source = &package["source"];
    // Packages of this workspace have no source.
    if !source.is_null() && source != CRATES_IO {
        return Some(format!("{name}: from {source}, not from crates.io"));
    }
    let Some(licence) = package["license"].as_str() else { return Some(format!("{name}: states no licence")) };
    match accepts(licence, allowed) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name}: {licence}, which deny.toml does not allow")),
        Err(error) => Some(format!("{name}: {licence}: {error}")),
    }
}

/// Whether an SPDX expression can be met with licences of the list. `/`, which old manifests use, means `OR`.
fn accepts(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let met = any(&mut words, allowed)?;
    if words.is_empty() { Ok(met) } else { Err(format!("not understood from {:?} on", words.last())) }
}

// `words` is a stack, the next word last. OR binds weaker than AND.
fn any(words: &mut Vec<&str>, allowed: &[String]) -> Result<bool, String> {
    let mut met = all(words, allowed)?;
    while words.pop_if(|word| *word == "OR").is_some() {
        met |= all(words, allowed)?;
    }
    Ok(met)
}

fn all(words: &mut Vec<&str>, allowed: &[String]) -> Result<bool, String> {
    let mut met = one(words, allowed)?;
    while words.pop_if(|word| *word == "AND").is_some() {
        met &= one(words, allowed)?;
    }
    Ok(met)
}

fn one(words: &mut Vec<&str>, allowed: &[String]) -> Result<bool, String> {
    match words.pop().ok_or("ends too early")? {
        "(" => {
            let met = any(words, allowed)?;
            if words.pop() == Some(")") { Ok(met) } else { Err("a bracket stays open".to_owned()) }
        }
        id if [")", "AND", "OR", "WITH"].contains(&id) => Err(format!("{id} is out of place")),
        id => {
            let mut id = id.to_owned();
            if words.pop_if(|word| *word == "WITH").is_some() {
                id = format!("{id} WITH {}", words.pop().ok_or("ends too early")?);
            }
            Ok(allowed.contains(&id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn allowed() -> Vec<String> {
        allow_list("[licenses]\nallow = ['MIT', 'Apache-2.0', 'Unicode-3.0', 'Apache-2.0 WITH LLVM-exception']")
            .expect("a list of four")
    }

    #[test]
    fn expressions_follow_the_grammar() {
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("GPL-3.0 AND GPL-2.0 OR MIT", true),
            ("MIT OR GPL-3.0 AND GPL-2.0", true),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
        ] {
            assert_eq!(accepts(expression, &allowed()), Ok(met), "{expression}");
        }
        for broken in ["", "MIT OR", "(MIT", "MIT)", "AND MIT", "MIT Apache-2.0", "MIT WITH"] {
            assert!(accepts(broken, &allowed()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_package_needs_a_licence_and_the_right_source() {
        let verdict = |source: Option<&str>, licence: Option<&str>| {
            let package = json!({"name": "a", "version": "1.0.0", "source": source, "license": licence});
            problem(&package, &allowed())
        };
        assert_eq!(verdict(None, Some("MIT")), None);
        assert_eq!(verdict(Some(CRATES_IO), Some("MIT")), None);
        assert!(verdict(Some(CRATES_IO), None).is_some_and(|why| why.contains("states no licence")));
        assert!(verdict(Some(CRATES_IO), Some("GPL-3.0")).is_some_and(|why| why.contains("does not allow")));
        assert!(verdict(Some("git+https://example.org/a"), Some("MIT")).is_some_and(|why| why.contains("crates.io")));
    }
}
