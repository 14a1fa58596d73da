//! `cargo xtask ptx`: kernels from source to PTX, and what must hold of the PTX that is committed.

mod clang;
mod occupancy;
mod ptxas;
mod rules;
mod table;
pub mod text;

use crate::Outcome;
use clang::{Clang, TARGETS, Target};
use ptxas::Usage;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::{Dynamic, Row};

const OPS: &str = "ptx/src/ops";
/// Kernels of tests: the same in everything but the table.
const TESTS: &str = "ptx/tests";
const TABLE: &str = "docs/kernels.md";

/// Compiles every kernel and writes its PTX and the table.
pub fn write(root: &Path, ptxas: Option<&Path>) -> Outcome {
    run(root, ptxas, true)
}

/// Compiles every kernel and compares; assembles what is committed; changes nothing.
pub fn check(root: &Path, ptxas: Option<&Path>) -> Outcome {
    run(root, ptxas, false)
}

fn run(root: &Path, ptxas: Option<&Path>, write: bool) -> Outcome {
    let (ops, mut findings) = ops(root)?;
    let (clang, ptxas) = both(clang::find(), ptxas::find(root, ptxas))?;
    if write && !clang.is_pinned() {
        return Err(format!("  clang is {}; what is committed is written by {} alone", clang.version, clang::VERSION));
    }
    let mut notes = Vec::new();

    let files: Vec<File> = ops.iter().flat_map(|op| TARGETS.iter().map(move |target| File { op, target })).collect();
    let compiled = parallel(&files, |file| compare(root, &clang, file, write));
    for outcome in compiled {
        match outcome {
            Ok(note) => notes.extend(note),
            Err(found) => findings.push(found),
        }
    }

    // A missing file has been reported already.
    let texts: Vec<(&File, String)> =
        files.iter().filter_map(|file| Some((file, std::fs::read_to_string(root.join(file.ptx())).ok()?))).collect();
    findings.extend(texts.iter().flat_map(|(file, text)| rules::in_ptx(&file.ptx(), text)));
    findings.extend(sources(root, &ops)?);

    // PTX runs on the architecture it names and on all later ones.
    let mut jobs: Vec<(&File, &str, u32)> = Vec::new();
    for (file, text) in &texts {
        let later = ptxas.archs.iter().filter(|arch| **arch >= file.target.arch);
        jobs.extend(later.map(|arch| (*file, text.as_str(), *arch)));
    }
    let assembled =
        parallel(&jobs, |(file, text, arch)| ptxas.assemble(&file.ptx(), &root.join(file.ptx()), text, *arch));
    let mut used: Vec<(&File, u32, Vec<Usage>)> = Vec::new();
    for ((file, _, arch), outcome) in jobs.iter().zip(assembled) {
        match outcome {
            Ok(figures) => used.push((file, *arch, figures)),
            Err(found) => findings.push(found),
        }
    }

    if !ptxas.is_pinned() {
        notes.push(format!(
            "{TABLE} not compared: its figures are of ptxas {}, this is {}",
            ptxas::VERSION,
            ptxas.version
        ));
    } else if findings.is_empty() {
        findings.extend(tabulate(root, &rows(root, &ops, &used)?, write).err());
    }
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    let mut said = format!("{} ops, {} files, {} assembled", ops.len(), files.len(), jobs.len());
    for note in notes {
        said.push_str("\n  ");
        said.push_str(&note);
    }
    Ok(said)
}

/// One committed PTX file.
struct File<'a> {
    op: &'a Op,
    target: &'static Target,
}

/// A folder with a source named like it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Op {
    /// From the root: `ptx/src/ops/round`.
    folder: String,
    /// The folder's last part.
    name: String,
}

impl File<'_> {
    fn source(&self) -> String {
        format!("{}/{}.cu", self.op.folder, self.op.name)
    }

    fn ptx(&self) -> String {
        format!("{}/{}.{}.ptx", self.op.folder, self.op.name, self.target.name)
    }
}

/// Ops with kernels, and PTX files that belong to none.
fn ops(root: &Path) -> Result<(Vec<Op>, Vec<String>), String> {
    let (mut ops, mut findings) = (Vec::new(), Vec::new());
    for place in [OPS, TESTS].iter().filter(|place| root.join(place).is_dir()) {
        for name in names(&root.join(place))? {
            let op = Op { folder: format!("{place}/{name}"), name };
            if root.join(&op.folder).is_dir() {
                findings.extend(strays(&op, &names(&root.join(&op.folder))?));
                if root.join(&op.folder).join(format!("{}.cu", op.name)).is_file() {
                    ops.push(op);
                }
            }
        }
    }
    Ok((ops, findings))
}

/// Files of an op's folder that should not be there.
fn strays(op: &Op, files: &[String]) -> Vec<String> {
    let Op { folder, name } = op;
    let source = format!("{name}.cu");
    let mut found = Vec::new();
    for file in files {
        if file.ends_with(".cu") && *file != source {
            found.push(format!("  {folder}/{file}: a source is named like its folder: {source}"));
        }
        let expected = TARGETS.iter().any(|target| *file == format!("{name}.{}.ptx", target.name));
        if file.ends_with(".ptx") && (!expected || !files.contains(&source)) {
            found.push(format!("  {folder}/{file}: belongs to no source"));
        }
    }
    found
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>, String> {
    let fail = |error: std::io::Error| format!("  {}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(fail)?;
    let names: Result<Vec<String>, String> =
        entries.map(|entry| Ok(entry.map_err(fail)?.file_name().to_string_lossy().into_owned())).collect();
    let mut names = names?;
    names.sort();
    Ok(names)
}

/// Compiles one file and writes it, or compares it with what is committed. A note says when only names of registers differ.
fn compare(root: &Path, clang: &Clang, file: &File, write: bool) -> Result<Option<String>, String> {
    let name = file.ptx();
    let fresh = clang.compile(root, &file.source(), file.target)?;
    let path = root.join(&name);
    if write {
        if std::fs::read_to_string(&path).is_ok_and(|committed| committed == fresh) {
            return Ok(None);
        }
        std::fs::write(&path, fresh).map_err(|error| format!("  {name}: {error}"))?;
        return Ok(Some(format!("wrote {name}")));
    }
    let committed = std::fs::read_to_string(&path)
        .map_err(|error| format!("  {name}: {error}; write it with `cargo xtask ptx`"))?;
    verdict(&name, &committed, &fresh, clang)
}

fn verdict(name: &str, committed: &str, fresh: &str, clang: &Clang) -> Result<Option<String>, String> {
    if committed == fresh {
        return Ok(None);
    }
    let difference = text::first_difference(committed, fresh);
    match (clang.is_pinned(), difference) {
        (false, None) => Ok(Some(format!("{name}: the same instructions; clang {} gave other names", clang.version))),
        (true, None) => {
            Err(format!("  {name}: stale, though only in layout or names; write it with `cargo xtask ptx`"))
        }
        (pinned, Some((committed, fresh))) => {
            let why = if pinned {
                "stale; write it with `cargo xtask ptx`".to_owned()
            } else {
                format!("differs from clang {}'s; compare with clang {}", clang.version, clang::VERSION)
            };
            Err(format!("  {name}: {why}\n    committed: {committed}\n    compiled:  {fresh}"))
        }
    }
}

/// Sources and the prelude against the rules for sources.
fn sources(root: &Path, ops: &[Op]) -> Result<Vec<String>, String> {
    let mut places = vec!["ptx".to_owned()];
    places.extend(ops.iter().map(|op| op.folder.clone()));
    let mut found = Vec::new();
    for place in places {
        for file in names(&root.join(&place))?.iter().filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")) {
            let name = format!("{place}/{file}");
            let text = std::fs::read_to_string(root.join(&name)).map_err(|error| format!("  {name}: {error}"))?;
            found.extend(rules::in_source(&name, &text));
        }
    }
    Ok(found)
}

/// The rows of the table, in order of ops and of entries in their sources. Each architecture takes the PTX that is loaded on it: the
/// last target not above it.
fn rows(root: &Path, ops: &[Op], used: &[(&File, u32, Vec<Usage>)]) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for op in ops.iter().filter(|op| op.folder.starts_with(OPS)) {
        // The later target has every entry of the earlier one, and those that need it.
        let last = File { op, target: &TARGETS[TARGETS.len() - 1] };
        let read =
            |name: String| std::fs::read_to_string(root.join(&name)).map_err(|error| format!("  {name}: {error}"));
        let (source, ptx) = (read(last.source())?, read(last.ptx())?);
        for entry in text::entries(&ptx) {
            let figures = |arch: u32| {
                let loaded = TARGETS.iter().rfind(|target| target.arch <= arch)?;
                let (_, _, figures) =
                    used.iter().find(|(f, a, _)| f.op == op && *a == arch && f.target.arch == loaded.arch)?;
                figures.iter().find(|usage| usage.entry == entry.name)
            };
            let dynamic = match (entry.dynamic_shared, table::stated(&source, &entry.name)) {
                (false, _) => Dynamic::None,
                (true, Some(bytes)) => Dynamic::Bytes(bytes),
                (true, None) => Dynamic::Unstated,
            };
            let registers: Vec<_> = ptxas::ARCHS.map(|arch| (arch, figures(arch).map(|usage| usage.registers))).into();
            let shared_bytes = ptxas::ARCHS.into_iter().find_map(figures).map_or(0, |usage| usage.shared_bytes);
            rows.push(Row {
                op: op.name.clone(),
                kernel: entry.name,
                threads: entry.threads,
                shared_bytes,
                dynamic,
                registers,
            });
        }
    }
    Ok(rows)
}

/// Writes the table, or compares it.
fn tabulate(root: &Path, rows: &[Row], write: bool) -> Result<(), String> {
    let path = root.join(TABLE);
    let document = std::fs::read_to_string(&path).map_err(|error| format!("  {TABLE}: {error}"))?;
    let new = table::replaced(&document, rows).map_err(|why| format!("  {TABLE}: {why}"))?;
    if new == document {
        return Ok(());
    }
    if write {
        return std::fs::write(&path, new).map_err(|error| format!("  {TABLE}: {error}"));
    }
    let line = new.lines().zip(document.lines()).find(|(new, old)| new != old).map_or("", |(new, _)| new);
    Err(format!("  {TABLE}: the table is not up to date; write it with `cargo xtask ptx`\n    now: {line}"))
}

/// Both, or everything that is missing.
fn both<A, B>(a: Result<A, String>, b: Result<B, String>) -> Result<(A, B), String> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(a), Err(b)) => Err(format!("{a}\n{b}")),
        (Err(found), _) | (_, Err(found)) => Err(found),
    }
}

/// Does one thing with each item, on every core; results in the order of the items.
pub fn parallel<T: Sync, R: Send>(items: &[T], one: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((i, item)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, items.get(i)?))) {
            done.push((i, one(item)));
        }
        done
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(items.len().max(1));
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics")).collect()
    });
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests;
