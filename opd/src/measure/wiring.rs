//! What explains logprobs that are not those of the distribution sampled from: the usual mistakes, each tried.
//!
//! A mistake is believed if taking it back removes most of E (ln rho)^2, or, where the mean of rho is off 1 and so there is
//! one for sure, if it brings that back. Rounding, staleness and noise do neither.

use std::fmt;
use std::path::PathBuf;

use super::compare::{Compare, CompareError};
use crate::loss::View;
use crate::tune::RolloutSet;

/// Temperatures that are tried, as multiples of the one given; 1 itself is what was measured.
const FACTORS: [f32; 14] = [0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0];
/// Masses of nuclei that are tried.
const TOP_P: [f64; 9] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99];
/// Sizes of truncated vocabularies that are tried.
const TOP_K: [usize; 8] = [2, 5, 10, 20, 40, 50, 64, 100];
/// Tokens that are looked at.
const TOKENS: usize = 4096;
/// What may be left of E (ln rho)^2, or of the mean's distance from 1.
const LEFT: f64 = 0.2;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// The logprobs are of another temperature than the one given.
    Temperature {
        /// Of the logprobs, about.
        of: f32,
        /// As given.
        given: f32,
    },
    /// The logprobs are of a nucleus.
    TopP(f64),
    /// The logprobs are of so many likeliest ids.
    TopK(usize),
    /// Logprob i is that of token i + this.
    Shifted(isize),
    /// The text is about as likely to the trained model as random ids: other ids or another model.
    OtherIds {
        /// Mean ln p of the trained model, nats.
        trained: f64,
        /// Mean ln p as logged, nats.
        rollout: f64,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Temperature { of, given } => write!(
                f,
                "the logprobs are those of temperature {of:.2}, and `temperature` says {given}: log the processed logprobs, or correct the key"
            ),
            Cause::TopP(p) => write!(
                f,
                "the logprobs are those of a nucleus, top_p near {p}, and the line does not say so: sample without truncation"
            ),
            Cause::TopK(k) => write!(
                f,
                "the logprobs are those of the {k} likeliest ids, and the line does not say so: sample without truncation"
            ),
            Cause::Shifted(by) => write!(
                f,
                "the logprobs are shifted: entry i is that of token i {} {}: they must be those of `ids`, in place",
                if *by < 0 { '-' } else { '+' },
                by.unsigned_abs()
            ),
            Cause::OtherIds { trained, rollout } => write!(
                f,
                "the trained model gives these ids a mean ln p of {trained:.2}, the sampler gave {rollout:.2}: ids of another tokenizer, prompts cut off, or another model"
            ),
        }
    }
}

/// Rollouts and logprobs that do not go together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WiringError {
    /// Their mean ratio says so.
    #[error(
        "{}: the mean of p_trained / p_rollout over the tokens is {mean:.4} ({low:.4} to {high:.4}), and must be 1: \
         `logprobs_rollout` are not of the distribution that the tokens were drawn from. {}",
        file.display(), likely(cause.as_ref())
    )]
    Ratio {
        /// The file.
        file: PathBuf,
        /// The mean.
        mean: f64,
        /// Its 95% interval over prompts, the lower end.
        low: f64,
        /// And the upper end.
        high: f64,
        /// What explains it, if something does.
        cause: Option<Cause>,
    },
    /// A mistake explains nearly all that differs.
    #[error(
        "{}: ln p of the trained model and of the rollout differ by {before:.3} nats (root mean square; {after:.3} with the \
         likely mistake taken back): {cause}",
        file.display()
    )]
    Explained {
        /// The file.
        file: PathBuf,
        /// Root mean square difference, nats.
        before: f64,
        /// And with the mistake taken back.
        after: f64,
        /// The mistake.
        cause: Cause,
    },
}

fn likely(cause: Option<&Cause>) -> String {
    cause.map_or_else(
        || {
            "None of the usual mistakes explains it alone: look at temperature, truncation, positions, the tokenizer and \
             which weights sampled"
                .to_owned()
        },
        |cause| format!("Most likely {cause}"),
    )
}

/// What was tried and found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnosis {
    /// E (ln rho)^2 as it is, nats squared.
    pub m2: f64,
    /// What explains it, if something does.
    pub cause: Option<Cause>,
    /// What is left of it when that is taken back; `m2` if nothing explains it.
    pub left: f64,
}

/// Tries the usual mistakes on logged logprobs `logged`, one a completion token of `set`; `trained` is the trained model.
/// `off` says that the mean of rho is not 1.
///
/// # Errors
/// Where logits are no distribution.
pub fn diagnose(
    compare: &Compare<'_>,
    set: &RolloutSet,
    logged: &[f32],
    trained: View<'_>,
    off: bool,
) -> Result<Diagnosis, CompareError> {
    // Whole rows.
    let mut rows = Vec::new();
    let mut count = 0;
    for row in &set.rows {
        if count >= TOKENS {
            break;
        }
        rows.push(count..count + row.targets().len());
        count += row.targets().len();
    }
    let targets: Vec<u32> = set.rows[..rows.len()].iter().flat_map(|row| row.targets()).copied().collect();
    let logged = &logged[..count];
    let given = compare.temperature;
    let mut temperatures = vec![given];
    temperatures.extend(FACTORS.iter().map(|factor| given * factor));
    temperatures.push(1.0);
    let at = compare.logprobs(&targets, trained, &temperatures)?;
    let mut tried: Vec<(Cause, Fit)> = temperatures
        .iter()
        .zip(&at)
        .skip(1)
        .map(|(&of, list)| (Cause::Temperature { of, given }, Fit::new(list.iter().zip(logged))))
        .collect();
    let now = Fit::new(at[0].iter().zip(logged));

    // Between the best two temperatures lies a better one.
    tried.sort_by(|a, b| a.1.m2.total_cmp(&b.1.m2));
    if let Some(&(Cause::Temperature { of, .. }, _)) = tried.first() {
        let near: Vec<f32> = [0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15].iter().map(|factor| of * factor).collect();
        for (&of, list) in near.iter().zip(compare.logprobs(&targets, trained, &near)?) {
            tried.push((Cause::Temperature { of, given }, Fit::new(list.iter().zip(logged))));
        }
    }
    for by in [-1_isize, 1] {
        let pairs = rows.iter().flat_map(|row| {
            let (ours, theirs) = (&at[0][row.clone()], &logged[row.clone()]);
            let skip = usize::from(by > 0);
            ours.iter().skip(skip).zip(theirs.iter().skip(1 - skip))
        });
        if rows.iter().any(|row| row.len() > 1) {
            tried.push((Cause::Shifted(by), Fit::new(pairs)));
        }
    }
    tried.extend(truncations(compare, &targets, logged, &at[0], trained)?);
    let explains = |fit: &Fit| {
        let restored = fit.m2 < now.m2 && (fit.ratio - 1.0).abs() <= LEFT * (now.ratio - 1.0).abs();
        fit.m2 <= LEFT * now.m2 || (off && restored)
    };
    let best = tried.into_iter().filter(|(_, fit)| explains(fit)).min_by(|a, b| a.1.m2.total_cmp(&b.1.m2));
    if let Some((cause, fit)) = best {
        return Ok(Diagnosis { m2: now.m2, cause: Some(cause), left: fit.m2 });
    }
    let mean = |list: &[f32]| list.iter().map(|&x| f64::from(x)).sum::<f64>() / count.max(1) as f64;
    let (ours, theirs) = (mean(&at[0]), mean(logged));
    // Nearer to ln of the vocabulary's size than to what the sampler saw: the text says nothing to the model.
    let random = -(compare.valid as f64).ln();
    let cause = (ours + 1.0 < theirs && ours < 0.5 * (random + theirs))
        .then_some(Cause::OtherIds { trained: ours, rollout: theirs });
    Ok(Diagnosis { m2: now.m2, cause, left: now.m2 })
}

/// How logprobs of the trained model go with those logged.
#[derive(Clone, Copy, Debug)]
struct Fit {
    /// E (ln rho)^2.
    m2: f64,
    /// E rho.
    ratio: f64,
}

impl Fit {
    fn new<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> Fit {
        Fit::of(pairs.map(|(trained, logged)| f64::from(*trained) - f64::from(*logged)))
    }

    fn of(log_ratios: impl Iterator<Item = f64>) -> Fit {
        let (mut squares, mut ratios, mut count) = (0.0, 0.0, 0.0);
        for x in log_ratios {
            squares += x * x;
            ratios += x.exp();
            count += 1.0;
        }
        Fit { m2: squares / count, ratio: ratios / count }
    }
}

/// The fits if the sampler had drawn from a truncated distribution. A token outside of it keeps its logprob.
fn truncations(
    compare: &Compare<'_>,
    targets: &[u32],
    logged: &[f32],
    untruncated: &[f32],
    trained: View<'_>,
) -> Result<Vec<(Cause, Fit)>, CompareError> {
    let mut causes: Vec<Cause> = TOP_P.iter().map(|&p| Cause::TopP(p)).collect();
    causes.extend(TOP_K.iter().filter(|&&k| k < compare.valid).map(|&k| Cause::TopK(k)));
    let mut log_ratios = vec![Vec::with_capacity(targets.len()); causes.len()];
    compare.blocks(&[trained], targets.len(), &mut |first, rows, logits| {
        let vocab = logits[0].len() / rows;
        for row in 0..rows {
            let (token, own) = (first + row, f64::from(untruncated[first + row]));
            let mut p: Vec<f64> = compare.distribution(&logits[0][row * vocab..][..compare.valid]);
            let target = p[targets[token] as usize];
            p.sort_unstable_by(|a, b| b.total_cmp(a));
            let above = p.partition_point(|&x| x > target); // ids before the token
            let mut kept = 0.0;
            let cumulative: Vec<f64> = p
                .iter()
                .map(|x| {
                    kept += x.exp();
                    kept
                })
                .collect();
            for (list, cause) in log_ratios.iter_mut().zip(&causes) {
                let size = match *cause {
                    Cause::TopP(mass) => (cumulative.partition_point(|&kept| kept < mass) + 1).min(p.len()),
                    Cause::TopK(k) => k,
                    _ => unreachable!("only truncations are here"),
                };
                let shift = if above < size { cumulative[size - 1].min(1.0).ln() } else { 0.0 };
                list.push(own - shift - f64::from(logged[token]));
            }
        }
        Ok(())
    })?;
    Ok(causes.into_iter().zip(log_ratios).map(|(cause, list)| (cause, Fit::of(list.into_iter()))).collect())
}
