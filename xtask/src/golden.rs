//! Golden files change on purpose or not at all: `tests/golden/B3SUMS` lists the BLAKE3 hash of each.

use crate::Outcome;
use std::collections::BTreeMap;
use std::path::Path;

const FOLDER: &str = "tests/golden";
const LIST: &str = "B3SUMS";

/// Compares the files with the list.
pub fn check(root: &Path) -> Outcome {
    let folder = root.join(FOLDER);
    let path = folder.join(LIST);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("  {}: {error}", path.display()))?;
    let (listed, present) = (parse(&text)?, hashes(&folder)?);
    let findings = differences(&listed, &present);
    if findings.is_empty() { Ok(format!("{} files", present.len())) } else { Err(findings.join("\n")) }
}

/// Writes the list anew.
pub fn write(root: &Path) -> Outcome {
    let folder = root.join(FOLDER);
    let present = hashes(&folder)?;
    let text: String = present.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
    let path = folder.join(LIST);
    std::fs::write(&path, text).map_err(|error| format!("  {}: {error}", path.display()))?;
    Ok(format!("{} files listed", present.len()))
}

/// Name to hash, from lines as `b3sum` writes them.
fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pair = |line: &str| {
        let (hash, name) = line.split_once("  ").ok_or_else(|| format!("  {LIST}: not a line of b3sum: {line:?}"))?;
        Ok((name.to_owned(), hash.to_owned()))
    };
    text.lines().map(pair).collect()
}

fn differences(listed: &BTreeMap<String, String>, present: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, hash) in listed {
        match present.get(name) {
            None => found.push(format!("  {FOLDER}/{name}: missing")),
            Some(now) if now != hash => found.push(format!("  {FOLDER}/{name}: changed (now {now})")),
            Some(_) => {}
        }
    }
    let unlisted = present.keys().filter(|name| !listed.contains_key(*name));
    found.extend(unlisted.map(|name| format!("  {FOLDER}/{name}: not in {LIST}; add it with `cargo xtask golden`")));
    found
}

/// Name to hash of every data file below `folder`. Scripts and prose are free to change.
fn hashes(folder: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(place) = open.pop() {
        let fail = |error: std::io::Error| format!("  {}: {error}", place.display());
        for entry in std::fs::read_dir(&place).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let last = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if last != "__pycache__" {
                    open.push(path);
                }
            } else if last != LIST && !last.ends_with(".md") && !last.ends_with(".py") {
                let bytes = std::fs::read(&path).map_err(|error| format!("  {}: {error}", path.display()))?;
                let name = path.strip_prefix(folder).map_err(|error| format!("  {}: {error}", path.display()))?;
                let name = name.to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/");
                found.insert(name, blake3::hash(&bytes).to_hex().to_string());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_changed_and_unlisted_files_are_named() {
        let listed = parse("aa  same\nbb  changed\ncc  gone\n").expect("three lines");
        let present = parse("aa  same\nb0  changed\ndd  new\n").expect("three lines");
        let found = differences(&listed, &present).join("\n");
        for (name, what) in [("changed", "changed (now b0)"), ("gone", "missing"), ("new", "not in B3SUMS")] {
            assert!(found.contains(&format!("{FOLDER}/{name}: {what}")), "{found}");
        }
        assert!(!found.contains("same"), "{found}");
        assert!(differences(&listed, &listed).is_empty());
    }

    #[test]
    fn a_torn_list_is_an_error() {
        assert!(parse("aa  name\nbb").is_err());
    }
}
