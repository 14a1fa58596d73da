//! `budget` in a run: the check before it begins, the watch over its updates, and what is lowered when mismatch stays over.

use std::fs;
use std::path::Path;

use budget::admission::Verdict;
use budget::guard::{Guard, Lever, Levers, Parts, Settings, State, lever};
use engine::engine::Device;
use opd::config::{Budget, Config, Held, InFlight, Schedule};
use opd::train::{InForce, Lower, Trainer, UpdateReport};
use serde_json::{Value, json};

use super::super::admit::{Checked, Judge, PROMPTS};
use super::super::table::Table;
use super::super::{Failure, Global};
use super::nats;

/// Of the keys of `admit`, those that a run keeps.
const KEPT: [&str; 16] = [
    "certificate",
    "config_hash",
    "verdict",
    "family",
    "budget_nats",
    "limit_nats",
    "at_least",
    "growth",
    "d_nats",
    "ci95",
    "ucb95",
    "drift",
    "by_source",
    "prompts",
    "pilot_updates",
    "wall_s",
];

/// What becomes of a run before it begins.
pub enum Begun {
    /// It is not admitted.
    Rejected(Box<Checked>),
    /// It goes on, with a budget or without.
    Goes(Option<Box<Watch>>),
}

/// The watch over a run.
pub struct Watch {
    guard: Guard,
    /// The verdict, as it stands in `metrics.jsonl`.
    record: Value,
    /// Whether it stands there already.
    recorded: bool,
    /// What was lowered, and when.
    fallbacks: Vec<Value>,
    /// An update after which something is to be lowered.
    due: Option<UpdateReport>,
}

/// Checks a run that has a budget, unless it goes on and was checked when it began.
pub fn begin(config: &Config, resume: bool, device: &Device, global: &Global) -> Result<Begun, Failure> {
    let Budget::Held(held) = &config.budget else {
        eprintln!("budget off: mismatch is measured, and not held in bounds");
        return Ok(Begun::Goes(None));
    };
    if resume {
        opd::train::check_same(config)?;
        if let Some((record, fallbacks)) = recorded(&config.out)? {
            let guard = guard(held, &record, State::default())?;
            return Ok(Begun::Goes(Some(Box::new(Watch { guard, record, recorded: true, fallbacks, due: None }))));
        }
    }
    let judge = Judge::open(&held.certificate)?;
    let mut pilot = config.clone();
    if pilot.ring.take().is_some() {
        eprintln!("the check before the run has the teacher in this process; the one elsewhere is asked after it");
    }
    let checked = judge.check(&pilot, device.clone(), None, PROMPTS, global)?;
    if checked.verdict() == Verdict::Reject {
        return Ok(Begun::Rejected(Box::new(checked)));
    }
    let object = checked.object();
    let mut record = json!({"update": 0});
    for key in KEPT {
        record[key] = object[key].clone();
    }
    let number = |key: &str| nats(object[key].as_f64().unwrap_or(f64::NAN));
    eprintln!(
        "{}: D {} before growth, at most {}; budget {} nats/token, lower limit {}; {:.1} s",
        match checked.verdict() {
            Verdict::Gray => "gray, it cannot be told whether this run is within its budget; it goes on and is watched",
            _ => "admitted",
        },
        number("d_nats"),
        number("ucb95"),
        number("budget_nats"),
        number("limit_nats"),
        object["wall_s"].as_f64().unwrap_or(0.0)
    );
    let guard = guard(held, &record, State::default())?;
    Ok(Begun::Goes(Some(Box::new(Watch { guard, record, recorded: false, fallbacks: Vec::new(), due: None }))))
}

fn guard(held: &Held, record: &Value, state: State) -> Result<Guard, Failure> {
    let limit_nats = record["budget_nats"].as_f64().filter(|&nats| nats >= 0.0);
    let limit_nats = limit_nats.ok_or("metrics.jsonl: the line `budget` has no `budget_nats`: begin the run anew")?;
    let Held { patience, ewma: weight, remeasure, .. } = *held;
    Ok(Guard::new(Settings { limit_nats, patience, weight, remeasure }, state))
}

/// The verdict and what was lowered, of a run that was interrupted.
fn recorded(out: &Path) -> Result<Option<(Value, Vec<Value>)>, Failure> {
    let path = out.join("metrics.jsonl");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{}: {e}", path.display()).into()),
    };
    // A last line that was cut off is no line yet.
    let mut lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut of =
        |key: &str| -> Vec<Value> { lines.iter_mut().filter_map(|line| line.get_mut(key)).map(Value::take).collect() };
    let (record, fallbacks) = (of("budget").into_iter().next(), of("fallback"));
    Ok(record.map(|record| (record, fallbacks)))
}

impl Watch {
    /// Goes on where the run's checkpoint was. What is still to be written to `metrics.jsonl` comes back.
    pub fn go_on(&mut self, trainer: &Trainer) -> Result<Option<Value>, Failure> {
        let updates = trainer.updates();
        self.fallbacks.retain(|fallback| fallback["update"].as_u64().is_some_and(|update| update <= updates));
        if let Some(kept) = trainer.kept() {
            let state = serde_json::from_value(kept.clone()).map_err(|e| {
                format!("the newest checkpoint's trainer.json: `guard`: {e}; it was written by another version")
            })?;
            self.guard = Guard::new(*self.guard.settings(), state);
        }
        Ok((!std::mem::replace(&mut self.recorded, true)).then(|| json!({"budget": self.record})))
    }

    /// Takes an update; what is added to its line comes back.
    pub fn updated(&mut self, trainer: &Trainer, report: &UpdateReport) -> Value {
        // A run that is n steps off is to have the same bits when it was interrupted, and then D of its first updates cannot be
        // measured: there k3, which the logged logprobs always give, has the decision alone. So it has where running rollouts
        // keep keys and values of earlier versions, which D does not see, and where some tokens have no D.
        let config = trainer.config();
        let exact = !matches!(config.schedule, Schedule::StepsOff(_))
            && config.rollout.in_flight != InFlight::Keep
            && report.age.as_ref().is_none_or(|age| age.unmeasured == 0);
        if self.guard.watch(report.k3, exact.then_some(report.mismatch_nats)) {
            self.due = Some(report.clone());
        }
        let state = self.guard.state();
        json!({"ewma_nats": state.average, "over": state.over})
    }

    /// Lowers what is to be lowered after the update that was taken last, and sees to it that the next checkpoint knows. The
    /// line of `metrics.jsonl` and the words come back.
    pub fn act(&mut self, trainer: &mut Trainer) -> Result<Option<(Value, String)>, Failure> {
        let acted = match self.due.take() {
            Some(report) => Some(self.lower(trainer, &report)?),
            None => None,
        };
        trainer.keep(json!(self.guard.state()));
        Ok(acted)
    }

    fn lower(&mut self, trainer: &mut Trainer, report: &UpdateReport) -> Result<(Value, String), Failure> {
        let by = report.by_source;
        let parts = Parts { numerics: by.numerics, staleness: by.staleness, noise: by.noise.unwrap_or(0.0) };
        let levers =
            Levers { staleness: trainer.can_lower(Lower::Staleness), recipe: trainer.can_lower(Lower::Recipe) };
        let lever = lever(&parts, levers);
        let (Settings { limit_nats, patience, .. }, average) = (*self.guard.settings(), self.guard.state().average);
        let (over, update) = (self.guard.state().over, report.update);
        let from = described(trainer);
        match lever {
            Some(Lever::Staleness) => trainer.lower(Lower::Staleness)?,
            Some(Lever::Recipe) => trainer.lower(Lower::Recipe)?,
            None => {}
        }
        let (to, words) = match lever {
            Some(lever) => {
                self.guard.lowered();
                (described(trainer), now(lever, &trainer.in_force()))
            }
            None => {
                self.guard.spend();
                let noise = trainer.config().noise.is_some();
                let why = if noise {
                    "what is left is injected noise, which is on purpose"
                } else {
                    "nothing is left to lower"
                };
                (Value::Null, format!("{why}; the run goes on, over its budget"))
            }
        };
        let most = if parts.noise > parts.staleness && parts.noise > 0.0 {
            "noise"
        } else if parts.staleness >= parts.numerics {
            "staleness"
        } else if parts.numerics.is_nan() {
            "not measured"
        } else {
            "numerics"
        };
        let fallback = json!({
            "update": update, "lowered": lever, "reason": format!("over the budget for {over} updates, at least {patience}; most of D: {most}"),
            "from": from, "to": to, "ewma_nats": average, "d_nats": report.mismatch_nats, "limit_nats": limit_nats,
        });
        self.fallbacks.push(fallback.clone());
        let said = format!(
            "update {update}: mismatch over the budget of {} nats/token for {over} updates (average {}, D {}, most of it {most}): {words}",
            nats(limit_nats),
            nats(average.unwrap_or(f64::NAN)),
            nats(report.mismatch_nats),
        );
        Ok((json!({"fallback": fallback}), said))
    }
}

/// What rollouts are by.
fn described(trainer: &Trainer) -> Value {
    let InForce { recipe, staleness_max } = trainer.in_force();
    json!({"recipe": recipe, "recipe_hash": trainer.recipe_hash(), "staleness_max": staleness_max})
}

fn now(lever: Lever, in_force: &InForce) -> String {
    match lever {
        Lever::Staleness if in_force.staleness_max == 0 => "rollouts take turns with updates from now on".to_owned(),
        Lever::Staleness => format!("rollouts are at most {} versions behind from now on", in_force.staleness_max),
        Lever::Recipe => format!("rollouts are in recipe {} from now on", in_force.recipe),
    }
}

/// `budget` and `fallbacks` of the result.
pub fn result(watch: Option<&Watch>) -> (Value, Value) {
    match watch {
        None => (json!("off"), json!([])),
        Some(watch) => {
            let mut record = watch.record.clone();
            record.as_object_mut().map(|record| record.shift_remove("update"));
            (record, json!(watch.fallbacks))
        }
    }
}

/// What the table of mismatch says of it.
pub fn rows(watch: Option<&Watch>, table: &mut Table) {
    let Some(watch) = watch else {
        return table.row(["budget".to_owned(), "off, not held in bounds".to_owned()]);
    };
    let verdict = watch.record["verdict"].as_str().unwrap_or("-");
    table.row([format!("budget ({verdict})"), nats(watch.guard.settings().limit_nats)]);
    for fallback in &watch.fallbacks {
        let to = &fallback["to"];
        let now = match (fallback["lowered"].as_str(), to["staleness_max"].as_u64()) {
            (Some("recipe"), _) => format!("recipe {}", to["recipe"].as_str().unwrap_or("-")),
            (Some(_), Some(0)) => "in turns with updates".to_owned(),
            (Some(_), versions) => format!("at most {} versions behind", versions.unwrap_or(0)),
            (None, _) => "over, nothing left to lower".to_owned(),
        };
        table.row([format!("from update {} on", fallback["update"].as_u64().unwrap_or(0) + 1), now]);
    }
}
