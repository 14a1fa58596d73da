//! `[noise]`: mismatch that is put in on purpose. Keys that the kind does not use are errors, and those that it uses are
//! filled in.

use serde::{Deserialize, Serialize};

use super::check::need;
use super::{Config, Fault, Schedule};

/// What the rollout's copy of the student is disturbed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Noise {
    /// What is disturbed.
    pub kind: NoiseKind,
    /// How long a draw lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draw: Option<NoiseDraw>,
    /// How strong it is: of weights in units of each matrix's rms, of norm gains in units of the gain, of logits in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
    /// The D that it is to cause, nats per token, in place of `sigma`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<f64>,
    /// Whether D is held there from update to update; else only the first weights version is brought to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<bool>,
    /// How many versions old the rollout's weights are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<u32>,
}

/// What is disturbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseKind {
    /// Every matrix, by independent normal noise on its elements.
    #[default]
    Weights,
    /// Every gain of a norm.
    NormGains,
    /// Every logit that is drawn from, by the prefix.
    Logits,
    /// Nothing but time: the rollout's weights are those of some versions ago.
    Staleness,
}

/// How long a draw of noise lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseDraw {
    /// A weights version: the next has another.
    #[default]
    Fresh,
    /// The run.
    Frozen,
}

impl Noise {
    /// A value for every key, whether or not they go together: what the reader learns keys and their kinds from.
    pub(super) fn every_key() -> Noise {
        Noise {
            kind: NoiseKind::Weights,
            draw: Some(NoiseDraw::Fresh),
            sigma: Some(0.01),
            nats: Some(0.01),
            hold: Some(true),
            staleness: Some(1),
        }
    }

    /// Writes the defaults of the keys that are used and not set.
    pub(super) fn fill(&mut self) {
        if self.kind != NoiseKind::Staleness {
            self.draw = self.draw.or(Some(NoiseDraw::Fresh));
            if self.nats.is_some() {
                self.hold = self.hold.or(Some(true));
            }
        }
    }

    pub(super) fn check(&self, config: &Config) -> Result<(), Fault> {
        let stale = self.kind == NoiseKind::Staleness;
        let text = |x: Option<f64>| x.map_or("missing".to_owned(), |x| x.to_string());
        let must = "left out: this kind of noise does not use it";
        need("noise.draw", "set", !stale || self.draw.is_none(), must)?;
        need("noise.sigma", text(self.sigma), !stale || self.sigma.is_none(), must)?;
        need("noise.nats", text(self.nats), !stale || self.nats.is_none(), must)?;
        let staleness = self.staleness.map_or("missing".to_owned(), |n| n.to_string());
        need("noise.staleness", &staleness, stale || self.staleness.is_none(), must)?;
        let must = "at least 1: how many versions old the rollout's weights are";
        need("noise.staleness", &staleness, !stale || self.staleness.is_some_and(|n| n > 0), must)?;
        let must = "left out unless `noise.nats` is set: it says whether D is held there";
        need("noise.hold", "set", self.hold.is_none() || self.nats.is_some(), must)?;
        if !stale {
            let must = "left out with `noise.nats`, which looks for it";
            need("noise.sigma", text(self.sigma), self.sigma.is_none() || self.nats.is_none(), must)?;
            let must = "set, or `noise.nats`: how strong the noise is, or the D that it is to cause";
            need("noise.sigma", "missing", self.sigma.is_some() || self.nats.is_some(), must)?;
        }
        let sigma = self.sigma.is_none_or(|x| x > 0.0 && x <= 100.0);
        need("noise.sigma", text(self.sigma), sigma, "more than 0 and at most 100")?;
        let nats = self.nats.is_none_or(|x| (1e-9..=20.0).contains(&x));
        need("noise.nats", text(self.nats), nats, "1e-9 to 20, nats per token")?;
        let must = "\"sync\" with `noise`: it is put into rollouts that take turns with updates";
        let spelled = if config.schedule == Schedule::Async { "\"async\"" } else { "{ steps_off = .. }" };
        need("schedule", spelled, config.schedule == Schedule::Sync, must)
    }
}
