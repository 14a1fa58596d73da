//! What a run is known by: hashes of its configuration with hashes in the place of paths, so that a moved folder is the same.

use crate::config::{Config, Loss, Task};
use crate::train::Origin;

/// BLAKE3 of a table as JSON without spaces, in hexadecimal.
fn hash(table: &toml::Table) -> String {
    blake3::hash(serde_json::to_string(table).expect("plain data").as_bytes()).to_hex().to_string()
}

/// The table of the loss, a reference by its hash.
fn loss_table(loss: &Loss, origin: &Origin) -> toml::Table {
    let mut table = toml::Table::try_from(loss).expect("plain data");
    if let Some(reference) = &origin.reference {
        table.insert("reference".to_owned(), reference.clone().into());
    }
    table
}

/// The table of the task, prompts and further teachers by their hashes.
fn task_table(task: &Task, origin: &Origin) -> toml::Table {
    let mut table = toml::Table::try_from(task).expect("plain data");
    if let Some(prompts) = &origin.prompts {
        table.insert("prompts".to_owned(), prompts.clone().into());
    }
    if !origin.teachers.is_empty() {
        let hashes = toml::Table::try_from(&origin.teachers).expect("plain data");
        table.insert("teachers".to_owned(), hashes.into());
    }
    table
}

/// Hash of `[loss]`, resolved.
#[must_use]
pub fn loss_hash(config: &Config, origin: &Origin) -> String {
    hash(&loss_table(&config.loss, origin))
}

/// Hash of `[task]`, resolved.
#[must_use]
pub fn task_hash(config: &Config, origin: &Origin) -> String {
    hash(&task_table(&config.task, origin))
}

/// Hash of what all runs of a calibration have in common: the resolved run file without seed, `out` and `wait_s`.
pub(super) fn config_hash(config: &Config, origin: &Origin) -> String {
    let mut table = config.known_by();
    for key in ["seed", "noise"] {
        table.remove(key);
    }
    let mut set = |key: &str, value: toml::Value| drop(table.insert(key.to_owned(), value));
    set("student", origin.student.clone().into());
    set("teacher", origin.teacher.clone().into());
    set("task", task_table(&config.task, origin).into());
    set("loss", loss_table(&config.loss, origin).into());
    set("recipe_hash", origin.recipe_hash.clone().into());
    hash(&table)
}
