//! `leeway admit`: a rollout configuration against a certificate.

mod repair;
mod screen;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use budget::admission::{self, Decision, Evidence, Limits, Verdict};
use budget::certificate::{Certificate, Kind};
use budget::drift::paired_difference;
use budget::mismatch::{Cluster, RatioEstimate};
use clap::Args;
use engine::engine::Device;
use opd::admit::{Pilot, age_max, pilot_updates};
use opd::clock::Stopwatch;
use opd::config::{Config, NoiseDraw, NoiseKind};
use opd::meter::Sum;
use opd::train::{Origin, Probed};
use serde_json::{Value, json};

use super::calibrate::settings;
use super::{Failure, Global};

/// Most prompts that are sampled before it is called gray, unless told.
pub const PROMPTS: u32 = 256;
/// Prompts of the first look; every further look has twice as many.
const FIRST: u32 = 16;
/// Updates of the run by which the cost of a check is told beside the run's own.
const LONG_RUN: f64 = 2000.0;

#[derive(Debug, Args)]
pub struct AdmitArgs {
    /// The run file whose rollouts are judged: recipe, schedule, staleness and noise.
    file: PathBuf,
    /// What `leeway calibrate` wrote for this student, teacher, loss and length.
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// Override a key of the run file, as in `train`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Updates of the pilot; past the warm-up, as many as rollouts may be behind, and four more, unless given.
    #[arg(long, value_name = "N")]
    pilot: Option<u32>,
    /// Most prompts that are sampled before it is called gray.
    #[arg(long, value_name = "N", default_value_t = PROMPTS)]
    prompts: u32,
}

/// All that is known at the end.
struct Outcome {
    decision: Decision,
    limits: Limits,
    family: Kind,
    evidence: Evidence,
    probed: Probed,
    staleness: Option<(f64, f64)>,
    age: u32,
    repair: Option<repair::Blame>,
    pilot: u32,
    update_s: f64,
    wall_s: f64,
}

pub fn run(args: &AdmitArgs, global: &Global) -> Result<ExitCode, Failure> {
    let certificate = Judge::open(&args.certificate)?;
    let config = Config::load(&args.file, &args.set)?;
    if args.prompts < FIRST {
        return Err(format!("--prompts is {}; at least {FIRST} are needed to tell anything", args.prompts).into());
    }
    let device = global.device(|| opd::train::fits_cuda(&config))?;
    let checked = certificate.check(&config, device, args.pilot, args.prompts, global)?;
    checked.print(global)?;
    Ok(checked.status())
}

/// A certificate that configurations are held to.
pub struct Judge {
    certificate: Certificate,
    /// As it was given.
    name: String,
}

/// A configuration that was judged.
pub struct Checked {
    judge: Judge,
    config: Config,
    origin: Origin,
    outcome: Outcome,
}

impl Judge {
    pub fn open(path: &Path) -> Result<Judge, Failure> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
        let certificate = Certificate::parse(&text, &name)?;
        Ok(Judge { certificate, name })
    }

    /// Judges a configuration by a pilot of `pilot` updates and at most `prompts` prompts. Nothing of the pilot is left when it
    /// is back: no file, no memory, and no draw that a run would make.
    pub fn check(
        self,
        config: &Config,
        device: Device,
        pilot: Option<u32>,
        prompts: u32,
        global: &Global,
    ) -> Result<Checked, Failure> {
        let watch = Stopwatch::start();
        let (certificate, name) = (&self.certificate, &self.name);
        let (family, limits) = limits(certificate, config, name)?;
        let updates = pilot.unwrap_or_else(|| pilot_updates(config));
        let bar = global.bar(updates.into(), "updates");
        bar.set_message("pilot");
        let accept = |origin: &Origin| refuse_other(certificate, config, origin, name);
        let mut pilot = Pilot::run(config, device, updates, &accept, &mut || bar.inc(1))?;
        bar.finish_and_clear();
        let origin = pilot.trainer.origin();

        let mut probed = Probed::default();
        let most = pilot.trainer.fresh_prompts().map_or(u64::from(prompts), |n| n.min(prompts as usize) as u64);
        let looks = looks(most);
        let bar = global.bar(most, "prompts");
        bar.set_message("rollouts");
        let mut told = None;
        for &prompts in &looks {
            let there = probed.d.len() as u64;
            let more = pilot.trainer.probe_rollouts(&mut pilot.probe, there..prompts)?;
            probed.extend(more);
            bar.set_position(prompts);
            let evidence = evidence(&probed, looks.len(), config.seed)?;
            let decision = admission::decide(&evidence, &limits);
            let decided = decision.verdict != Verdict::Gray;
            told = Some((evidence, decision));
            if decided {
                break;
            }
        }
        bar.finish_and_clear();
        let Some((evidence, decision)) = told else {
            return Err(format!(
                "the admission check has only {most} prompts that a pilot of {updates} updates has not trained on, and a look takes \
                 at least 2; give more prompts, or a shorter --pilot to `leeway admit`"
            )
            .into());
        };
        let staleness = admission::staleness_law(&probed.by_age.iter().map(|sums| mean(sums)).collect::<Vec<_>>());
        let mut outcome = Outcome {
            decision,
            limits,
            family,
            evidence,
            probed,
            staleness,
            age: age_max(config),
            repair: None,
            pilot: updates,
            update_s: pilot.update_s,
            wall_s: 0.0,
        };
        let cpu = Arc::clone(pilot.trainer.policy_engine().cpu());
        let valid = pilot.trainer.policy_engine().valid();
        drop(pilot); // its weights make room for the layers
        if outcome.decision.verdict == Verdict::Reject {
            outcome.repair = Some(repair::find(&outcome, config, cpu, valid, global)?);
        }
        outcome.wall_s = watch.elapsed_s();
        Ok(Checked { judge: self, config: config.clone(), origin, outcome })
    }
}

impl Checked {
    pub fn verdict(&self) -> Verdict {
        self.outcome.decision.verdict
    }

    pub fn status(&self) -> ExitCode {
        match self.verdict() {
            Verdict::Admit => ExitCode::SUCCESS,
            Verdict::Reject => ExitCode::from(3),
            Verdict::Gray => ExitCode::from(4),
        }
    }

    /// The screen, or the object where that is asked for.
    pub fn print(&self, global: &Global) -> Result<(), Failure> {
        if !global.json {
            super::print(format_args!("{}", screen::text(&self.outcome, &self.judge.certificate, &self.config)))?;
        }
        global.print_json(&self.object())
    }

    /// The keys of `admit` in docs/formats.md.
    pub fn object(&self) -> Value {
        let Checked { judge, config, origin, outcome } = self;
        object(outcome, config, origin, &judge.certificate, &judge.name)
    }
}

/// Prompts at every look: twice as many each time, `most` at the last.
fn looks(most: u64) -> Vec<u64> {
    let mut looks: Vec<u64> =
        std::iter::successors(Some(u64::from(FIRST)), |n| Some(2 * n)).take_while(|&n| n < most).collect();
    if most >= 2 {
        looks.push(most);
    }
    looks
}

/// The budget that the configuration is held to. Rounding, staleness and frozen noise err in one direction; noise that is
/// new at every version, and nothing else, is held to the zero-mean budget.
fn limits(certificate: &Certificate, config: &Config, name: &str) -> Result<(Kind, Limits), Failure> {
    let fresh = config.noise.as_ref().is_some_and(|noise| {
        noise.kind != NoiseKind::Staleness && noise.draw == Some(NoiseDraw::Fresh) && noise.staleness.is_none()
    });
    let precise = matches!(config.rollout.recipe.as_str(), "identity") && age_max(config) == 0;
    let kind = if fresh && precise { Kind::ZeroMean } else { Kind::Coherent };
    let family = certificate.family(kind).ok_or_else(|| {
        let word = match kind {
            Kind::Coherent => "coherent",
            Kind::ZeroMean => "zero-mean",
        };
        format!(
            "{name} has no {word} family, to which this configuration is held: calibrate again with families = [\"{word}\"]"
        )
    })?;
    Ok((kind, Limits::of(family)))
}

/// A certificate is of one student, teacher, loss and length.
fn refuse_other(certificate: &Certificate, config: &Config, origin: &Origin, name: &str) -> Result<(), String> {
    let mut others = Vec::new();
    let mut compare = |key: &str, theirs: &Value, ours: &Value| {
        if theirs != ours {
            others.push(format!("`{key}` is {theirs} there and {ours} in this run"));
        }
    };
    compare("student", &json!(certificate.student), &json!(origin.student));
    compare("teacher", &json!(certificate.teacher), &json!(origin.teacher));
    let (theirs, ours) = (json!(certificate.settings), json!(settings(config, origin)));
    for (key, theirs) in theirs.as_object().expect("a table") {
        compare(&format!("settings.{key}"), theirs, &ours[key]);
    }
    if others.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{name} is not a certificate of this run: {}; calibrate this run, or give its own certificate",
        others.join("; ")
    ))
}

#[allow(clippy::cast_precision_loss)] // counts of tokens
fn clusters(sums: &[Sum]) -> Vec<Cluster> {
    sums.iter().map(|sum| Cluster { sum: sum.nats, tokens: sum.tokens as f64 }).collect()
}

/// Nats per token.
fn mean(sums: &[Sum]) -> f64 {
    let all = clusters(sums);
    all.iter().map(|c| c.sum).sum::<f64>() / all.iter().map(|c| c.tokens).sum::<f64>()
}

fn evidence(probed: &Probed, looks: usize, seed: u64) -> Result<Evidence, Failure> {
    Ok(Evidence {
        d: RatioEstimate::new(&clusters(&probed.d), seed)?,
        drift: paired_difference(&clusters(&probed.on_rollout), &clusters(&probed.on_student), seed)?,
        looks: u32::try_from(looks).expect("a few looks"),
    })
}

/// D alone of rounding and noise, of age, and what both together have beyond the sum.
fn by_source(outcome: &Outcome) -> (f64, f64, f64) {
    let numerics = mean(&outcome.probed.numerics);
    let staleness = outcome.probed.by_age.last().map_or(0.0, |sums| mean(sums));
    let cross = if outcome.age == 0 { 0.0 } else { outcome.evidence.d.ratio - numerics - staleness };
    (numerics, staleness, cross)
}

/// What the check cost beside a run of `updates` updates.
fn share(outcome: &Outcome, updates: f64) -> f64 {
    outcome.wall_s / (outcome.update_s * updates)
}

fn object(outcome: &Outcome, config: &Config, origin: &Origin, certificate: &Certificate, name: &str) -> Value {
    let Outcome { decision, limits, evidence, .. } = outcome;
    let (numerics, staleness, cross) = by_source(outcome);
    json!({
        "verdict": decision.verdict, "reasons": decision.findings,
        "d_nats": evidence.d.ratio, "ci95": evidence.d.ci95, "ucb95": evidence.d.ucb95,
        "limit_nats": limits.lower_nats, "budget_nats": limits.budget_nats, "at_least": limits.at_least,
        "growth": limits.growth, "family": outcome.family,
        "drift": {"relative": evidence.drift.relative(), "difference": evidence.drift.difference,
                  "ci95": evidence.drift.ci95, "limit": limits.drift_limit},
        "by_source": {"numerics": numerics, "staleness": staleness, "cross": cross},
        "staleness": outcome.staleness.map(|(a, b)| json!({"a": a, "b": b})),
        "versions_behind": outcome.age,
        "prompts": evidence.d.clusters, "looks": evidence.looks, "tokens": evidence.d.tokens,
        "cost_share": share(outcome, f64::from(config.updates)), "cost_share_2000": share(outcome, LONG_RUN),
        "repair": outcome.repair.as_ref().map(repair::Blame::json),
        "pilot_updates": outcome.pilot, "update_s": outcome.update_s, "wall_s": outcome.wall_s,
        "weights_version": outcome.pilot, "seed": config.seed, "student": origin.student, "teacher": origin.teacher,
        "recipe": config.rollout.recipe, "recipe_hash": origin.recipe_hash, "certificate": name,
        "config_hash": certificate.config_hash, "device": origin.device,
    })
}
