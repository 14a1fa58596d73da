//! From a run file and overrides to a resolved configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::keys::{self, WORDS, kind, nearest};
use super::loss::STUDENT;
use super::{Config, Fault, Task};
use crate::tasks::TaskSpec;

/// Why a run file cannot be used. `at` is a file and line, or the override that set the value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML.
    #[error("{at}: not TOML: {what}")]
    Syntax {
        /// File, line and column.
        at: String,
        /// What is wrong.
        what: String,
    },
    /// An override that is not `key=value`, or whose key goes through a value.
    #[error("--set {set}: {what}")]
    Set {
        /// The override.
        set: String,
        /// What is wrong.
        what: String,
    },
    /// A key that does not exist.
    #[error("{at}: unknown key `{key}`; did you mean `{nearest}`? known here: {known}")]
    UnknownKey {
        /// Where it stands.
        at: String,
        /// The key, from the top level.
        key: String,
        /// The nearest key there is, from the top level.
        nearest: String,
        /// All keys of its table.
        known: String,
    },
    /// A required key is missing.
    #[error("{at}: `{key}` is missing: {what}")]
    MissingKey {
        /// The file.
        at: String,
        /// The key.
        key: &'static str,
        /// What it is to say.
        what: String,
    },
    /// A value of another kind than the key takes.
    #[error("{at}: `{key}` is {found}; it must be {must}")]
    Kind {
        /// Where it stands.
        at: String,
        /// The key, from the top level.
        key: String,
        /// The value and its kind.
        found: String,
        /// The kind it must be.
        must: &'static str,
    },
    /// A word that the key does not take.
    #[error("{at}: `{key}` is \"{value}\"; it must be {must}; did you mean \"{nearest}\"?")]
    Word {
        /// Where it stands.
        at: String,
        /// The key, from the top level.
        key: String,
        /// The word.
        value: String,
        /// The words it takes.
        must: String,
        /// The nearest of them.
        nearest: String,
    },
    /// A value that has a meaning which this version cannot run.
    #[error("{at}: `{key}` = \"{value}\" is not supported; the value that works is {works}")]
    Unsupported {
        /// Where it stands.
        at: String,
        /// The key, from the top level.
        key: String,
        /// The value.
        value: String,
        /// What works.
        works: String,
    },
    /// A value out of its range.
    #[error("{at}: {fault}")]
    Range {
        /// Where it stands.
        at: String,
        /// Key, value and range.
        fault: Fault,
    },
}

impl Config {
    /// Reads `path`, then applies `sets` in order: each is `a.b=value`, the value read as TOML, or taken as text if it is
    /// no TOML or the key takes text. Relative paths are taken from the file's folder, also those in `sets`; only `out` and
    /// `ring` are taken from the current one.
    ///
    /// # Errors
    /// The first thing that is wrong, with where it stands.
    pub fn load(path: &Path, sets: &[String]) -> Result<Config, ConfigError> {
        let read = |source| ConfigError::Read { file: path.to_path_buf(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        // The folder of a bare file name is the current one, which `absolute` puts in front.
        let folder = std::path::absolute(path).map_err(read)?.parent().map(Path::to_path_buf).unwrap_or_default();
        let here = std::env::current_dir().map_err(read)?;
        if let Some(folder) = [&folder, &here].into_iter().find(|folder| folder.to_str().is_none()) {
            let what = format!(
                "the path {} is not Unicode, and a run's file has to be; work in another folder",
                folder.display()
            );
            return Err(read(std::io::Error::new(std::io::ErrorKind::InvalidInput, what)));
        }
        parse(&text, &path.display().to_string(), sets, &folder, &here)
    }
}

/// [`Config::load`] on text: `file` is only named, `folder` and `here` are absolute.
pub(super) fn parse(
    text: &str,
    file: &str,
    sets: &[String],
    folder: &Path,
    here: &Path,
) -> Result<Config, ConfigError> {
    let mut table: Table = toml::from_str(text).map_err(|error| syntax(file, text, &error))?;
    let mut origins = Origins { file: file.to_string(), places: BTreeMap::new() };
    if let Ok(spanned) = DeTable::parse(text) {
        origins.collect(text, "", spanned.get_ref());
    }
    for set in sets {
        apply(&mut table, set, &mut origins)?;
    }
    require_task(&table, &origins)?;
    let task = table.get("task").and_then(Value::as_table).cloned().unwrap_or_default();
    check_table(&table, &keys::known(&task), "", &origins)?;
    check_words(&table, &origins)?;
    require(&table, &origins)?;

    fill_max_tokens(&mut table);
    fill_schedule(&mut table);
    let mut config: Config = table.try_into().map_err(|error: toml::de::Error| {
        // Keys, kinds and words were checked above with the types' own words, so this is for what they cannot say.
        ConfigError::Syntax { at: file.to_string(), what: error.to_string().trim().to_string() }
    })?;
    for path in [&mut config.student, &mut config.teacher] {
        *path = folder.join(&*path);
    }
    config.budget.resolve(folder);
    config.loss.fill();
    config.noise.iter_mut().for_each(super::Noise::fill);
    let is_path = |reference: &&mut String| !reference.is_empty() && **reference != STUDENT;
    if let Some(reference) = config.loss.reference.as_mut().filter(is_path) {
        *reference = folder.join(&*reference).into_os_string().into_string().map_err(|path| {
            let fault = Fault { key: "loss.reference".into(), value: format!("{path:?}"), must: "Unicode".into() };
            ConfigError::Range { at: origins.at("loss.reference"), fault }
        })?;
    }
    if let Task::Prompts(task) = &mut config.task {
        task.prompts = folder.join(&task.prompts);
        for path in task.teachers.values_mut().filter(|path| !path.as_os_str().is_empty()) {
            *path = folder.join(&*path);
        }
    }
    let recipe = folder.join(&config.rollout.recipe);
    let built_in = engine::recipe::BUILT_IN.contains(&config.rollout.recipe.as_str());
    if !built_in && !config.rollout.recipe.is_empty() && engine::recipe::is_file(&recipe) {
        config.rollout.recipe = recipe.into_os_string().into_string().map_err(|path| ConfigError::Range {
            at: origins.at("rollout.recipe"),
            fault: Fault { key: "rollout.recipe".into(), value: format!("{path:?}"), must: "Unicode".into() },
        })?;
    }
    if config.out.as_os_str().is_empty() {
        let fault = Fault { key: "out".into(), value: "\"\"".into(), must: "the name of a folder".into() };
        return Err(ConfigError::Range { at: origins.at("out"), fault });
    }
    config.out = here.join(&config.out);
    config.ring = config.ring.map(|ring| if ring.as_os_str().is_empty() { ring } else { here.join(ring) });
    config.check().map_err(|fault| ConfigError::Range { at: origins.at(&fault.key), fault })?;
    Ok(config)
}

fn syntax(file: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or(text);
            let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
            format!("{file}:{}:{column}", line_at(text, span.start))
        }
        None => file.to_string(),
    };
    ConfigError::Syntax { at, what: error.message().to_string() }
}

fn line_at(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|&byte| byte == b'\n').count() + 1
}

/// Where each key was set.
struct Origins {
    file: String,
    places: BTreeMap<String, String>,
}

impl Origins {
    /// The place of `key`, or else of the table it would stand in, or else the file.
    fn at(&self, key: &str) -> String {
        let mut key = key;
        loop {
            if let Some(place) = self.places.get(key) {
                return place.clone();
            }
            match key.rsplit_once('.') {
                Some((table, _)) => key = table,
                None => return self.file.clone(),
            }
        }
    }

    fn collect(&mut self, text: &str, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = join(prefix, key.get_ref());
            self.places.insert(path.clone(), format!("{}:{}", self.file, line_at(text, key.span().start)));
            if let DeValue::Table(inner) = value.get_ref() {
                self.collect(text, &path, inner);
            }
        }
    }
}

fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_string() } else { format!("{prefix}.{key}") }
}

/// Applies one override.
fn apply(table: &mut Table, set: &str, origins: &mut Origins) -> Result<(), ConfigError> {
    let wrong = |what: String| ConfigError::Set { set: set.to_string(), what };
    let (path, raw) = set.split_once('=').ok_or_else(|| wrong("write key=value, such as train.lr=1e-3".to_string()))?;
    let (path, raw) = (path.trim(), raw.trim());
    let segments: Vec<&str> = path.split('.').map(str::trim).collect();
    // A word in the file gives way to a table: `schedule = "sync"` and --set schedule.steps_off=1.
    if segments.len() > 1 && segments[0] == "schedule" && table.get("schedule").is_some_and(Value::is_str) {
        table.remove("schedule");
    }
    // And a certificate's path: `budget = "c.json"` and --set budget.patience=3.
    if segments.len() > 1
        && segments[0] == "budget"
        && let Some(Value::String(word)) = table.get("budget").cloned()
    {
        let held = (word != "off").then(|| ("certificate".to_owned(), Value::String(word)));
        table.insert("budget".to_owned(), Value::Table(held.into_iter().collect()));
    }
    if segments.iter().any(|segment| segment.is_empty()) {
        return Err(wrong("the key has an empty part; write it as in train.lr=1e-3".to_string()));
    }
    let value = match raw.parse::<Value>() {
        Ok(value) if value.is_str() || value.is_table() || !takes_text(&segments) => value,
        _ => Value::String(raw.to_string()),
    };
    let (last, tables) = segments.split_last().expect("split gives at least one part");
    let mut inner = table;
    for segment in tables {
        let entry = inner.entry(segment.to_string()).or_insert_with(|| Value::Table(Table::new()));
        inner = match entry {
            Value::Table(table) => table,
            other => return Err(wrong(format!("`{segment}` is {}, not a table", kind(other)))),
        };
    }
    inner.insert((*last).to_string(), value);
    let path = segments.join(".");
    // What the file said below this key no longer stands.
    let below = format!("{path}.");
    origins.places.retain(|key, _| !key.starts_with(&below));
    origins.places.insert(path, format!("--set {set}"));
    Ok(())
}

/// Whether a key takes text, so that `out=2024` is a folder's name and not a number.
fn takes_text(segments: &[&str]) -> bool {
    let mut known = keys::known(&Table::new());
    known.insert("task".to_string(), Value::Table(keys::every_task()));
    let (last, tables) = segments.split_last().expect("at least one part");
    let mut inner = &known;
    for segment in tables {
        match inner.get(*segment) {
            Some(Value::Table(table)) => inner = table,
            _ => return false,
        }
    }
    inner.get(*last).is_some_and(Value::is_str)
}

/// The task's own keys depend on which task it is, so that comes first.
fn require_task(table: &Table, origins: &Origins) -> Result<(), ConfigError> {
    let Some(Value::Table(task)) = table.get("task") else {
        return Ok(()); // missing or of another kind: said where all keys are
    };
    match (task.contains_key("name"), task.contains_key("prompts")) {
        (true, true) => Err(ConfigError::Range {
            at: origins.at("task.prompts"),
            fault: Fault {
                key: "task".to_string(),
                value: "both `name` and `prompts`".to_string(),
                must: "one of them: a procedural task, or prompts from a file".to_string(),
            },
        }),
        (true, false) => check_words(table, origins),
        (false, true) => Ok(()),
        (false, false) => {
            check_table(task, &keys::every_task(), "task", origins)?;
            Err(ConfigError::MissingKey {
                at: origins.at("task"),
                key: "task.name",
                what: format!("one of {}; or `task.prompts`, a JSONL file", TaskSpec::NAMES.join(", ")),
            })
        }
    }
}

/// The table whose keys are names.
const TEACHERS: &str = "task.teachers";

fn check_table(table: &Table, known: &Table, prefix: &str, origins: &Origins) -> Result<(), ConfigError> {
    for (key, value) in table {
        let path = join(prefix, key);
        let Some(example) = known.get(key) else {
            return Err(unknown_key(&path, key, known, prefix, origins));
        };
        match (example, value) {
            // Its keys are the file's own names.
            (Value::Table(_), Value::Table(table)) if path == TEACHERS => {
                let any = table.keys().map(|name| (name.clone(), Value::String(String::new()))).collect();
                check_table(table, &any, &path, origins)?;
            }
            (Value::Table(known), Value::Table(table)) => check_table(table, known, &path, origins)?,
            (_, Value::Table(table)) if path == "schedule" => check_table(table, &keys::schedule(), &path, origins)?,
            (_, Value::Table(table)) if path == "budget" => check_table(table, &keys::budget(), &path, origins)?,
            (Value::Integer(_), &Value::Integer(value)) => {
                // The seed alone has 64 bits.
                let max =
                    if matches!(&path[..], "seed" | "rollout.kv_memory") { i64::MAX } else { i64::from(u32::MAX) };
                if !(0..=max).contains(&value) {
                    let fault = Fault { key: path.clone(), value: value.to_string(), must: format!("0 to {max}") };
                    return Err(ConfigError::Range { at: origins.at(&path), fault });
                }
            }
            (Value::Float(_), Value::Integer(_)) => {}
            _ if example.same_type(value) => {}
            _ => {
                let found = match value {
                    Value::Table(_) | Value::Array(_) => kind(value).to_string(),
                    _ => format!("{value}, {}", kind(value)),
                };
                return Err(ConfigError::Kind { at: origins.at(&path), key: path, found, must: kind(example) });
            }
        }
    }
    Ok(())
}

fn unknown_key(path: &str, key: &str, known: &Table, prefix: &str, origins: &Origins) -> ConfigError {
    let near = || join(prefix, nearest(key, known.keys().map(String::as_str)).expect("every table has keys"));
    // At the top level a key may have lost its table: `lr` for `train.lr`.
    let elsewhere = || {
        let all = keys::known(&Table::new());
        let tables = all.iter().filter_map(|(name, value)| Some((name, value.as_table()?)));
        let found = tables.into_iter().find(|(_, table)| table.contains_key(key)).map(|(name, _)| join(name, key));
        found.filter(|found| found != path)
    };
    ConfigError::UnknownKey {
        at: origins.at(path),
        key: path.to_string(),
        nearest: elsewhere().unwrap_or_else(near),
        known: known.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
    }
}

fn check_words(table: &Table, origins: &Origins) -> Result<(), ConfigError> {
    for words in &WORDS {
        let (outer, key) = words.key.rsplit_once('.').unwrap_or(("", words.key));
        let inner = if outer.is_empty() { Some(table) } else { table.get(outer).and_then(Value::as_table) };
        let Some(value) = inner.and_then(|table| table.get(key)).and_then(Value::as_str) else { continue };
        let (at, key, value_text) = (origins.at(words.key), words.key.to_string(), value.to_string());
        if let Some(why) = super::loss::no_loss(value).filter(|_| words.key == "loss.kind") {
            let fault = Fault { key, value: format!("\"{value}\""), must: why.to_string() };
            return Err(ConfigError::Range { at, fault });
        }
        if words.refused.contains(&value) {
            let works = quoted(words.taken);
            return Err(ConfigError::Unsupported { at, key, value: value_text, works });
        }
        if !words.taken.contains(&value) {
            let nearest = nearest(value, words.taken.iter().copied()).expect("every key has words").to_string();
            return Err(ConfigError::Word { at, key, value: value_text, must: quoted(words.taken), nearest });
        }
    }
    Ok(())
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ")
}

fn require(table: &Table, origins: &Origins) -> Result<(), ConfigError> {
    for (key, what) in [
        ("student", "the folder of the model to train"),
        ("teacher", "the folder of the model to learn from"),
        ("task", "a table that says what to train on: `name`, or `prompts`"),
    ] {
        if !table.contains_key(key) {
            return Err(ConfigError::MissingKey { at: origins.file.clone(), key, what: what.to_string() });
        }
        if table.get(key).and_then(Value::as_str) == Some("") {
            let fault = Fault { key: key.to_string(), value: "empty".to_string(), must: what.to_string() };
            return Err(ConfigError::Range { at: origins.at(key), fault });
        }
    }
    if table.get("schedule").and_then(Value::as_table).is_some_and(Table::is_empty) {
        let (at, what) = (origins.at("schedule"), "how many updates rollouts are behind".to_string());
        return Err(ConfigError::MissingKey { at, key: "schedule.steps_off", what });
    }
    if table.get("budget").and_then(Value::as_table).is_some_and(|table| !table.contains_key("certificate")) {
        let what = "the path of what `leeway calibrate` wrote; --set budget=off takes the budget away".to_owned();
        return Err(ConfigError::MissingKey { at: origins.at("budget"), key: "budget.certificate", what });
    }
    Ok(())
}

/// A procedural task says how long its completions are, unless the file does.
fn fill_max_tokens(table: &mut Table) {
    let Some(task) = table.get("task").cloned().and_then(|task| task.try_into::<TaskSpec>().ok()) else { return };
    if task.check().is_err() {
        return; // said when all values are checked
    }
    let tokens = i64::try_from(task.completion_max()).expect("a checked task is small");
    let rollout = table.entry("rollout").or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(rollout) = rollout {
        rollout.entry("max_tokens").or_insert(Value::Integer(tokens));
    }
}

/// How stale rollouts may be, and what becomes of running ones, goes by the schedule unless the file says it.
fn fill_schedule(table: &mut Table) {
    let (staleness, in_flight) = match table.get("schedule") {
        Some(Value::Table(schedule)) => match schedule.get("steps_off") {
            Some(steps) => (steps.clone(), "drain"),
            None => return, // an empty table was refused above
        },
        Some(Value::String(word)) if word == "async" => (Value::Integer(2), "keep"),
        _ => return,
    };
    let rollout = table.entry("rollout").or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(rollout) = rollout {
        rollout.entry("staleness_max").or_insert(staleness);
        rollout.entry("in_flight").or_insert_with(|| in_flight.into());
    }
}
