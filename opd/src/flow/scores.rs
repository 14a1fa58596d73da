//! The scoring stage: the teacher's hidden rows of every sampled prompt, as it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use engine::model::Model;
use ptx::Cpu;

use super::{In, Out, Sampled, Scored};
use crate::clock::Stopwatch;
use crate::eval::row;
use crate::sequences::{Row, micro_batches};
use crate::side::Side;

/// Who scores: hidden rows of the predicting tokens of `rows`, `[predicting, hidden]`.
pub(crate) trait Teacher: Send {
    fn hidden(&mut self, rows: &[Row]) -> Vec<f32>;
}

/// A teacher in this process, on the CPU.
pub(crate) struct LocalTeacher {
    pub cpu: Arc<Cpu>,
    pub model: Arc<Model>,
    pub side: Box<Side>,
    pub micro_tokens: usize,
}

impl Teacher for LocalTeacher {
    fn hidden(&mut self, rows: &[Row]) -> Vec<f32> {
        let mut hidden = Vec::new();
        for part in micro_batches(rows, self.micro_tokens) {
            self.side.run(&self.cpu, &self.model, &rows[part]);
            hidden.extend_from_slice(&self.side.hidden);
        }
        hidden
    }
}

/// Scores what comes until nobody listens or nothing more comes.
pub(crate) fn score_all(teacher: &mut dyn Teacher, from: &Receiver<Out>, to: &Sender<In>, busy_ns: &AtomicU64) {
    for out in from {
        let scored = match out {
            Out::Sampled(sampled) => {
                let watch = Stopwatch::start();
                let scored = score(teacher, sampled);
                let ns = std::time::Duration::from_secs_f64(watch.elapsed_s()).as_nanos();
                busy_ns.fetch_add(u64::try_from(ns).unwrap_or(u64::MAX), Ordering::Relaxed);
                scored
            }
            Out::Mark(unfinished) => In::Mark(unfinished),
            Out::Failed(broken) => In::Failed(broken),
        };
        if to.send(scored).is_err() {
            return;
        }
    }
}

fn score(teacher: &mut dyn Teacher, sampled: Sampled) -> In {
    let rows: Vec<Row> = sampled.rollouts.iter().map(|rollout| row(&sampled.asked.prompt, rollout)).collect();
    let hidden = Some(teacher.hidden(&rows));
    In::Scored(Scored { sampled, hidden })
}
