//! What a run keeps for people beside its logs: event files and sampled completions. None of it ever stops a run: what
//! cannot be written is said once, and left.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use engine::rollout::Rollout;
use engine::tokenizer::Tokenizer;
use opd::events::Events;
use opd::source::Asked;
use opd::train::Trainer;
use serde_json::Value;

#[derive(Debug)]
pub struct Views {
    out: PathBuf,
    events: Option<Events>,
    /// Whether completions are still kept.
    samples: bool,
    tokenizer: Option<Tokenizer>,
}

impl Views {
    /// `resumed`: updates done already, of a run that goes on.
    pub fn open(out: &Path, student: &Path, resumed: Option<u64>) -> Views {
        let events = said("events", Events::create(out, resumed));
        let tokenizer = Tokenizer::open(student).ok().flatten(); // the run itself has opened it before
        Views { out: out.to_owned(), events, samples: true, tokenizer }
    }

    /// A line of `metrics.jsonl`.
    pub fn metrics(&mut self, line: &Value) {
        if let Some(events) = &mut self.events
            && said("events", events.line(line)).is_none()
        {
            self.events = None;
        }
    }

    /// Keeps some completions of the trainer's last update; `lines` are those of `rollouts.jsonl`.
    pub fn samples(&mut self, trainer: &Trainer, rollouts: &[(Asked, Rollout)], lines: impl Fn(usize) -> Value) {
        if self.samples {
            self.samples = said("samples", self.keep(trainer, rollouts, lines)).is_some();
        }
    }

    fn keep(&self, trainer: &Trainer, rollouts: &[(Asked, Rollout)], lines: impl Fn(usize) -> Value) -> io::Result<()> {
        let config = trainer.config();
        let mut kl = trainer.token_kl();
        let lists: Vec<&[f64]> = rollouts
            .iter()
            .map(|(_, rollout)| {
                let (own, rest) = kl.split_at(rollout.ids.len());
                kl = rest;
                own
            })
            .collect();
        let mut text = String::new();
        for at in opd::samples::chosen(config.seed, trainer.updates(), rollouts.len()) {
            let (asked, rollout) = &rollouts[at];
            let mut line = lines(at);
            line["kl_teacher"] = lists[at].into();
            line["correct"] = trainer.is_correct(asked, rollout).into();
            text += &line.to_string();
            text.push('\n');
        }
        let path = self.out.join("samples.jsonl");
        fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())?;
        let origin = trainer.origin();
        let made_by = [
            ("student", origin.student),
            ("teacher", origin.teacher),
            ("recipe", format!("{} ({})", config.rollout.recipe, trainer.recipe_hash())),
            ("device", origin.device),
            ("seed", config.seed.to_string()),
            ("temperature", config.rollout.temperature.to_string()),
        ];
        opd::samples::write(&self.out, self.tokenizer.as_ref(), &made_by).map(drop)
    }
}

/// The value, or a warning.
fn said<T>(what: &str, result: io::Result<T>) -> Option<T> {
    result.map_err(|error| eprintln!("warning: no more {what} of this run: {error}")).ok()
}
