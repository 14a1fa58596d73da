//! Writing a folder that transformers loads, all of it or nothing.
//!
//! Everything goes into a temporary folder beside the target and reaches the disk before that folder takes the
//! target's name, in one rename (an exchange where there was a model before). A write that fails leaves the target as
//! it was and no trace of its own.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ptx::DType;
use ptx::dtype::{bf16_from_f32, bf16_to_f32};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::files::{INDEX, SINGLE};
use super::{CheckpointError, Param, inventory, read, stored_name};
use crate::config::ModelConfig;

/// Default limit of one weights file.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Files that go with a model and are copied as they are.
const AUXILIARY: [&str; 10] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// How a folder is written.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions<'a> {
    /// F32 or BF16.
    pub dtype: DType,
    /// Folder whose tokenizer and generation files are copied; the target itself is allowed.
    pub aux_from: Option<&'a Path>,
    /// Limit of one weights file; a single larger tensor has a file to itself.
    pub shard_bytes: u64,
}

/// Writes the model `config` to the folder `dir`. `fetch` is called once per parameter, in inventory order, with an
/// empty buffer to fill with its values in row-major order.
///
/// `config.json` is the configuration as read, with the dtype set and without the description of a quantisation, since
/// the weights written have none. Without a `generation_config.json` in `aux_from` one with the stop ids is made.
///
/// A folder that is there must be empty or hold a model, whose files are all replaced.
///
/// # Panics
/// When `fetch` gives a wrong number of values.
pub fn write(
    dir: &Path,
    config: &ModelConfig,
    dtype: DType,
    aux_from: Option<&Path>,
    fetch: impl FnMut(&Param, &mut Vec<f32>),
) -> Result<(), CheckpointError> {
    write_with(dir, config, &WriteOptions { dtype, aux_from, shard_bytes: SHARD_BYTES }, fetch, |_| Ok(()))
}

/// As [`write()`], and `finish` may put further files into the folder (its path is given) before it takes its name.
pub fn write_with(
    dir: &Path,
    config: &ModelConfig,
    options: &WriteOptions,
    fetch: impl FnMut(&Param, &mut Vec<f32>),
    finish: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let mut create = |path: &Path| -> io::Result<Box<dyn Sink>> { Ok(Box::new(File::create_new(path)?)) };
    write_through(&mut create, dir, config, options, fetch, finish)
}

/// A file being written. Tests put failing ones in its place.
pub(super) trait Sink: Write {
    /// Returns once the content is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

type Create<'a> = &'a mut dyn FnMut(&Path) -> io::Result<Box<dyn Sink>>;

pub(super) fn write_through(
    create: Create,
    dir: &Path,
    config: &ModelConfig,
    options: &WriteOptions,
    fetch: impl FnMut(&Param, &mut Vec<f32>),
    finish: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    if !matches!(options.dtype, DType::F32 | DType::Bf16) {
        return Err(CheckpointError::WriteDType { dir: dir.to_owned(), dtype: options.dtype });
    }
    let target = Target::new(dir)?;
    let temporary = target.temporary()?;
    let at = temporary.path();
    let mut file = |name: &str, content: &[u8]| {
        let path = at.join(name);
        let done = create(&path).and_then(|mut sink| sink.write_all(content).and_then(|()| sink.sync()));
        done.map_err(CheckpointError::io(&path, "be written"))
    };
    file("config.json", pretty(&config_json(config, options.dtype)).as_bytes())?;
    for name in AUXILIARY {
        let source = options.aux_from.map(|from| from.join(name));
        match source.filter(|source| source.exists()) {
            Some(source) => {
                let content = fs::read(&source).map_err(CheckpointError::io(&source, "be read"))?;
                file(name, &content)?;
            }
            None if name == "generation_config.json" => file(name, pretty(&generation_json(config)).as_bytes())?,
            None => {}
        }
    }
    weights(create, at, dir, config, options, fetch)?;
    finish(at).map_err(CheckpointError::io(at, "take further files"))?;
    sync_dir(at).map_err(CheckpointError::io(at, "be synced"))?;
    target.place(temporary)
}

fn config_json(config: &ModelConfig, dtype: DType) -> Value {
    let mut raw = config.raw.clone();
    let map = raw.as_object_mut().expect("a configuration is an object");
    let name = json!(if dtype == DType::F32 { "float32" } else { "bfloat16" });
    map.shift_remove("quantization_config");
    map.shift_remove("compression_config");
    if map.contains_key("dtype") {
        map.insert("dtype".into(), name.clone());
    }
    map.insert("torch_dtype".into(), name);
    raw
}

fn generation_json(config: &ModelConfig) -> Value {
    let mut map = Map::new();
    if let Some(bos) = config.bos {
        map.insert("bos_token_id".into(), json!(bos));
    }
    match config.stop_ids[..] {
        [] => {}
        [one] => drop(map.insert("eos_token_id".into(), json!(one))),
        _ => drop(map.insert("eos_token_id".into(), json!(config.stop_ids))),
    }
    Value::Object(map)
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Parameters in files of at most `limit` bytes, in order.
fn shards(params: Vec<Param>, dtype: DType, limit: u64) -> Vec<Vec<Param>> {
    let mut shards: Vec<Vec<Param>> = vec![Vec::new()];
    let mut used = 0;
    for param in params {
        let bytes = byte_count(&param, dtype);
        if used + bytes > limit && used > 0 {
            shards.push(Vec::new());
            used = 0;
        }
        used += bytes;
        shards.last_mut().expect("never empty").push(param);
    }
    shards
}

fn byte_count(param: &Param, dtype: DType) -> u64 {
    u64::try_from(param.elements() * dtype.bytes()).expect("a length has 64 bits")
}

fn weights(
    create: Create,
    at: &Path,
    dir: &Path,
    config: &ModelConfig,
    options: &WriteOptions,
    mut fetch: impl FnMut(&Param, &mut Vec<f32>),
) -> Result<(), CheckpointError> {
    let dtype = options.dtype;
    let shards = shards(inventory(config), dtype, options.shard_bytes);
    let name = |i: usize| {
        let count = shards.len();
        if count == 1 { SINGLE.to_owned() } else { format!("model-{:05}-of-{count:05}.safetensors", i + 1) }
    };
    let mut values = Vec::new();
    for (i, shard) in shards.iter().enumerate() {
        let path = at.join(name(i));
        let io = || CheckpointError::io(&path, "be written");
        let mut sink = create(&path).map_err(io())?;
        sink.write_all(&header(shard, dtype)).map_err(io())?;
        for param in shard {
            values.clear();
            fetch(param, &mut values);
            assert_eq!(values.len(), param.elements(), "values of {} {:?}", param.name, param.shape);
            tensor(&mut *sink, &values, dtype).map_err(|fault| match fault {
                Fault::Io(source) => io()(source),
                Fault::Value { index, value } => {
                    let (dir, tensor) = (dir.to_owned(), param.name.clone());
                    CheckpointError::WriteNonFinite { dir, tensor, index, value, dtype }
                }
            })?;
        }
        sink.sync().map_err(io())?;
    }
    if shards.len() > 1 {
        let total: u64 = shards.iter().flatten().map(|param| byte_count(param, dtype)).sum();
        let map: Map<String, Value> = shards
            .iter()
            .enumerate()
            .flat_map(|(i, shard)| shard.iter().map(move |param| (i, param)))
            .map(|(i, param)| (param.name.clone(), json!(name(i))))
            .collect();
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        let path = at.join(INDEX);
        let done = create(&path).and_then(|mut sink| {
            sink.write_all(pretty(&index).as_bytes())?;
            sink.sync()
        });
        done.map_err(CheckpointError::io(&path, "be written"))?;
    }
    Ok(())
}

/// The length and the header of a file with `params` one after the other, padded so that data begin at a multiple of 8.
fn header(params: &[Param], dtype: DType) -> Vec<u8> {
    let mut map = Map::new();
    // transformers refuses files that do not say which framework laid them out.
    map.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut start = 0;
    for param in params {
        let end = start + byte_count(param, dtype);
        let entry = json!({"dtype": stored_name(dtype), "shape": param.shape, "data_offsets": [start, end]});
        map.insert(param.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(map).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let length = u64::try_from(text.len()).expect("a length has 64 bits");
    [&length.to_le_bytes(), text.as_bytes()].concat()
}

enum Fault {
    Io(io::Error),
    Value { index: usize, value: f32 },
}

/// Encodes and writes in pieces that stay in the cache.
fn tensor(sink: &mut dyn Sink, values: &[f32], dtype: DType) -> Result<(), Fault> {
    const PIECE: usize = 1 << 16;
    let mut bytes = Vec::with_capacity(PIECE * dtype.bytes());
    let mut rounded = Vec::new();
    for (i, piece) in values.chunks(PIECE).enumerate() {
        bytes.clear();
        let stored = if dtype == DType::Bf16 {
            rounded.clear();
            for &x in piece {
                let bits = bf16_from_f32(x);
                bytes.extend_from_slice(&bits.to_le_bytes());
                rounded.push(bf16_to_f32(bits));
            }
            &rounded[..]
        } else {
            piece.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
            piece
        };
        if let Some(at) = read::first_non_finite(stored) {
            return Err(Fault::Value { index: i * PIECE + at, value: stored[at] });
        }
        sink.write_all(&bytes).map_err(Fault::Io)?;
    }
    Ok(())
}

/// Where the folder goes, and what of the way to it was made for it.
struct Target {
    dir: PathBuf,
    parent: PathBuf,
    made: Vec<PathBuf>, // parents that did not exist, innermost last; taken away again on failure
}

impl Target {
    fn new(dir: &Path) -> Result<Target, CheckpointError> {
        let replace = || CheckpointError::io(dir, "be replaced");
        // A link to a folder stands for that folder.
        let dir = if dir.exists() { dir.canonicalize().map_err(replace())? } else { dir.to_owned() };
        if dir.exists() {
            let empty = fs::read_dir(&dir).map_err(replace())?.next().is_none();
            if !empty && !dir.join("config.json").exists() {
                return Err(CheckpointError::NotAModel { dir });
            }
        }
        let parent = match dir.parent() {
            Some(parent) if dir.file_name().is_some() => parent,
            _ => {
                let source = io::Error::new(io::ErrorKind::InvalidInput, "the path has no last name");
                return Err(CheckpointError::io(&dir, "be written")(source));
            }
        };
        let parent = if parent == Path::new("") { PathBuf::from(".") } else { parent.to_owned() };
        let mut made: Vec<PathBuf> = parent.ancestors().take_while(|p| !p.exists()).map(Path::to_owned).collect();
        made.retain(|p| p != Path::new(""));
        made.reverse();
        let target = Target { dir, parent, made };
        fs::create_dir_all(&target.parent).map_err(CheckpointError::io(&target.parent, "be created"))?;
        Ok(target)
    }

    fn temporary(&self) -> Result<TempDir, CheckpointError> {
        let name = self.dir.file_name().expect("checked when made").to_string_lossy();
        let prefix = format!(".{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As for any new folder, less what the umask takes; the default here would be for the owner alone.
            builder.permissions(fs::Permissions::from_mode(0o777));
        }
        builder.tempdir_in(&self.parent).map_err(CheckpointError::io(&self.parent, "hold a temporary folder"))
    }

    /// Gives the temporary folder the target's name.
    fn place(mut self, temporary: TempDir) -> Result<(), CheckpointError> {
        if self.dir.exists() {
            exchange(temporary.path(), &self.dir).map_err(CheckpointError::io(&self.dir, "be replaced"))?;
            // The old folder now has the temporary name and goes with it.
            drop(temporary);
        } else {
            fs::rename(temporary.path(), &self.dir).map_err(CheckpointError::io(&self.dir, "be named"))?;
            let _gone = temporary.keep();
        }
        self.made.clear();
        // The folder is complete and in place. Some file systems cannot sync a folder; then the name alone may be lost
        // in a power cut, and the old one stands.
        drop(sync_dir(&self.parent));
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for made in self.made.iter().rev() {
            // Only empty ones go: whoever put something there meanwhile keeps it.
            drop(fs::remove_dir(made));
        }
    }
}

/// Swaps two folders' names: in one step where the system can, else by way of a third name.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
            Ok(()) => return Ok(()),
            Err(Errno::INVAL | Errno::NOSYS) => {} // a file system or kernel without it
            Err(error) => return Err(error.into()),
        }
    }
    exchange_by_third_name(new, old)
}

fn exchange_by_third_name(new: &Path, old: &Path) -> io::Result<()> {
    let mut aside = new.as_os_str().to_owned();
    aside.push(".old");
    let aside = PathBuf::from(aside);
    fs::rename(old, &aside)?;
    if let Err(error) = fs::rename(new, old) {
        fs::rename(&aside, old)?;
        return Err(error);
    }
    fs::rename(&aside, new)
}

#[cfg(unix)]
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Elsewhere a folder cannot be opened as a file, and its entries are the file system's own concern.
#[cfg(not(unix))]
fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_change_names_without_the_systems_help() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        for path in [&new, &old] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("name"), path.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        exchange_by_third_name(&new, &old).unwrap();
        assert_eq!(fs::read(old.join("name")).unwrap(), b"new");
        assert_eq!(fs::read(new.join("name")).unwrap(), b"old");
        fs::remove_dir_all(&new).unwrap();
        exchange_by_third_name(&new, &old).unwrap_err();
        assert_eq!(fs::read(old.join("name")).unwrap(), b"new", "put back");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn shards_are_filled_in_order() {
        let param = |elements: usize| Param { name: elements.to_string(), shape: vec![elements] };
        let sizes = |limit: u64| -> Vec<usize> {
            shards([10, 10, 50, 5, 5].map(param).to_vec(), DType::F32, limit).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(1000), [5]);
        assert_eq!(sizes(80), [2, 1, 2]);
        assert_eq!(sizes(20), [1, 1, 1, 1, 1]);
        assert_eq!(sizes(1), [1, 1, 1, 1, 1], "a larger tensor has a file to itself");
    }
}
