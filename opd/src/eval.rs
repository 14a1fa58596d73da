//! Accuracy on held-out prompts.

use engine::engine::Engine;
use engine::rollout::{Finish, Limits, Request, RequestError, Rollout, generate};
use ptx::ops::sample::Params;

use crate::sequences::Row;
use crate::source::{Asked, Source};
use crate::tasks::Split;

/// What was asked and what came back.
#[derive(Debug)]
pub struct Evaluation {
    /// Completions that are right.
    pub correct: u64,
    /// Completions that could be judged.
    pub judged: u64,
    /// Completions cut off by length.
    pub truncated: u64,
    /// Completions in all.
    pub completions: u64,
    /// Prompt and completion of each, for further measurement.
    pub rows: Vec<Row>,
}

impl Evaluation {
    /// Share of right completions; nothing when none could be judged.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // counts
    pub fn accuracy(&self) -> Option<f64> {
        (self.judged > 0).then(|| self.correct as f64 / self.judged as f64)
    }
}

/// How to sample.
#[derive(Clone, Copy, Debug)]
pub struct EvalSettings {
    /// Prompts `0..problems` of the test split.
    pub problems: usize,
    /// 0 is greedy.
    pub temperature: f32,
    /// Most tokens.
    pub max_tokens: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Sample index of the first prompt: keeps the draws apart from those of training.
    pub first_sample: u64,
}

/// A prompt that could not be served.
#[derive(Debug, thiserror::Error)]
#[error("prompt {prompt}: {source}")]
pub struct PromptFailed {
    /// Its number among those asked.
    pub prompt: usize,
    /// Why.
    pub source: RequestError,
}

/// Samples one completion for each held-out prompt and judges it.
pub fn evaluate(
    engine: &mut Engine,
    source: &Source,
    settings: EvalSettings,
    stop_ids: &[u32],
    limits: Limits,
) -> Result<Evaluation, PromptFailed> {
    let asked: Vec<Asked> = (0..settings.problems).map(|i| source.ask(Split::Test, i as u64)).collect();
    let params = Params { temperature: settings.temperature, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let requests: Vec<Request> = asked
        .iter()
        .enumerate()
        .map(|(i, asked)| Request {
            prompt: asked.prompt.clone(),
            samples: 1,
            first_sample: settings.first_sample + i as u64,
            seed: settings.seed,
            params,
            max_tokens: settings.max_tokens,
            stop_ids: stop_ids.to_vec(),
            ..Request::default()
        })
        .collect();
    let rollouts = collect(engine, &requests, limits, &mut |_| {})?;
    let mut result = Evaluation { correct: 0, judged: 0, truncated: 0, completions: 0, rows: Vec::new() };
    for rollout in &rollouts {
        let asked = &asked[rollout.request];
        if let Some(correct) = source.is_correct(asked, &rollout.ids) {
            result.judged += 1;
            result.correct += u64::from(correct);
        }
        result.completions += 1;
        result.truncated += u64::from(rollout.finish == Finish::Length);
        result.rows.push(row(asked, rollout));
    }
    Ok(result)
}

/// A rollout with its prompt, as the trainer runs it.
#[must_use]
pub fn row(asked: &Asked, rollout: &Rollout) -> Row {
    let Asked { prompt, teacher, .. } = asked;
    Row { ids: [&prompt[..], &rollout.ids].concat(), prompt: prompt.len(), teacher: *teacher }
}

/// All rollouts of `requests` in request and sample order, or the first error. `tick` is called as each finishes.
pub fn collect(
    engine: &mut Engine,
    requests: &[Request],
    limits: Limits,
    tick: &mut dyn FnMut(&Rollout),
) -> Result<Vec<Rollout>, PromptFailed> {
    let mut rollouts = Vec::new();
    let mut failed = None;
    generate(engine, requests, limits, &mut |prompt, result| match result {
        Ok(rollout) => {
            tick(&rollout);
            rollouts.push(rollout);
        }
        Err(source) => failed = failed.take().or(Some(PromptFailed { prompt, source })),
    });
    if let Some(error) = failed {
        return Err(error);
    }
    rollouts.sort_by_key(|r| (r.request, r.sample));
    Ok(rollouts)
}
