//! What a contestant prints: one JSON object, the last line of its standard output.
//!
//! The peers' drivers give the seconds of every repetition, `leeway bench` gives low, median and high, its bytes and flops a
//! second, and the machine's limits measured in between.

use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// One contestant's run in one round.
#[derive(Clone, Debug)]
pub struct Report {
    pub version: String,
    pub settings: String,
    /// Mean loss of fixed ids in nats a token, where a driver tells it: whether all run the same model.
    pub check: Option<f64>,
    /// What the machine did beside each process of the turn; `leeway bench` alone knows.
    pub limits: Vec<Limits>,
    pub figures: Vec<Figure>,
}

impl Report {
    /// What the next process of the same turn measured.
    pub fn add(&mut self, part: Report) {
        self.figures.extend(part.figures);
        self.limits.extend(part.limits);
    }
}

/// What the machine reached at most, measured between the contestants.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Limits {
    pub read_gb_s: f64,
    pub read_one_gb_s: f64,
    pub fma_gflop_s: f64,
    pub fma_one_gflop_s: f64,
}

/// One thing measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub what: String,
    /// Tokens of one repetition: one a sequence in decoding, all of the prompt, all of an update.
    pub tokens: u32,
    /// Of one repetition, the median.
    pub seconds: f64,
    /// What `leeway bench` says that one repetition reads, and how much it multiplies and adds.
    pub amount: Option<Amount>,
}

/// What one repetition has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount {
    pub bytes: f64,
    pub flops: f64,
}

#[derive(Deserialize)]
struct PeerLine {
    peer: String,
    version: String,
    settings: String,
    check: f64,
    figures: Vec<PeerFigure>,
}

#[derive(Deserialize)]
struct PeerFigure {
    what: String,
    tokens: u32,
    seconds: Vec<f64>,
}

#[derive(Deserialize)]
struct OursLine {
    recipe: String,
    recipe_hash: String,
    limits: Limits,
    figures: Vec<OursFigure>,
}

#[derive(Deserialize)]
struct OursFigure {
    what: String,
    tokens: u32,
    seconds: OursSeconds,
    gb_s: Option<f64>,
    gflop_s: Option<f64>,
}

#[derive(Deserialize)]
struct OursSeconds {
    median: f64,
}

/// Reads what a peer's driver printed.
pub fn of_peer(output: &str) -> Result<Report, String> {
    let line: PeerLine = last_line(output)?;
    let figures = line.figures.into_iter().map(|f| {
        if f.seconds.is_empty() {
            return Err(format!("{}: {} without a repetition", line.peer, f.what));
        }
        let seconds = Spread::of(&f.seconds).median;
        Ok(Figure { what: f.what, tokens: f.tokens, seconds, amount: None })
    });
    Ok(Report {
        figures: figures.collect::<Result<_, _>>()?,
        version: line.version,
        settings: line.settings,
        check: Some(line.check),
        limits: Vec::new(),
    })
}

/// Reads what `leeway bench --json` printed; `version` is what the binary calls itself.
pub fn of_ours(output: &str, version: &str) -> Result<Report, String> {
    let line: OursLine = last_line(output)?;
    let figures = line.figures.into_iter().map(|f| {
        let seconds = f.seconds.median;
        let amount = |rate: Option<f64>| rate.unwrap_or(0.0) * 1e9 * seconds;
        let amount = Amount { bytes: amount(f.gb_s), flops: amount(f.gflop_s) };
        Figure { what: f.what, tokens: f.tokens, seconds, amount: Some(amount) }
    });
    Ok(Report {
        figures: figures.collect(),
        version: version.to_owned(),
        settings: format!("recipe {} ({})", line.recipe, line.recipe_hash),
        check: None,
        limits: vec![line.limits],
    })
}

fn last_line<'a, T: Deserialize<'a>>(output: &'a str) -> Result<T, String> {
    let line = output.lines().rfind(|line| !line.trim().is_empty()).ok_or("it printed nothing")?;
    serde_json::from_str(line).map_err(|e| format!("its last line is not what it should be ({e}): {line:.200}"))
}
