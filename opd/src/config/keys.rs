//! Which keys there are, what kind of value each takes, and which words: read off the configuration's own types, so
//! that a new field is known here as soon as it exists.

use toml::{Table, Value};

use super::{Checkpoint, Config, Dynamics, Held, Loss, Noise, Offline, PromptTask, StepsOff, Task, defaults};
use crate::tasks::TaskSpec;

/// The words that a key takes, and those that mean something but cannot be run.
pub(super) struct Words {
    pub key: &'static str,
    pub taken: &'static [&'static str],
    pub refused: &'static [&'static str],
}

pub(super) const WORDS: [Words; 13] = [
    Words { key: "schedule", taken: &["sync", "async"], refused: &[] },
    Words { key: "task.name", taken: &TaskSpec::NAMES, refused: &[] },
    Words {
        key: "loss.kind",
        taken: &[
            "reverse-kl",
            "forward-kl",
            "jsd",
            "skewed-reverse-kl",
            "skewed-forward-kl",
            "sampled",
            "k2",
            "k3-straight-through",
            "head-tail",
            "grpo",
        ],
        refused: &[],
    },
    Words { key: "loss.weight", taken: &["none", "token-tis", "sequence-tis", "mask", "prefix-snis"], refused: &[] },
    Words { key: "loss.window", taken: &["token", "sequence", "geometric"], refused: &[] },
    Words { key: "loss.ratio", taken: &["naive", "recomputed"], refused: &[] },
    Words { key: "loss.support", taken: &["dense", "teacher-top-k", "student-top-k"], refused: &[] },
    Words { key: "loss.target", taken: &["teacher", "extrapolated", "bounded", "trust-region"], refused: &[] },
    Words { key: "rollout.in_flight", taken: &["drain", "keep", "recompute"], refused: &[] },
    Words { key: "noise.kind", taken: &["weights", "norm-gains", "logits", "staleness"], refused: &[] },
    Words { key: "noise.draw", taken: &["fresh", "frozen"], refused: &[] },
    Words { key: "offline.loss", taken: &["forward-kl", "sft"], refused: &[] },
    Words { key: "train.precision", taken: &["bf16", "f32"], refused: &[] },
];

/// Every key with a value of its kind, with the tables of `task` for a file whose task this is.
pub(super) fn known(task: &Table) -> Table {
    let by_name = task.get("name").and_then(Value::as_str).and_then(TaskSpec::example).map(Task::Procedural);
    let task = match (task.contains_key("prompts"), by_name) {
        (true, _) => table(&prompt_task()),
        (false, Some(task)) => table(&task),
        (false, None) => every_task(),
    };
    let mut known = without_task();
    known.insert("task".to_string(), Value::Table(task));
    known
}

/// The keys of `schedule` where it is a table.
pub(super) fn schedule() -> Table {
    table(&StepsOff { steps_off: 1 })
}

/// The keys of `budget` where it is a table.
pub(super) fn budget() -> Table {
    table(&Held::by("certificate.json".into()))
}

/// Every key of any task.
pub(super) fn every_task() -> Table {
    let mut all = table(&prompt_task());
    for name in TaskSpec::NAMES {
        all.extend(table(&Task::Procedural(TaskSpec::example(name).expect("a name of a task"))));
    }
    all
}

fn without_task() -> Table {
    let mut known = table(&Config {
        student: "student".into(),
        teacher: "teacher".into(),
        ring: Some("ring".into()),
        updates: defaults::updates(),
        seed: 0,
        schedule: super::Schedule::Sync,
        wait_s: defaults::wait_s(),
        budget: super::Budget::Off,
        out: defaults::out(),
        task: prompt_task(),
        loss: Loss::every_key(),
        rollout: super::Rollout { kv_memory: Some(0), ..super::Rollout::default() },
        train: super::Train::default(),
        eval: super::Eval::default(),
        checkpoint: Some(Checkpoint::default()),
        dynamics: Some(Dynamics::default()),
        noise: Some(Noise::every_key()),
        offline: Some(Offline::default()),
    });
    known.remove("task");
    known
}

fn prompt_task() -> Task {
    Task::Prompts(PromptTask {
        prompts: "prompts.jsonl".into(),
        max_prompt: defaults::max_prompt(),
        teachers: [("name".to_owned(), "teacher".into())].into(),
    })
}

fn table(value: &impl serde::Serialize) -> Table {
    Table::try_from(value).expect("plain data")
}

/// The nearest of `words`.
pub(super) fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let alike = |known: &str| {
        let known = known.replace('-', "_");
        // One slip of the finger makes a short word quite unlike itself, so such words come first.
        let slip = strsim::osa_distance(&word, &known) <= 1;
        strsim::jaro_winkler(&word, &known) + f64::from(u8::from(slip))
    };
    words.into_iter().max_by(|a, b| alike(a).total_cmp(&alike(b)))
}

/// The kind of a value, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text in quotes",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}
