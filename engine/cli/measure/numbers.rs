//! From tokens to numbers: what the log ratios and the KLs of one set of rollouts say.

use budget::coherence::Moments;
use budget::drift::{self, Bounds, PairedDifference, Reweighted, Rollout, Through};
use budget::mismatch::{Cluster, RatioEstimate, RatioStatistics, k1, k3, perplexity_ratio};
use budget::stats::Interval;
use budget::tails::{Tails, tails};
use opd::measure::by_prompt;
use opd::meter::Sum;
use opd::tune::RolloutSet;

use super::super::Failure;

/// The effective share of rollouts below which weights are not believed.
pub const ESS_LEAST: f64 = 0.3;

/// D at some positions of completions.
pub struct Bucket {
    pub first: usize,
    /// One past the last.
    pub end: usize,
    /// Nothing where fewer than two prompts reach so far.
    pub d: Option<RatioEstimate>,
    pub tokens: u64,
}

/// S(t) and the bounds that come with it.
pub struct SurvivalAt {
    pub t: usize,
    pub s: RatioEstimate,
    /// With K_t, the mean sum of KL (k3 where there is no D) over the first t tokens, nats.
    pub k: f64,
    pub bounds: Bounds,
}

/// One source alone.
pub struct SourceCost {
    pub name: &'static str,
    /// Nothing: the configuration has none of it, and it costs exactly 0.
    pub d: Option<RatioEstimate>,
}

/// One layer alone.
pub struct Layer {
    pub layer: Option<usize>,
    pub d: RatioEstimate,
}

/// The loss on rollouts of both policies.
pub struct Loss {
    pub delta: PairedDifference,
    /// D on prefixes of the trained model.
    pub d_on_trained: RatioEstimate,
}

/// A version and its share of the tokens, of logged rollouts.
pub struct Version {
    pub version: u64,
    pub tokens: usize,
    pub k3: f64,
}

/// All that is reported.
pub struct Measured {
    pub d: Option<RatioEstimate>,
    pub k1: RatioEstimate,
    pub k3: RatioEstimate,
    pub ratio: RatioEstimate,
    pub statistics: RatioStatistics,
    pub perplexity_ratio: f64,
    pub tails: Tails,
    pub survival: Vec<SurvivalAt>,
    pub half_life: Option<usize>,
    pub positions: Vec<Bucket>,
    pub functional: &'static str,
    pub snis: Reweighted,
    pub sources: Option<Vec<SourceCost>>,
    pub layers: Option<(Vec<Layer>, usize)>,
    pub loss: Option<Loss>,
    /// None: not asked for. Some(None): nothing varies.
    pub coherence: Option<Option<RatioEstimate>>,
    /// Largest difference between logged logprobs and those computed anew, nats.
    pub logged_gap: Option<f64>,
    pub versions: Option<Vec<Version>>,
    pub temperature: f32,
    pub prompts: usize,
    pub tokens: usize,
    pub wall_s: f64,
}

#[allow(clippy::cast_precision_loss)] // counts of tokens
pub fn clusters(sums: &[Sum]) -> Vec<Cluster> {
    let some = sums.iter().filter(|sum| sum.tokens > 0);
    some.map(|sum| Cluster { sum: sum.nats, tokens: sum.tokens as f64 }).collect()
}

/// The mean over tokens of one value a token.
pub fn mean(set: &RolloutSet, values: impl IntoIterator<Item = f64>, seed: u64) -> Result<RatioEstimate, Failure> {
    Ok(RatioEstimate::new(&clusters(&by_prompt(set, values)), seed)?)
}

/// Whether k3's interval holds D or D's holds k3.
pub fn agrees(d: &RatioEstimate, k3: &RatioEstimate) -> bool {
    let meet = |a: Interval, b: Interval| a.low <= b.high && b.low <= a.high;
    meet(d.ci95, k3.ci95)
}

/// What log ratios (trained less rollout, of the tokens taken), KLs and a functional say. `nll` is -ln p by the trained
/// model; `loss` the functional where there is a teacher.
pub fn measured(
    set: &RolloutSet,
    log_ratio: &[f64],
    kl: Option<&[f64]>,
    nll: &[f64],
    loss: Option<&[f64]>,
    seed: u64,
) -> Result<Measured, Failure> {
    let estimate = |f: &dyn Fn(f64) -> f64| mean(set, log_ratio.iter().map(|&x| f(x)), seed);
    let ks: Vec<f64> = kl.map_or_else(|| log_ratio.iter().map(|&x| k3(x)).collect(), <[f64]>::to_vec);
    let split = |values: &[f64]| -> Vec<Vec<f64>> {
        let mut at = 0;
        let row = |row: &opd::sequences::Row| {
            at += row.targets().len();
            values[at - row.targets().len()..at].to_vec()
        };
        set.rows.iter().map(row).collect()
    };
    let rollouts: Vec<Rollout> =
        set.prompts.iter().zip(split(log_ratio)).map(|(&prompt, log_ratio)| Rollout { prompt, log_ratio }).collect();
    let by_row = split(&ks);
    let longest = by_row.iter().map(Vec::len).max().unwrap_or(0);
    let survival = (0..)
        .map(|power| 1_usize << power)
        .take_while(|&t| t < longest)
        .chain([longest])
        .map(|t| {
            let s = drift::survival(&rollouts, t, seed)?;
            let sum: f64 = by_row.iter().map(|row| row.iter().take(t).sum::<f64>()).sum();
            #[allow(clippy::cast_precision_loss)] // a count of rollouts
            let k = sum / by_row.len() as f64;
            Ok(SurvivalAt { t, bounds: Bounds::new(s.ratio, k), s, k })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let (functional, values, through) = match loss {
        Some(loss) => ("kl_teacher", loss, Through::Prefix),
        None => ("nll", nll, Through::Token),
    };
    let snis = drift::reweighted(&rollouts, &split(values), through, longest, seed)?;
    Ok(Measured {
        d: kl.map(|kl| mean(set, kl.iter().copied(), seed)).transpose()?,
        k1: estimate(&k1)?,
        k3: estimate(&k3)?,
        ratio: estimate(&f64::exp)?,
        statistics: RatioStatistics::new(log_ratio.iter().map(|&x| (x, 1.0))),
        perplexity_ratio: perplexity_ratio(rollouts.iter().map(|rollout| &rollout.log_ratio[..])),
        tails: tails(log_ratio.iter().copied(), ks.iter().copied()),
        survival,
        half_life: drift::half_life(&rollouts),
        positions: buckets(set, &by_row, longest, seed),
        functional,
        snis,
        sources: None,
        layers: None,
        loss: None,
        coherence: None,
        logged_gap: None,
        versions: None,
        temperature: set.temperature,
        prompts: set.prompt_count(),
        tokens: set.tokens(),
        wall_s: 0.0,
    })
}

/// D at positions 0, 1, 2 to 3, 4 to 7, ...
fn buckets(set: &RolloutSet, by_row: &[Vec<f64>], longest: usize, seed: u64) -> Vec<Bucket> {
    let mut buckets = Vec::new();
    let (mut first, mut end) = (0, 1);
    while first < longest {
        let mut sums = vec![Sum::default(); set.prompt_count()];
        for (row, &prompt) in by_row.iter().zip(&set.prompts) {
            for value in row.iter().take(end).skip(first) {
                sums[prompt].nats += value;
                sums[prompt].tokens += 1;
            }
        }
        let tokens = sums.iter().map(|sum| sum.tokens).sum();
        buckets.push(Bucket {
            first,
            end: end.min(longest),
            d: RatioEstimate::new(&clusters(&sums), seed).ok(),
            tokens,
        });
        (first, end) = (end, 2 * end);
    }
    buckets
}

/// The coherence share from moments of every token.
pub fn coherence(set: &RolloutSet, tokens: &[Moments], seed: u64) -> Result<Option<RatioEstimate>, Failure> {
    let [covariance, variance] =
        [0, 1].map(|which| by_prompt(set, tokens.iter().map(|m| if which == 0 { m.covariance } else { m.variance })));
    let prompts: Vec<Moments> =
        covariance.iter().zip(&variance).map(|(c, v)| Moments { covariance: c.nats, variance: v.nats }).collect();
    Ok(budget::coherence::share(&prompts, seed)?)
}
