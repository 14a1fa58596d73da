//! Rollouts that some trainer logged: what their logprobs say, and D where the sampler can be computed anew.

use std::path::Path;

use budget::mismatch::{RatioEstimate, k3};
use engine::model::Model;
use opd::measure::{Compare, Lines, WiringError, diagnose};

use super::super::{Failure, Global};
use super::live::{Ran, layers, sources, targets};
use super::numbers::{Measured, Version, measured};
use super::{MeasureArgs, Opened};

/// E of rho off 1 by more than so many half-widths of its 95% interval is no chance: with many prompts 5 standard errors.
const FAULT: f64 = 2.5;
/// Below this E (ln rho)^2, in nats squared, a mistake that explains it is too small to be told from luck.
const M2_LEAST: f64 = 0.01;

pub fn run(args: &MeasureArgs, global: &Global, opened: &Opened) -> Result<Measured, Failure> {
    let Opened { cpu, folder, trained, rollout, stale, valid } = opened;
    let file = args.input.rollouts.as_deref().expect("there is a file");
    let config = folder.checkpoint.config();
    let Lines { set, logprobs, versions, recipes, .. } = Lines::read(file, *valid, config.max_positions)?;
    if let Some(rollout) = rollout {
        same_recipe(file, &recipes, &rollout.hash())?;
    }
    let bar = global.bar(2, "models");
    let compare = Compare { cpu, valid: *valid, temperature: set.temperature };
    let pi = Ran::new(opened, Model::load(cpu, &folder.checkpoint, trained.clone())?, &set);
    bar.inc(1);
    let targets = targets(&set);
    let own = compare.logprobs(&targets, pi.view(), &[set.temperature])?.remove(0);
    let log_ratio: Vec<f64> = own.iter().zip(&logprobs).map(|(p, q)| f64::from(*p) - f64::from(*q)).collect();
    let nll: Vec<f64> = own.iter().map(|&p| -f64::from(p)).collect();
    let again = match rollout {
        Some(rollout) => {
            let older = stale.as_ref().unwrap_or(&folder.checkpoint);
            let mu = Ran::new(opened, Model::load(cpu, older, rollout.clone())?, &set);
            Some(compare.tokens(&targets, mu.view(), pi.view())?)
        }
        None => None,
    };
    bar.inc(1);
    let kl: Option<Vec<f64>> = again.as_ref().map(|tokens| tokens.iter().map(|token| token.kl).collect());
    let mut result = measured(&set, &log_ratio, kl.as_deref(), &nll, None, args.seed)?;
    wired(file, &compare, &set, &logprobs, &pi, &result.ratio)?;
    result.logged_gap = again.map(|tokens| {
        let gap = |(token, &logged): (&opd::measure::Token, &f32)| f64::from((token.logprob_rollout - logged).abs());
        tokens.iter().zip(&logprobs).map(gap).fold(0.0, f64::max)
    });
    result.versions = Some(by_version(&versions, &log_ratio));
    if let (Some(rollout), Some(d)) = (rollout, result.d) {
        result.sources = Some(sources(opened, rollout, &compare, &set, &pi, d, args.seed)?);
        if args.by_layer {
            result.layers = Some(layers(args, opened, rollout, &set)?);
        }
    }
    bar.finish_and_clear();
    Ok(result)
}

/// The recipe given must be the one that the lines name, if they name one by its hash.
fn same_recipe(file: &Path, recipes: &[String], hash: &str) -> Result<(), Failure> {
    if let [one, other, ..] = recipes {
        return Err(format!(
            "{}: `recipe` is {one} in some lines and {other} in others; D is of one recipe: split the file",
            file.display()
        )
        .into());
    }
    let is_hash = |name: &str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    match recipes.iter().find(|&name| is_hash(name) && name != hash) {
        Some(theirs) => Err(format!(
            "{}: `recipe` is {theirs}, and --recipe has the hash {hash}: give the recipe that the rollouts were sampled in",
            file.display()
        )
        .into()),
        None => Ok(()),
    }
}

/// Refuses logprobs that are not those of what was sampled from.
fn wired(
    file: &Path,
    compare: &Compare<'_>,
    set: &opd::tune::RolloutSet,
    logged: &[f32],
    pi: &Ran,
    ratio: &RatioEstimate,
) -> Result<(), Failure> {
    let off = (ratio.ratio - 1.0).abs() > FAULT * 0.5 * ratio.ci95.width() && ratio.ratio != 1.0;
    let found = diagnose(compare, set, logged, pi.view(), off)?;
    let file = file.to_owned();
    match found.cause {
        Some(cause) if !off && found.m2 > M2_LEAST => {
            Err(WiringError::Explained { file, before: found.m2.sqrt(), after: found.left.sqrt(), cause }.into())
        }
        cause if off => {
            let (mean, low, high) = (ratio.ratio, ratio.ci95.low, ratio.ci95.high);
            Err(WiringError::Ratio { file, mean, low, high, cause }.into())
        }
        _ => Ok(()),
    }
}

/// k3 by the version that sampled.
#[allow(clippy::cast_precision_loss)] // counts of tokens
fn by_version(versions: &[u64], log_ratio: &[f64]) -> Vec<Version> {
    let mut sums: std::collections::BTreeMap<u64, (usize, f64)> = std::collections::BTreeMap::new();
    for (&version, &x) in versions.iter().zip(log_ratio) {
        let sum = sums.entry(version).or_default();
        *sum = (sum.0 + 1, sum.1 + k3(x));
    }
    let version = |(version, (tokens, sum)): (u64, (usize, f64))| Version { version, tokens, k3: sum / tokens as f64 };
    sums.into_iter().map(version).collect()
}
