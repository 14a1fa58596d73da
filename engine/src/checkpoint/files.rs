//! Which files of a folder hold its weights, and what each holds.
//!
//! `model.safetensors.index.json` with the files it names; or `model.safetensors`; or, without an index,
//! `model-*.safetensors`. Other files (an original `consolidated.safetensors`, adapters) are not the model's weights.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use ptx::mapped::MappedFile;

use super::CheckpointError;
use super::header::{self, Entry};

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

type Opened = (Vec<(PathBuf, MappedFile)>, HashMap<String, (Entry, usize)>);

/// Maps the files of `dir` and reads their headers: the files, and each tensor by name with its file's index.
pub(super) fn open(dir: &Path) -> Result<Opened, CheckpointError> {
    let (names, index) = names(dir)?;
    let mut files = Vec::with_capacity(names.len());
    let mut entries: HashMap<String, (Entry, usize)> = HashMap::new();
    for name in &names {
        let path = dir.join(name);
        let map = MappedFile::open(&path).map_err(CheckpointError::io(&path, "be mapped"))?;
        for entry in header::parse(&path, map.bytes())? {
            let listed = index.as_ref().is_none_or(|i| i.weight_map.get(&entry.name).is_some_and(|f| f == name));
            let tensor = entry.name.clone();
            if let Some((_, other)) = entries.insert(entry.name.clone(), (entry, files.len())) {
                let (other, _): &(PathBuf, MappedFile) = &files[other];
                return Err(CheckpointError::Duplicate { file: path, other: other.clone(), tensor });
            }
            if !listed {
                return Err(CheckpointError::NotInIndex { file: path, tensor });
            }
        }
        files.push((path, map));
    }
    for (tensor, file) in index.iter().flat_map(|i| &i.weight_map) {
        if !entries.contains_key(tensor) {
            let (file, tensor) = (file.clone(), tensor.clone());
            return Err(CheckpointError::NotInFile { index: dir.join(INDEX), file, tensor });
        }
    }
    Ok((files, entries))
}

/// File names, and the index if there is one.
fn names(dir: &Path) -> Result<(Vec<String>, Option<Index>), CheckpointError> {
    let single = dir.join(SINGLE).exists();
    let index_path = dir.join(INDEX);
    if index_path.exists() {
        let index = read_index(&index_path)?;
        let names: BTreeSet<String> = index.weight_map.values().cloned().collect();
        for name in &names {
            let file = dir.join(name);
            if !file.exists() {
                return Err(CheckpointError::MissingFile { file, wanted_by: INDEX.into() });
            }
        }
        if single && !names.contains(SINGLE) {
            return Err(CheckpointError::Ambiguous { dir: dir.into(), one: SINGLE.into(), other: INDEX.into() });
        }
        return Ok((names.into_iter().collect(), Some(index)));
    }
    let mut numbered = Vec::new();
    let mut others = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(CheckpointError::io(dir, "be listed"))? {
        let entry = entry.map_err(CheckpointError::io(dir, "be listed"))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with("model-") && name.ends_with(".safetensors") {
            numbered.push(name);
        } else if let Some((_, extension)) = name.rsplit_once('.') {
            others.insert(extension.to_owned());
        }
    }
    numbered.sort();
    match (single, numbered.first()) {
        (true, Some(first)) => {
            Err(CheckpointError::Ambiguous { dir: dir.into(), one: SINGLE.into(), other: first.clone() })
        }
        (true, None) => Ok((vec![SINGLE.into()], None)),
        (false, Some(_)) => {
            complete(dir, &numbered)?;
            Ok((numbered, None))
        }
        (false, None) => {
            let hint = if others.contains("gguf") {
                "GGUF is not read, so convert it to safetensors"
            } else if others.contains("bin") || others.contains("pt") || others.contains("pth") {
                "pickled weights are not read, so save them as safetensors"
            } else {
                "fetch the folder again"
            };
            Err(CheckpointError::NoWeights { dir: dir.into(), hint })
        }
    }
}

fn read_index(path: &Path) -> Result<Index, CheckpointError> {
    let bad = |reason: String| CheckpointError::Index { file: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(CheckpointError::io(path, "be read"))?;
    let index: Index = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(bad("its weight_map is empty".into()));
    }
    for name in index.weight_map.values() {
        // A file of this folder and no path out of it.
        let plain = Path::new(name).file_name().is_some_and(|f| f == name.as_str());
        if !plain || !name.ends_with(".safetensors") {
            return Err(bad(format!("`{name}` is not the name of a .safetensors file in this folder")));
        }
    }
    Ok(index)
}

/// Files numbered `model-00001-of-00003.safetensors` must all be there.
fn complete(dir: &Path, names: &[String]) -> Result<(), CheckpointError> {
    let parts = |name: &str| {
        let (number, count) = name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
        Some((number.parse::<u32>().ok()?, count.parse::<u32>().ok()?, count.len()))
    };
    let Some((_, count, width)) = names.first().and_then(|name| parts(name)) else { return Ok(()) };
    for number in 1..=count {
        let name = format!("model-{number:0width$}-of-{count:0width$}.safetensors");
        if !names.contains(&name) {
            return Err(CheckpointError::MissingFile { file: dir.join(name), wanted_by: names[0].clone() });
        }
    }
    Ok(())
}
