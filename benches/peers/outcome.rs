//! What the rounds of a job say: a row for each contestant in each thing measured, with its share of the machine's limit and
//! with ours over it.

use serde::Serialize;

use crate::plan::{Contestant, Job, Kind};
use crate::report::{Figure, Limits, Report};
use crate::stats::Spread;

/// One contestant in one thing measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub model: &'static str,
    pub what: String,
    /// Sequences at once.
    pub batch: usize,
    /// Tokens before the decoded one, of the prompt, of a training sequence.
    pub length: usize,
    pub who: &'static str,
    pub weights: &'static str,
    pub tokens_per_s: Spread,
    /// Of one repetition.
    pub seconds: Spread,
    /// What the limit would allow over what it took, in the same round.
    pub share: Spread,
    /// Which limit: `read` or `fma`.
    pub bound: &'static str,
    /// Ours over this one, round by round; none of ours.
    pub ratios: Vec<Ratio>,
}

/// How much faster one of ours is.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub ours: String,
    pub over: Spread,
}

/// The machine's limits beside one job.
#[derive(Clone, Debug, Serialize)]
pub struct JobLimits {
    pub model: &'static str,
    pub kind: &'static str,
    pub read_gb_s: Spread,
    pub read_one_gb_s: Spread,
    pub fma_gflop_s: Spread,
    pub fma_one_gflop_s: Spread,
}

/// One contestant with a report from every round.
pub type Entry = (Contestant, Vec<Report>);

/// Rows and limits of a job.
pub fn of_job(job: Job, entries: &[Entry]) -> Result<(Vec<Row>, JobLimits), String> {
    let ours: Vec<&Entry> = entries.iter().filter(|(contestant, _)| contestant.is_ours()).collect();
    let (_, reports) = ours.first().ok_or("leeway itself must run")?;
    let limits: Vec<Limits> = (0..reports.len()).map(|round| round_limits(&ours, round)).collect();
    let mut rows = Vec::new();
    for cell in &reports[0].figures {
        for (contestant, reports) in entries {
            let figures = find(reports, cell).map_err(|e| format!("{}: {e}", contestant.name()))?;
            let seconds: Vec<f64> = figures.iter().map(|f| f.seconds).collect();
            let rates: Vec<f64> = figures.iter().map(|f| f64::from(f.tokens) / f.seconds).collect();
            let (batch, length) = size(job, cell);
            let (bytes, flops) = work(job, contestant, cell, figures[0]);
            let times: Vec<(f64, f64)> =
                limits.iter().map(|l| (bytes / l.read_gb_s / 1e9, flops / l.fma_gflop_s / 1e9)).collect();
            let shares: Vec<f64> = times.iter().zip(&seconds).map(|((read, fma), s)| read.max(*fma) / s).collect();
            let (read, fma): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let by_reading = Spread::of(&read).median > Spread::of(&fma).median;
            let mut ratios = Vec::new();
            for (our, reports) in ours.iter().filter(|_| !contestant.is_ours()) {
                let figures = find(reports, cell).map_err(|e| format!("{}: {e}", our.name()))?;
                let our_seconds: Vec<f64> = figures.iter().map(|f| f.seconds).collect();
                ratios.push(Ratio { ours: our.name(), over: Spread::of_ratios(&seconds, &our_seconds) });
            }
            rows.push(Row {
                model: job.shape.name,
                what: cell.what.clone(),
                batch,
                length,
                who: contestant.who,
                weights: contestant.weights,
                tokens_per_s: Spread::of(&rates),
                seconds: Spread::of(&seconds),
                share: Spread::of(&shares),
                bound: if by_reading { "read" } else { "fma" },
                ratios,
            });
        }
    }
    let spread = |of: fn(&Limits) -> f64| Spread::of(&limits.iter().map(of).collect::<Vec<_>>());
    let limits = JobLimits {
        model: job.shape.name,
        kind: job.kind.name(),
        read_gb_s: spread(|l| l.read_gb_s),
        read_one_gb_s: spread(|l| l.read_one_gb_s),
        fma_gflop_s: spread(|l| l.fma_gflop_s),
        fma_one_gflop_s: spread(|l| l.fma_one_gflop_s),
    };
    Ok((rows, limits))
}

/// Whether those that say so computed the same loss of the same ids, so that all ran the same model: the most that formats
/// of 8 bits may differ by is far below what other weights would.
pub fn same_model(entries: &[Entry]) -> Result<(), String> {
    const NATS: f64 = 0.03;
    let mut checks = entries.iter().filter_map(|(c, reports)| Some((c.name(), reports.first()?.check?)));
    let Some((first, loss)) = checks.next() else { return Ok(()) };
    match checks.find(|(_, other)| (other - loss).abs() >= NATS || !other.is_finite()) {
        None => Ok(()),
        Some((name, other)) => {
            Err(format!("{first} computes a loss of {loss} and {name} {other}: they do not run the same model"))
        }
    }
}

/// The limits that a round's processes of ours measured, the middle ones.
fn round_limits(ours: &[&Entry], round: usize) -> Limits {
    let all: Vec<Limits> = ours.iter().flat_map(|(_, reports)| reports[round].limits.iter().copied()).collect();
    let median = |of: fn(&Limits) -> f64| Spread::of(&all.iter().map(of).collect::<Vec<_>>()).median;
    Limits {
        read_gb_s: median(|l| l.read_gb_s),
        read_one_gb_s: median(|l| l.read_one_gb_s),
        fma_gflop_s: median(|l| l.fma_gflop_s),
        fma_one_gflop_s: median(|l| l.fma_one_gflop_s),
    }
}

/// The same thing in every round.
fn find<'a>(reports: &'a [Report], cell: &Figure) -> Result<Vec<&'a Figure>, String> {
    let same = |f: &&Figure| f.what == cell.what && f.tokens == cell.tokens;
    let missing = || format!("no {} of {} tokens", cell.what, cell.tokens);
    reports.iter().map(|report| report.figures.iter().find(same).ok_or_else(missing)).collect()
}

/// Sequences at once, and how long each is.
fn size(job: Job, cell: &Figure) -> (usize, usize) {
    match job.kind {
        Kind::Infer { context, .. } if cell.what == "decode" => (cell.tokens as usize, context),
        Kind::Infer { prompt, .. } => (1, prompt),
        Kind::Train { rows, len, .. } => (rows, len),
    }
}

/// Bytes to be read and flops to be done: what ours says of itself; a peer has the flops of ours, the bytes of its own
/// weights and those of keys and values in f16.
fn work(job: Job, contestant: &Contestant, cell: &Figure, figure: &Figure) -> (f64, f64) {
    if let Some(amount) = figure.amount {
        return (amount.bytes, amount.flops);
    }
    let flops = cell.amount.map_or(0.0, |amount| amount.flops);
    let (batch, length) = size(job, cell);
    let bytes = contestant.weight_bytes.map_or(0.0, |weights| weights + job.shape.kv_f16_bytes(batch * length));
    (bytes, flops)
}
