//! `[loss]`: what is minimised. A key that kind, support and target do not use is an error, and those that they use are
//! filled in, so that the resolved file says everything.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Fault;
use super::check::need;
use super::loss_words::{LossKind, LossRatio, LossSupport, LossTarget, LossWeight, LossWindow};
use crate::objective::divergence::{Direction, Estimate, Whose};
use crate::objective::policy::{Grpo, Old, Weighting, Window};
use crate::objective::{Divergence, Objective, Target};

/// The value of `loss.reference` that is the student as the run began; a folder of that name is `./student`.
pub(super) const STUDENT: &str = "student";

/// What to minimise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Loss {
    /// The divergence.
    pub kind: LossKind,
    /// Over which tokens.
    pub support: LossSupport,
    /// From what.
    pub target: LossTarget,
    /// What a token's loss is weighted by.
    pub weight: LossWeight,
    /// The target's weight in a `jsd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// The share of the other side in a skewed kind's mixture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Tokens of a top-k support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<u32>,
    /// Whether the rest is one more outcome of a top-k support; else both sides are renormalised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<bool>,
    /// Whether the exact KL is the baseline of a `sampled` loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<bool>,
    /// How far an `extrapolated` target goes; 1 is the teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lambda: Option<f64>,
    /// Nats that a `bounded` target may be from the teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<f64>,
    /// The farthest that a `bounded` target goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub u_max: Option<f64>,
    /// Nats that a `trust-region` target may be from the student.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// The largest weight of `token-tis` and `sequence-tis`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_max: Option<f64>,
    /// What a `mask` looks at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<LossWindow>,
    /// The smallest ratio that a `mask` lets through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_low: Option<f64>,
    /// The largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_high: Option<f64>,
    /// The ratio of one token below which a `mask` leaves out its whole sequence; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub veto: Option<f64>,
    /// Whether advantages of `grpo` are over the group's standard deviation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaled: Option<bool>,
    /// What the ratio of `grpo` is to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<LossRatio>,
    /// How far below 1 the ratio of `grpo` may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_low: Option<f64>,
    /// How far above 1 it may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// `student`, as the run began, or the absolute path of a folder: what an `extrapolated` or `bounded` target leads
    /// away from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// What is said of a `loss.kind` that is a measurement and no loss.
pub(super) fn no_loss(kind: &str) -> Option<&'static str> {
    match kind {
        "k1" => Some(
            "\"sampled\", whose value k1 is: k1 itself, differentiated, has a gradient whose mean is zero, so it trains on \
             noise alone",
        ),
        "k3" => Some(
            "\"k3-straight-through\", which has its value and the gradient of k2: k3 itself, differentiated, has the mean \
             gradient of the forward KL and not of the reverse KL that it estimates",
        ),
        _ => None,
    }
}

impl Loss {
    /// A value for every key, whether or not they go together: what the reader learns keys and their kinds from.
    pub(super) fn every_key() -> Loss {
        Loss {
            beta: Some(0.5),
            alpha: Some(0.9),
            k: Some(16),
            tail: Some(true),
            baseline: Some(true),
            lambda: Some(1.25),
            delta: Some(0.01),
            u_max: Some(2.0),
            eps: Some(0.05),
            weight_max: Some(2.0),
            window: Some(LossWindow::Token),
            window_low: Some(0.5),
            window_high: Some(2.0),
            veto: Some(1e-4),
            scaled: Some(true),
            ratio: Some(LossRatio::Recomputed),
            clip_low: Some(0.2),
            clip_high: Some(0.2),
            reference: Some(STUDENT.to_owned()),
            ..Loss::default()
        }
    }

    fn uses(&self, key: &str) -> bool {
        let leads_away = matches!(self.target, LossTarget::Extrapolated | LossTarget::Bounded);
        match key {
            "beta" => self.kind == LossKind::Jsd,
            "alpha" => matches!(self.kind, LossKind::SkewedReverseKl | LossKind::SkewedForwardKl),
            "k" => self.support != LossSupport::Dense,
            "tail" => self.support != LossSupport::Dense && self.kind != LossKind::HeadTail,
            "baseline" => self.kind == LossKind::Sampled,
            "lambda" => self.target == LossTarget::Extrapolated,
            "delta" | "u_max" => self.target == LossTarget::Bounded,
            "eps" => self.target == LossTarget::TrustRegion,
            "reference" => leads_away,
            "weight_max" => matches!(self.weight, LossWeight::TokenTis | LossWeight::SequenceTis),
            "window" | "window_low" | "window_high" | "veto" => self.weight == LossWeight::Mask,
            "scaled" | "ratio" | "clip_low" | "clip_high" => self.kind == LossKind::Grpo,
            _ => unreachable!("{key} is no key of [loss] that may be left out"),
        }
    }

    /// Whether the gradient is that of the loss as it is reported: not of an estimate by one token, and not where the target
    /// moves with the student.
    #[must_use]
    pub fn is_differentiated(&self) -> bool {
        use LossKind::{ForwardKl, Jsd, ReverseKl, SkewedForwardKl, SkewedReverseKl};
        let dense = matches!(self.kind, ReverseKl | ForwardKl | Jsd | SkewedReverseKl | SkewedForwardKl);
        dense && self.target != LossTarget::TrustRegion
    }

    /// Writes the defaults of the keys that are used and not set.
    pub(super) fn fill(&mut self) {
        let mut all = Loss::every_key();
        if self.window == Some(LossWindow::Geometric) {
            // A mean over many tokens is much nearer to 1 than one of them.
            (all.window_low, all.window_high) = (Some(0.999), Some(1.001));
        }
        macro_rules! fill {
            ($($key:ident)*) => {$(
                if self.$key.is_none() && self.uses(stringify!($key)) {
                    self.$key = all.$key;
                }
            )*};
        }
        fill!(beta alpha k tail baseline lambda delta u_max eps reference);
        fill!(weight_max window window_low window_high veto scaled ratio clip_low clip_high);
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        let text = |x: Option<f64>| x.map(|x| x.to_string());
        let keys = [
            ("beta", text(self.beta)),
            ("alpha", text(self.alpha)),
            ("k", self.k.map(|k| k.to_string())),
            ("tail", self.tail.map(|on| on.to_string())),
            ("baseline", self.baseline.map(|on| on.to_string())),
            ("lambda", text(self.lambda)),
            ("delta", text(self.delta)),
            ("u_max", text(self.u_max)),
            ("eps", text(self.eps)),
            ("weight_max", text(self.weight_max)),
            ("window", self.window.map(|window| format!("{window:?}").to_lowercase())),
            ("window_low", text(self.window_low)),
            ("window_high", text(self.window_high)),
            ("veto", text(self.veto)),
            ("scaled", self.scaled.map(|on| on.to_string())),
            ("ratio", self.ratio.map(|ratio| format!("{ratio:?}").to_lowercase())),
            ("clip_low", text(self.clip_low)),
            ("clip_high", text(self.clip_high)),
            ("reference", self.reference.as_ref().map(|reference| format!("{reference:?}"))),
        ];
        for (key, value) in keys {
            let used = self.uses(key);
            let must = if used { "set" } else { "left out: this kind, support, target and weight do not use it" };
            need(&format!("loss.{key}"), value.as_deref().unwrap_or("missing"), value.is_some() == used, must)?;
        }
        let plain = matches!(self.kind, LossKind::ReverseKl | LossKind::ForwardKl);
        let must = "\"dense\" unless `loss.kind` is \"reverse-kl\" or \"forward-kl\"";
        let head_tail = self.kind == LossKind::HeadTail;
        need("loss.support", "a top-k", plain || head_tail || self.support == LossSupport::Dense, must)?;
        let must = "\"teacher-top-k\" or \"student-top-k\": the head that is exact";
        need("loss.support", "\"dense\"", !head_tail || self.support != LossSupport::Dense, must)?;
        let in_range = |key: &str, value: Option<f64>, ok: &dyn Fn(f64) -> bool, must: &str| {
            value.map_or(Ok(()), |x| need(&format!("loss.{key}"), x, ok(x), must))
        };
        let ends = |x: f64| x == 0.0 || x == 1.0 || (0.001..=0.999).contains(&x);
        in_range("beta", self.beta, &ends, "0, 1, or 0.001 to 0.999")?;
        in_range("alpha", self.alpha, &|x| (0.001..=1.0).contains(&x), "0.001 to 1")?;
        in_range("lambda", self.lambda, &|x| (0.0..=10.0).contains(&x), "0 to 10")?;
        in_range("delta", self.delta, &|x| x >= 0.0 && x.is_finite(), "at least 0 and finite; nats")?;
        in_range("u_max", self.u_max, &|x| x > 0.0 && x <= 10.0, "more than 0 and at most 10")?;
        in_range("weight_max", self.weight_max, &|x| x >= 1.0 && x.is_finite(), "at least 1 and finite")?;
        in_range("window_low", self.window_low, &|x| (0.0..=1.0).contains(&x), "0 to 1")?;
        in_range("window_high", self.window_high, &|x| x >= 1.0 && x.is_finite(), "at least 1 and finite")?;
        in_range("veto", self.veto, &|x| (0.0..1.0).contains(&x), "at least 0 and less than 1")?;
        in_range("clip_low", self.clip_low, &|x| x > 0.0 && x <= 1.0, "more than 0 and at most 1")?;
        in_range("clip_high", self.clip_high, &|x| x > 0.0 && x.is_finite(), "more than 0 and finite")?;
        let teacher = self.kind != LossKind::Grpo || self.target == LossTarget::Teacher;
        need("loss.target", "a target", teacher, "left out with \"grpo\", whose loss has no teacher")?;
        in_range("eps", self.eps, &|x| x > 0.0 && x.is_finite(), "more than 0 and finite; nats")?;
        if let Some(k) = self.k {
            let must = "at least 1, or 2 with tail = false: one renormalised token has no divergence";
            need("loss.k", k, k >= if self.tail == Some(false) { 2 } else { 1 }, must)?;
        }
        let named = self.reference.as_ref().is_none_or(|r| r == STUDENT || Path::new(r).is_absolute());
        need(
            "loss.reference",
            format!("{:?}", self.reference.as_deref().unwrap_or("")),
            named,
            "\"student\" or a folder",
        )
    }

    /// The folder of the reference; `student` is that of the student.
    #[must_use]
    pub fn reference_dir(&self, student: &Path) -> Option<PathBuf> {
        self.reference.as_ref().map(|r| if r == STUDENT { student.to_owned() } else { PathBuf::from(r) })
    }

    /// How tokens are weighted.
    ///
    /// # Panics
    /// When [`super::Config::check`] refuses the values.
    #[must_use]
    pub fn weighting(&self) -> Option<Weighting> {
        let set = |value: Option<f64>| value.expect("a checked loss has the keys that it uses");
        Some(match self.weight {
            LossWeight::None => return None,
            LossWeight::TokenTis => Weighting::TokenTis { max: set(self.weight_max) },
            LossWeight::SequenceTis => Weighting::SequenceTis { max: set(self.weight_max) },
            LossWeight::Mask => Weighting::Mask {
                window: match self.window.expect("as above") {
                    LossWindow::Token => Window::Token,
                    LossWindow::Sequence => Window::Sequence,
                    LossWindow::Geometric => Window::Geometric,
                },
                low: set(self.window_low),
                high: set(self.window_high),
                veto: set(self.veto),
            },
            LossWeight::PrefixSnis => Weighting::PrefixSnis,
        })
    }

    /// The policy gradient of groups of `group` completions, where that is the loss.
    ///
    /// # Panics
    /// When [`super::Config::check`] refuses the values.
    #[must_use]
    pub fn grpo(&self, group: usize) -> Option<Grpo> {
        let set = |value: Option<f64>| value.expect("a checked loss has the keys that it uses");
        (self.kind == LossKind::Grpo).then(|| Grpo {
            group,
            scaled: self.scaled.expect("as above"),
            clip_low: set(self.clip_low),
            clip_high: set(self.clip_high),
            old: match self.ratio.expect("as above") {
                LossRatio::Naive => Old::Rollout,
                LossRatio::Recomputed => Old::Trainer,
            },
        })
    }

    /// What is computed.
    ///
    /// # Panics
    /// When [`super::Config::check`] refuses the values.
    #[must_use]
    pub fn objective(&self) -> Objective {
        let set = |value: Option<f64>| value.expect("a checked loss has the keys that it uses");
        let target = match self.target {
            LossTarget::Teacher => Target::Teacher,
            LossTarget::Extrapolated => Target::Extrapolated { lambda: set(self.lambda) },
            LossTarget::Bounded => Target::Bounded { delta: set(self.delta), u_max: set(self.u_max) },
            LossTarget::TrustRegion => Target::TrustRegion { eps: set(self.eps) },
        };
        let direction = match self.kind {
            LossKind::ForwardKl | LossKind::SkewedForwardKl => Direction::Forward,
            _ => Direction::Reverse,
        };
        let top_k = |whose| Divergence::TopK {
            direction,
            whose,
            k: self.k.expect("as above") as usize,
            tail: self.tail.expect("as above"),
        };
        let sampled = |baseline, estimate| Divergence::Sampled { baseline, estimate };
        let head_tail = |whose| Divergence::HeadTail { whose, k: self.k.expect("as above") as usize };
        let divergence = match (self.kind, self.support) {
            (LossKind::HeadTail, LossSupport::StudentTopK) => head_tail(Whose::Student),
            (LossKind::HeadTail, _) => head_tail(Whose::Teacher),
            (_, LossSupport::TeacherTopK) => top_k(Whose::Teacher),
            (_, LossSupport::StudentTopK) => top_k(Whose::Student),
            (LossKind::ReverseKl, _) => Divergence::Reverse,
            (LossKind::ForwardKl, _) => Divergence::Forward,
            (LossKind::Jsd, _) => Divergence::Jsd { beta: set(self.beta) },
            (LossKind::SkewedReverseKl | LossKind::SkewedForwardKl, _) => {
                Divergence::Skewed { direction, alpha: set(self.alpha) }
            }
            (LossKind::Sampled, _) => sampled(self.baseline.expect("as above"), Estimate::K1),
            (LossKind::Grpo, _) => Divergence::Score,
            (LossKind::K2, _) => sampled(false, Estimate::K2),
            (LossKind::K3StraightThrough, _) => sampled(false, Estimate::K3),
        };
        Objective { target, divergence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Option<String> {
        let mut loss: Loss = toml::from_str(text).expect("TOML");
        loss.fill();
        loss.check().err().map(|fault| fault.to_string())
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let cases = [
            ("beta = 0.5", "`loss.beta` is 0.5; it must be left out"),
            ("kind = \"jsd\"\nalpha = 0.5", "`loss.alpha` is 0.5; it must be left out"),
            ("k = 4", "`loss.k` is 4; it must be left out"),
            ("tail = true", "`loss.tail` is true; it must be left out"),
            ("baseline = true", "`loss.baseline` is true; it must be left out"),
            ("lambda = 1.0", "`loss.lambda` is 1; it must be left out"),
            ("delta = 0.1", "`loss.delta` is 0.1; it must be left out"),
            ("target = \"extrapolated\"\nu_max = 1.0", "`loss.u_max` is 1; it must be left out"),
            ("weight_max = 2.0", "`loss.weight_max` is 2; it must be left out"),
            ("weight = \"mask\"\nweight_max = 2.0", "`loss.weight_max` is 2; it must be left out"),
            ("weight = \"token-tis\"\nweight_max = 0.5", "`loss.weight_max` is 0.5; it must be at least 1"),
            ("weight = \"token-tis\"\nveto = 0.1", "`loss.veto` is 0.1; it must be left out"),
            ("window = \"geometric\"", "`loss.window` is geometric; it must be left out"),
            ("weight = \"mask\"\nwindow_low = 1.5", "`loss.window_low` is 1.5; it must be 0 to 1"),
            ("weight = \"mask\"\nwindow_high = 0.5", "`loss.window_high` is 0.5; it must be at least 1"),
            ("weight = \"mask\"\nveto = 1.0", "`loss.veto` is 1; it must be at least 0 and less"),
            ("ratio = \"naive\"", "`loss.ratio` is naive; it must be left out"),
            ("scaled = true", "`loss.scaled` is true; it must be left out"),
            ("kind = \"grpo\"\nclip_low = 0.0", "`loss.clip_low` is 0; it must be more than 0"),
            ("kind = \"grpo\"\nclip_high = inf", "`loss.clip_high` is inf; it must be more than 0"),
            ("kind = \"grpo\"\ntarget = \"trust-region\"", "`loss.target` is a target; it must be left out"),
            ("kind = \"grpo\"\nsupport = \"teacher-top-k\"", "`loss.support` is a top-k; it must be \"dense\""),
            ("kind = \"head-tail\"", "`loss.support` is \"dense\"; it must be \"teacher-top-k\" or"),
            ("kind = \"head-tail\"\nsupport = \"student-top-k\"\ntail = true", "`loss.tail` is true; it must be left"),
            ("kind = \"head-tail\"\nsupport = \"student-top-k\"\nk = 0", "`loss.k` is 0; it must be at least 1"),
            ("kind = \"k2\"\nbaseline = true", "`loss.baseline` is true; it must be left out"),
            ("eps = 0.1", "`loss.eps` is 0.1; it must be left out"),
            ("target = \"trust-region\"\nreference = \"student\"", "`loss.reference` is \"student\"; it must be left"),
            ("kind = \"jsd\"\nsupport = \"teacher-top-k\"", "`loss.support` is a top-k; it must be \"dense\""),
            ("kind = \"jsd\"\nbeta = 1e-9", "`loss.beta` is 0.000000001; it must be 0, 1, or"),
            ("kind = \"skewed-forward-kl\"\nalpha = 0.0", "`loss.alpha` is 0; it must be 0.001 to 1"),
            ("support = \"teacher-top-k\"\nk = 1\ntail = false", "`loss.k` is 1; it must be at least 1, or 2"),
            ("support = \"teacher-top-k\"\nk = 0", "`loss.k` is 0; it must be at least 1"),
            ("target = \"extrapolated\"\nlambda = -1.0", "`loss.lambda` is -1; it must be 0 to 10"),
            ("target = \"bounded\"\ndelta = -0.1", "`loss.delta` is -0.1; it must be at least 0"),
            ("target = \"bounded\"\nu_max = 0.0", "`loss.u_max` is 0; it must be more than 0"),
            ("target = \"trust-region\"\neps = 0.0", "`loss.eps` is 0; it must be more than 0"),
            ("target = \"bounded\"\nreference = \"\"", "`loss.reference` is \"\"; it must be \"student\" or a folder"),
        ];
        for (text, want) in cases {
            let got = faults(text).unwrap_or_else(|| panic!("{text} is taken"));
            assert!(got.starts_with(want), "{text}: {got}");
        }
        assert_eq!(faults("support = \"student-top-k\"\nk = 1"), None, "with a tail one token is enough");
    }
}
