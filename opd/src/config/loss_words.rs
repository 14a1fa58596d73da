//! The words that keys of `[loss]` take.

use serde::{Deserialize, Serialize};

/// A divergence between student and target at each prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// KL(student || target).
    #[default]
    ReverseKl,
    /// KL(target || student).
    ForwardKl,
    /// Generalised Jensen-Shannon.
    Jsd,
    /// KL(student || mixture).
    SkewedReverseKl,
    /// KL(target || mixture).
    SkewedForwardKl,
    /// Policy gradient of the sampled token.
    Sampled,
    /// Half the squared log-ratio of the sampled token.
    K2,
    /// The value of k3 with the gradient of k2.
    K3StraightThrough,
    /// KL(student || target), exact on a top-k support and one weighted draw off it.
    HeadTail,
    /// Group-relative policy gradient on the task's own judgement.
    Grpo,
}

/// What a token's loss is weighted by, from the ratio of trainer to rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossWeight {
    /// Nothing.
    #[default]
    None,
    /// The truncated ratio of the token.
    TokenTis,
    /// The truncated ratio of the sequence.
    SequenceTis,
    /// 1 in a window of ratios, 0 outside.
    Mask,
    /// The ratio of the prefix, self-normalised.
    PrefixSnis,
}

/// What a mask looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossWindow {
    /// The ratio of each token.
    #[default]
    Token,
    /// The product over the sequence.
    Sequence,
    /// Its geometric mean.
    Geometric,
}

/// What the ratio of `grpo` is to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossRatio {
    /// The rollout's logprobs.
    Naive,
    /// The trainer's own before the update.
    #[default]
    Recomputed,
}

/// The tokens that a KL is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossSupport {
    /// The whole vocabulary.
    #[default]
    Dense,
    /// The teacher's most probable.
    TeacherTopK,
    /// The student's most probable.
    StudentTopK,
}

/// What the student is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossTarget {
    /// The teacher.
    #[default]
    Teacher,
    /// Along the line from reference through teacher, at a fixed place.
    Extrapolated,
    /// Along it as far as a bound allows, at each prefix.
    Bounded,
    /// From the student towards the teacher as far as a bound allows, at each prefix.
    TrustRegion,
}
