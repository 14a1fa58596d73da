//! A device against the CPU: logits within what rounding costs anyway, and the same greedy tokens.
//!
//! Two devices add in different orders. What that moves is rounded to the recipe's formats again and again, and sometimes
//! to a neighbour. Both compute the same numbers but for such roundings, so each is as far from them as the recipe's own
//! error, its logits against those of the same weights under the f32 recipe on the CPU; and two of them are at most twice
//! that apart.

use ptx::ops::sample::Params;

use super::copying::Copying;
use super::{Finding, Small, VALID, VOCAB, host, open};
use crate::config::ModelConfig;
use crate::engine::{Device, Engine, EngineError, Feed, LOGIT_ROWS};
use crate::model::WeightSource;
use crate::recipe::{Precision, Recipe};
use crate::rollout::{Answer, Limits, Request, RequestError, Session};

/// Tokens whose logits are compared: more than a page, in one step.
const PROMPT: usize = 40;

/// Compares logits of a prompt and `tokens` greedy tokens.
pub fn agreement(
    device: &Device,
    small: &Small,
    tokens: usize,
    each: &mut dyn FnMut(Finding),
) -> Result<(), EngineError> {
    let cpu = host(device);
    let ids: Vec<u32> = (0..PROMPT).map(|i| u32::try_from(i * 37 % VALID).expect("small")).collect();
    let f32 = Recipe::built_in("f32", Precision::F32, &small.config).expect("a built-in name");
    let exact = Small { recipe: f32, ..small.clone() };
    let (mut ours, mut theirs) = (open(device, small, 16, 64)?, open(&cpu, small, 16, 64)?);
    let got = logits(&mut ours, &ids)?;
    let want = logits(&mut theirs, &ids)?;
    let unrounded = logits(&mut open(&cpu, &exact, 16, 64)?, &ids)?;
    let distance = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from((a - b).abs()))
            .fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
    };
    let (error, allowed) = (distance(&got, &want), 2.0 * distance(&want, &unrounded));
    let worst = error / allowed;
    let failure = (worst.is_nan() || worst > 1.0)
        .then(|| format!("logits are off by {error:.3e}; rounding allows {allowed:.3e}"));
    each(Finding { model: small.name, check: "logits near the CPU's".into(), worst, failure });

    // What is a clear choice for one is for the other.
    let (mut ours, mut theirs) = (clear(device, small, Copying::new)?, clear(&cpu, small, Copying::new)?);
    let (got, want) = (greedy(&mut ours, &ids, tokens)?, greedy(&mut theirs, &ids, tokens)?);
    let other = (0..tokens).find(|&at| got.0[at] != want.0[at]);
    let failure =
        other.map(|at| format!("token {at} is {}, on the CPU {}, {:.3} ahead", got.0[at], want.0[at], want.1[at]));
    let worst = if failure.is_some() { f64::INFINITY } else { 0.0 };
    each(Finding { model: small.name, check: format!("the CPU's {tokens} greedy tokens"), worst, failure });
    Ok(())
}

/// The model with weights by which every choice is clear, from what makes them of its configuration.
fn clear<W: WeightSource>(
    device: &Device,
    small: &Small,
    weights: impl FnOnce(ModelConfig, usize) -> W,
) -> Result<Engine, EngineError> {
    let config = ModelConfig { tied: false, ..small.config.clone() };
    let mut source = weights(config.clone(), VALID);
    Engine::open(device, config, small.recipe.clone(), 0, &mut source, 16, 64, VALID)
}

/// Logits of the real ids at every position, row after row.
fn logits(engine: &mut Engine, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
    let mut sequence = engine.kv().sequence(ids.len());
    engine.kv_mut().append(&mut sequence, ids.len()).expect("the pool is larger");
    let ran = engine.step([Feed { sequence: &sequence, ids }]);
    engine.kv_mut().end(sequence);
    ran?;
    let valid = engine.valid();
    let mut all = Vec::new();
    for first in (0..ids.len()).step_by(LOGIT_ROWS) {
        let block = engine.logits(first..ids.len().min(first + LOGIT_ROWS))?;
        all.extend(block.chunks_exact(VOCAB).flat_map(|row| &row[..valid]));
    }
    Ok(all)
}

/// The likeliest tokens one after the other, and how far ahead of the next each was in its logit.
fn greedy(engine: &mut Engine, prompt: &[u32], tokens: usize) -> Result<(Vec<u32>, Vec<f32>), EngineError> {
    let mut session = Session::new(engine, Limits::default());
    let request = Request {
        prompt: prompt.to_vec(),
        params: Params { temperature: 0.0, ..Params::default() },
        max_tokens: tokens,
        top_logprobs: 2,
        ..Request::default()
    };
    session.submit(engine, 0, request).expect("it can be served");
    let (mut found, mut broken) = (None, None);
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => {
            let ahead = rollout.top.iter().map(|top| top[0].logprob_raw - top[1].logprob_raw).collect();
            found = Some((rollout.ids, ahead));
        }
        Answer::Failed { error: RequestError::Device(error), .. } => broken = Some(error),
        other => panic!("{other:?}"),
    };
    while session.step(engine, &mut answer) {}
    match broken {
        Some(error) => Err(error.into()),
        None => Ok(found.expect("one completion")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use ptx::Cpu;

    use super::*;
    use crate::checkpoint::CheckpointError;
    use crate::selftest::models;

    /// The weights without those whose names contain a part, which are 0.
    struct Without(Copying, &'static str);

    impl WeightSource for Without {
        fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
            if name.contains(self.1) {
                out.fill(0.0);
                return Ok(());
            }
            self.0.rows(name, first, rows, out)
        }
    }

    fn prompt() -> Vec<u32> {
        (0..20).map(|i| i * 7 % 190).collect()
    }

    /// A device with another order of sums must not be able to fall on the other side of a choice that is called clear:
    /// choices are ahead by several times what rounding at all moves a logit.
    #[test]
    fn clear_models_choose_clearly() {
        let device = Device::Cpu(Arc::new(Cpu::new(1)));
        for small in &models() {
            let mut engine = clear(&device, small, Copying::new).expect("it makes them up");
            let (ids, ahead) = greedy(&mut engine, &prompt(), 200).expect("the CPU does not fail");
            let least = ahead.iter().copied().fold(f32::INFINITY, f32::min);
            let different = ids.iter().collect::<HashSet<_>>().len();
            println!("{}: {least} ahead, {different} ids", small.name);
            assert!(ahead.len() == 200 && least > 3.0, "{}: a choice is {least} ahead", small.name);
            assert!(different > 50, "{}: {different} ids", small.name);
        }
    }

    /// Each part of every layer decides what follows: without it most tokens are others.
    #[test]
    fn clear_choices_need_all_of_the_model() {
        let device = Device::Cpu(Arc::new(Cpu::new(1)));
        for small in &models() {
            let tokens = |without| {
                let of = |config, valid| Without(Copying::new(config, valid), without);
                let mut engine = clear(&device, small, of).expect("it makes them up");
                greedy(&mut engine, &prompt(), 60).expect("the CPU does not fail").0
            };
            let whole = tokens("no such part");
            // Without queries attention is uniform.
            for part in ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"] {
                for layer in ["layers.0", "layers.1"] {
                    let name: &'static str = format!("{layer}.{}.{part}", module(part)).leak();
                    let same = tokens(name).iter().zip(&whole).filter(|(a, b)| a == b).count();
                    assert!(same < 20, "{}: without {name} {same} of 60 tokens are the same", small.name);
                }
            }
        }
    }

    fn module(part: &str) -> &'static str {
        if ["gate_proj", "up_proj", "down_proj"].contains(&part) { "mlp" } else { "self_attn" }
    }

    /// The CPU agrees with itself, to the last bit.
    #[test]
    fn the_cpu_agrees_with_the_cpu() {
        let device = Device::Cpu(Arc::new(Cpu::new(1)));
        for small in &models() {
            let mut each =
                |finding: Finding| assert_eq!((finding.worst, finding.failure), (0.0, None), "{}", small.name);
            agreement(&device, small, 5, &mut each).expect("the CPU does not fail");
        }
    }
}
