//! Limits and work in turns.

use super::{Gauge, Limits, LimitsSpread, Spread};

/// Seconds of one look at the clock: shorter work is done several times between two.
const SAMPLE_S: f64 = 0.02;

/// Rounds of limits and work in turns: limit, work, limit, work, ...
pub struct Turns<'a> {
    /// What measures the limits.
    pub gauge: &'a Gauge,
    /// Rounds that count, at least one; those that warm caches and buffers come before them. Below five a median says little.
    pub rounds: usize,
    /// Keys ids and draws.
    pub seed: u64,
    /// Called after each round that counts.
    pub tick: &'a mut dyn FnMut(),
}

/// What rounds gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Seconds of one piece of work, by round.
    pub seconds: Vec<f64>,
    /// The limits just before it, by round.
    pub limits: Vec<Limits>,
}

impl Turns<'_> {
    /// Measures `work`, which does so many pieces of it as it is told, one after the other, and returns the seconds of all
    /// of them; at most `most` at a time.
    ///
    /// # Errors
    /// Those of `work`.
    ///
    /// # Panics
    /// When there are no rounds.
    pub fn run<E>(&mut self, most: usize, mut work: impl FnMut(usize) -> Result<f64, E>) -> Result<Samples, E> {
        assert!(self.rounds > 0, "no rounds, no measurement");
        // The first is cold, and says too much of short work.
        let cold = work(1)?;
        let one = if cold < SAMPLE_S { work(1)? } else { cold };
        let mut times = 1;
        while times < most && (times as f64) * one < SAMPLE_S {
            times += 1;
        }
        let mut samples = Samples { seconds: Vec::new(), limits: Vec::new() };
        for _ in 0..self.rounds {
            samples.limits.push(self.gauge.measure());
            samples.seconds.push(work(times)? / times as f64);
            (self.tick)();
        }
        Ok(samples)
    }
}

impl Samples {
    /// Seconds of one piece of work.
    #[must_use]
    pub fn seconds(&self) -> Spread {
        Spread::of(self.seconds.iter().copied())
    }

    /// The limits beside it.
    #[must_use]
    pub fn limits(&self) -> LimitsSpread {
        LimitsSpread::of(self.limits.iter())
    }
}

impl std::fmt::Debug for Turns<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").field("rounds", &self.rounds).field("seed", &self.seed).finish_non_exhaustive()
    }
}
