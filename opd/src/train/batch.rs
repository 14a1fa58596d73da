//! What an update trains on: completions of its prompts, sampled now or gathered from the stages, and scores that were made
//! elsewhere.

use engine::rollout::{Limits, Request, Rollout};
use ptx::ops::sample::Params;

use super::teacher::{sample_by_own, score};
use super::{TrainError, Trainer, narrow};
use crate::clock::Stopwatch;
use crate::config::Config;
use crate::eval::{PromptFailed, collect, row};
use crate::flow::Hidden;
use crate::sequences::Row;
use crate::source::Asked;
use crate::tasks::Split;

/// What an update trains on.
pub(super) struct Batch {
    /// Prompt and completion, in order of prompt and sample.
    pub rollouts: Vec<(Asked, Rollout)>,
    pub rows: Vec<Row>,
    /// The teacher's hidden rows of all predicting tokens, where they are made elsewhere.
    pub hidden: Option<Vec<f32>>,
    /// Completions that the teacher has no scores of.
    pub missing: u64,
    /// Seconds that were spent on a teacher elsewhere.
    pub teacher_s: f64,
}

/// Who samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The student in the rollout's recipe.
    Student,
    /// The teacher, which is in this process.
    Teacher,
}

impl Trainer {
    /// What update `update` trains on: sampled now, or gathered from the stages. Completions of one teacher's prompts are
    /// side by side, so that micro-batches, which are of one teacher, are few.
    pub(super) fn batch(&mut self, update: u64, tick: &mut dyn FnMut(usize)) -> Result<Batch, TrainError> {
        let n = self.config.rollout.n as usize;
        let (mut rollouts, mut hidden, mut missing, mut teacher_s) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
        match &mut self.stages {
            None => {
                let mut sampled = self.sample(update, By::Student, tick)?;
                sampled.sort_by_key(|(asked, _)| asked.teacher);
                let Some(remote) = self.teacher.remote() else {
                    let rows = rows_of(&sampled);
                    return Ok(Batch { rollouts: sampled, rows, hidden: None, missing: 0, teacher_s });
                };
                // A prompt's completions are asked for together, so that one which has no scores costs no other.
                let groups: Vec<&[(Asked, Rollout)]> = sampled.chunks(n).collect();
                let rows: Vec<Vec<Row>> = groups.iter().map(|group| rows_of(group)).collect();
                let watch = Stopwatch::start();
                let answers = score(remote, &rows, update - 1);
                teacher_s = watch.elapsed_s();
                let answers = answers.map_err(|source| TrainError::Wait { update, source: source.into() })?;
                for (group, answer) in groups.into_iter().zip(answers) {
                    match answer {
                        Ok(own) => {
                            hidden.push(own);
                            rollouts.extend_from_slice(group);
                        }
                        Err(why) => missing.push(why),
                    }
                }
            }
            Some(stages) => {
                let mut groups = stages
                    .gather(&mut |prompts| tick(prompts * n))
                    .map_err(|source| TrainError::Wait { update, source })?;
                groups.sort_by_key(|(_, group)| group.sampled.asked.teacher);
                for (_, group) in groups {
                    match group.hidden {
                        Hidden::Rows(own) => hidden.push(own),
                        Hidden::NotAsked => {}
                        Hidden::Missing(why) => {
                            missing.push(why);
                            continue;
                        }
                    }
                    let (asked, of) = (group.sampled.asked, group.sampled.rollouts);
                    rollouts.extend(of.into_iter().map(|rollout| (asked.clone(), rollout)));
                }
            }
        }
        if rollouts.is_empty() {
            return Err(TrainError::NoScores { update, why: missing.pop().unwrap_or_default() });
        }
        let (rows, missing) = (rows_of(&rollouts), (missing.len() * n) as u64);
        // All groups are scored elsewhere, or none.
        let hidden = (!hidden.is_empty()).then(|| hidden.concat());
        Ok(Batch { rollouts, rows, hidden, missing, teacher_s })
    }

    /// A request without its prompt and first sample.
    pub(super) fn base_request(config: &Config, stop_ids: &[u32]) -> Request {
        Request {
            samples: config.rollout.n,
            seed: config.seed,
            params: Params { temperature: narrow(config.rollout.temperature), top_k: 0, top_p: 1.0, min_p: 0.0 },
            max_tokens: config.rollout.max_tokens as usize,
            stop_ids: stop_ids.to_vec(),
            ..Request::default()
        }
    }

    /// Completions of the update's prompts, in order of prompt and sample.
    pub(super) fn sample(
        &mut self,
        update: u64,
        by: By,
        tick: &mut dyn FnMut(usize),
    ) -> Result<Vec<(Asked, Rollout)>, TrainError> {
        let (batch, n) = (u64::from(self.config.train.batch), u64::from(self.config.rollout.n));
        let first = (update - 1) * batch;
        let asked: Vec<Asked> = (first..first + batch).map(|i| self.source.ask(Split::Train, i)).collect();
        let base = Trainer::base_request(&self.config, &self.stop_ids);
        let requests: Vec<Request> = asked
            .iter()
            .zip(first..)
            .map(|(asked, prompt)| Request { prompt: asked.prompt.clone(), first_sample: prompt * n, ..base.clone() })
            .collect();
        let limits = Limits { batch: self.config.sequences(), ..Limits::default() };
        let mut finished = 0;
        let mut tick = |_: &Rollout| {
            finished += 1;
            tick(finished);
        };
        let rollouts = match by {
            By::Student => collect(self.rollout.as_mut().unwrap_or(&mut self.policy), &requests, limits, &mut tick),
            By::Teacher => {
                let own: Vec<usize> = asked.iter().map(|asked| asked.teacher).collect();
                let pages = self.policy.kv().pages();
                let teachers = self.teacher.here().expect("it is in this process");
                sample_by_own(teachers, &own, &requests, limits, pages, &mut tick)
            }
        }
        .map_err(|PromptFailed { prompt, source }| TrainError::Rollout {
            update,
            prompt: first + prompt as u64,
            source,
        })?;
        Ok(rollouts.into_iter().map(|rollout| (asked[rollout.request].clone(), rollout)).collect())
    }
}

pub(super) fn rows_of(rollouts: &[(Asked, Rollout)]) -> Vec<Row> {
    rollouts.iter().map(|(asked, rollout)| row(asked, rollout)).collect()
}
