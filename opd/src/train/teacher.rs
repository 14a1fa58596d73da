//! The teacher, as the learner sees it: here, in another process, or in the hands of the scoring stage.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::engine::Engine;
use engine::rollout::{Limits, Request, Rollout};
use ptx::cuda::CudaError;
use ptx::ops::linear::Packed;

use super::{TrainError, Trainer};
use crate::eval::{PromptFailed, collect};
use crate::flow::{Answer, RemoteTeacher, Teacher as _};
use crate::loss::{Logits, View};
use crate::sequences::Row;
use crate::side::Beside;
use crate::teach::TeachError;

/// Where the teacher is.
#[derive(Debug)]
pub(super) enum Teacher {
    /// In this process: `teacher`, and behind it those of `task.teachers` in order of their names. The scoring stage
    /// shares their weights, where there is one on the CPU.
    Here(Vec<Local>),
    /// In another process, which is asked in turn with everything else. Its head is here.
    Remote(Box<RemoteTeacher>, Arc<Packed>),
    /// In another process, in the hands of the scoring stage.
    Staged(Arc<Packed>),
}

/// One of the teachers in this process.
#[derive(Debug)]
pub(super) struct Local {
    pub engine: Engine,
    pub side: Beside,
}

impl Teacher {
    /// Logits of a micro-batch's predicting rows by their teacher: from `hidden`, where rows were made elsewhere, of whose
    /// values `used` were used before; else from the model here.
    pub fn logits<'a>(
        &'a mut self,
        hidden: Option<&'a [f32]>,
        used: &mut usize,
        rows: &[Row],
    ) -> Result<Logits<'a>, CudaError> {
        let which = rows[0].teacher;
        assert!(rows.iter().all(|row| row.teacher == which), "a micro-batch has one teacher");
        let head = match (self, hidden) {
            (Teacher::Here(all), None) => {
                let Local { engine, side } = &mut all[which];
                side.run(engine, rows)?;
                return Ok(side.logits(engine));
            }
            (Teacher::Here(all), Some(_)) => all[which].engine.model().head(),
            (Teacher::Remote(_, head) | Teacher::Staged(head), _) => &**head,
        };
        let hidden = hidden.expect("rows of a teacher elsewhere come with the batch");
        let count: usize = rows.iter().map(|row| row.targets().len()).sum();
        let own = *used..*used + count * head.k(); // teachers may differ in width
        *used = own.end;
        Ok(View { head, hidden: &hidden[own] }.into())
    }

    /// The one in another process, where the learner asks it itself.
    pub fn remote(&mut self) -> Option<&mut RemoteTeacher> {
        match self {
            Teacher::Remote(remote, _) => Some(remote),
            Teacher::Here(_) | Teacher::Staged(_) => None,
        }
    }

    /// Those in this process, which can sample.
    pub fn here(&mut self) -> Option<&mut [Local]> {
        match self {
            Teacher::Here(all) => Some(all),
            Teacher::Remote(..) | Teacher::Staged(_) => None,
        }
    }

    /// Lets one in another process end.
    pub fn finish(&mut self) {
        if let Teacher::Remote(remote, head) = self {
            remote.finish();
            *self = Teacher::Staged(Arc::clone(head));
        }
    }
}

/// Completions of `requests`, each by its own teacher, in order of request and sample. An engine on the CPU has no pages;
/// another with `pages` takes its place, which shares the weights.
pub(super) fn sample_by_own(
    teachers: &mut [Local],
    own: &[usize],
    requests: &[Request],
    limits: Limits,
    pages: usize,
    tick: &mut dyn FnMut(&Rollout),
) -> Result<Vec<Rollout>, PromptFailed> {
    let mut all = Vec::new();
    for (which, Local { engine, .. }) in teachers.iter_mut().enumerate() {
        let places: Vec<usize> = (0..requests.len()).filter(|&at| own[at] == which).collect();
        if places.is_empty() {
            continue;
        }
        let mine: Vec<Request> = places.iter().map(|&at| requests[at].clone()).collect();
        let mut beside = None;
        let engine = if engine.device().is_cpu() { beside.insert(engine.beside(pages)) } else { engine };
        let rollouts = collect(engine, &mine, limits, tick)
            .map_err(|failed| PromptFailed { prompt: places[failed.prompt], ..failed })?;
        all.extend(rollouts.into_iter().map(|rollout| Rollout { request: places[rollout.request], ..rollout }));
    }
    all.sort_by_key(|rollout| (rollout.request, rollout.sample));
    Ok(all)
}

/// Answers to groups of rows, all under way together as far as the teacher takes them.
pub(super) fn score(teacher: &mut RemoteTeacher, groups: &[Vec<Row>], version: u64) -> Result<Vec<Answer>, TeachError> {
    let mut answers = Vec::with_capacity(groups.len());
    let mut asked = 0;
    while answers.len() < groups.len() {
        while asked < groups.len() && asked - answers.len() < teacher.window() {
            teacher.ask(&groups[asked], version)?;
            asked += 1;
        }
        answers.extend(teacher.answer()?);
    }
    Ok(answers)
}

impl Trainer {
    /// Hashes of the recipes that the teachers in this process run in, in the order of [`crate::config::Config::teachers`].
    #[must_use]
    pub fn teacher_recipes(&self) -> Vec<String> {
        match &self.teacher {
            Teacher::Here(all) => all.iter().map(|local| local.engine.recipe().hash()).collect(),
            Teacher::Remote(..) | Teacher::Staged(_) => Vec::new(),
        }
    }

    /// The mean over the tokens of each teacher's rows, by its name; none where there is one teacher, and none of a teacher
    /// without rows. `by_token` is of all rows' completion tokens in order.
    pub(super) fn by_teacher(&self, rows: &[Row], by_token: &[f64]) -> Option<BTreeMap<String, f64>> {
        let named = self.config.teachers();
        if named.len() == 1 {
            return None;
        }
        let mut sums = vec![(0.0, 0_u32); named.len()];
        let mut rest = by_token;
        for row in rows {
            let (own, later) = rest.split_at(row.targets().len());
            rest = later;
            let (sum, tokens) = &mut sums[row.teacher];
            *sum += own.iter().sum::<f64>();
            *tokens += u32::try_from(own.len()).expect("rows are short");
        }
        let means = named.iter().zip(sums).filter(|(_, (_, tokens))| *tokens > 0);
        Some(means.map(|(&(name, _), (sum, tokens))| (name.to_owned(), sum / f64::from(tokens))).collect())
    }

    /// Scores of a teacher elsewhere, row by row; an error where it has none of any.
    pub(super) fn hidden_of(&mut self, update: u64, rows: &[Row]) -> Result<Scores, TrainError> {
        let failed = |source| TrainError::Wait { update, source };
        let answers = match (&mut self.teacher, &mut self.stages) {
            (Teacher::Here(_), _) => return Ok(Scores { hidden: None, scored: vec![true; rows.len()] }),
            (Teacher::Remote(remote, _), _) => {
                let groups: Vec<Vec<Row>> = rows.iter().map(|row| vec![row.clone()]).collect();
                score(remote, &groups, update).map_err(|source| failed(source.into()))?
            }
            (Teacher::Staged(_), Some(stages)) => stages.score(rows).map_err(failed)?,
            (Teacher::Staged(_), None) => unreachable!("the stages end with the run"),
        };
        let (mut hidden, mut scored, mut last) = (Vec::new(), Vec::new(), None);
        for answer in answers {
            scored.push(answer.is_ok());
            match answer {
                Ok(own) => hidden.extend(own),
                Err(why) => last = Some(why),
            }
        }
        match last {
            Some(why) if !scored.contains(&true) => Err(TrainError::NoScores { update, why }),
            _ => Ok(Scores { hidden: Some(hidden), scored }),
        }
    }
}

/// Scores that were made elsewhere.
pub(super) struct Scores {
    /// Hidden rows of the rows that have any, one after the other; none where the teacher is here.
    pub hidden: Option<Vec<f32>>,
    /// Whether there are any, by row.
    pub scored: Vec<bool>,
}
