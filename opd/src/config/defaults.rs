//! Every default of the run file.

use std::path::PathBuf;

use super::{Checkpoint, Dynamics, Eval, InFlight, Offline, OfflineLoss, Precision, Rollout, Train};

pub(super) fn updates() -> u32 {
    200
}

pub(super) fn out() -> PathBuf {
    PathBuf::from("runs/opd")
}

pub(super) fn wait_s() -> f64 {
    600.0
}

pub(super) fn max_prompt() -> u32 {
    1024
}

impl Default for Rollout {
    fn default() -> Rollout {
        Rollout {
            recipe: "identity".to_string(),
            n: 4,
            temperature: 1.0,
            top_p: 1.0,
            max_tokens: 256, // a procedural task says itself what it needs
            staleness_max: 0,
            in_flight: InFlight::Drain,
            kv_memory: None,
        }
    }
}

impl Default for Train {
    fn default() -> Train {
        Train {
            precision: Precision::Bf16,
            lr: 1e-4,
            warmup: 10,
            decay: 0,
            clip: 1.0,
            batch: 64,
            weight_decay: 0.01,
            beta1: 0.9,
            beta2: 0.95,
        }
    }
}

impl Default for Eval {
    fn default() -> Eval {
        Eval { problems: 256, every: 50, temperature: 0.0, kl_prompts: 64 }
    }
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint { every: 50 }
    }
}

impl Default for Dynamics {
    fn default() -> Dynamics {
        Dynamics { every: 50, prompts: 32, continuations: 8, cut: 0.5 }
    }
}

impl Default for Offline {
    fn default() -> Offline {
        Offline { updates: 20, loss: OfflineLoss::ForwardKl }
    }
}
