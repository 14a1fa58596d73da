//! The teacher, as the learner sees it: here, in another process, or in the hands of the scoring stage.

use std::sync::Arc;

use engine::engine::Engine;
use ptx::cuda::CudaError;
use ptx::ops::linear::Packed;

use super::{TrainError, Trainer};
use crate::flow::{Answer, RemoteTeacher, Teacher as _};
use crate::loss::{Logits, View};
use crate::sequences::Row;
use crate::side::Beside;
use crate::teach::TeachError;

/// Where the teacher is.
#[derive(Debug)]
pub(super) enum Teacher {
    /// In this process. The scoring stage shares its weights, where there is one on the CPU.
    Here { engine: Box<Engine>, side: Beside },
    /// In another process, which is asked in turn with everything else. Its head is here.
    Remote(Box<RemoteTeacher>, Arc<Packed>),
    /// In another process, in the hands of the scoring stage.
    Staged(Arc<Packed>),
}

impl Teacher {
    /// Logits of a micro-batch's predicting rows: from `hidden`, where rows were made elsewhere, of which `used` were used
    /// before; else from the model here.
    pub fn logits<'a>(
        &'a mut self,
        hidden: Option<&'a [f32]>,
        used: &mut usize,
        rows: &[Row],
    ) -> Result<Logits<'a>, CudaError> {
        let head = match (self, hidden) {
            (Teacher::Here { engine, side }, None) => {
                side.run(engine, rows)?;
                return Ok(side.logits(engine));
            }
            (Teacher::Here { engine, .. }, Some(_)) => engine.model().head(),
            (Teacher::Remote(_, head) | Teacher::Staged(head), _) => &**head,
        };
        let hidden = hidden.expect("rows of a teacher elsewhere come with the batch");
        let count: usize = rows.iter().map(|row| row.targets().len()).sum();
        let own = *used * head.k()..(*used + count) * head.k();
        *used += count;
        Ok(View { head, hidden: &hidden[own] }.into())
    }

    /// The one in another process, where the learner asks it itself.
    pub fn remote(&mut self) -> Option<&mut RemoteTeacher> {
        match self {
            Teacher::Remote(remote, _) => Some(remote),
            Teacher::Here { .. } | Teacher::Staged(_) => None,
        }
    }

    /// Its engine, where that is here.
    pub fn engine(&mut self) -> Option<&mut Engine> {
        match self {
            Teacher::Here { engine, .. } => Some(engine),
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
    /// Hash of the recipe that the teacher runs in, where it is in this process.
    #[must_use]
    pub fn teacher_recipe(&self) -> Option<String> {
        match &self.teacher {
            Teacher::Here { engine, .. } => Some(engine.recipe().hash()),
            Teacher::Remote(..) | Teacher::Staged(_) => None,
        }
    }

    /// Hidden rows of a teacher elsewhere; none where it is here.
    pub(super) fn hidden_of(&mut self, update: u64, rows: &[Row]) -> Result<Option<Vec<f32>>, TrainError> {
        let failed = |source| TrainError::Wait { update, source };
        let answer = match (&mut self.teacher, &mut self.stages) {
            (Teacher::Here { .. }, _) => return Ok(None),
            (Teacher::Remote(remote, _), _) => {
                let groups: Vec<Vec<Row>> = rows.iter().map(|row| vec![row.clone()]).collect();
                let answers = score(remote, &groups, update).map_err(|source| failed(source.into()))?;
                answers.into_iter().collect::<Result<Vec<_>, _>>().map(|rows| rows.concat())
            }
            (Teacher::Staged(_), Some(stages)) => return stages.score(rows).map(Some).map_err(failed),
            (Teacher::Staged(_), None) => unreachable!("the stages end with the run"),
        };
        match answer {
            Ok(hidden) => Ok(Some(hidden)),
            Err(why) => Err(TrainError::NoScores { update, why }),
        }
    }
}
