//! The rollout's own view of what it sampled, at the weights version of each token: what mismatch is measured against
//! where rollouts are not all of the present version.
//!
//! A token's distribution is that of its version over the whole prefix. Where keys and values are kept over a change of
//! weights the rollout read some of an earlier version; that part of the difference is not seen here, but in k3 it is.

use engine::engine::{Engine, EngineError};
use engine::model::WeightSource;
use engine::rollout::Rollout;
use ptx::cuda::CudaError;

use crate::loss::{Logits, NO_MODEL, View};
use crate::sequences::{Packed, Row};
use crate::side::Side;

/// The student in the rollout's recipe, at the present version and at those that may still be trained on.
#[derive(Debug)]
pub(super) struct Past {
    engine: Engine,
    how: How,
    /// Versions behind the micro-batch that was run last.
    versions: Vec<u64>,
    /// Which of them each predicting row is of.
    of: Vec<usize>,
}

#[derive(Debug)]
enum How {
    /// On the CPU; hidden rows of the micro-batch by version.
    Here(Box<Side>, Vec<Vec<f32>>),
    /// On a device, where a micro-batch is of one version. The row of the step behind each predicting token.
    There(Packed, Vec<usize>),
}

impl Past {
    /// Keeps `cap` versions before the present one.
    pub fn new(mut engine: Engine, cap: usize, micro_tokens: usize, rows: usize) -> Past {
        engine.retain_versions(cap);
        let how = if engine.device().is_cpu() {
            How::Here(Box::new(Side::new(engine.model(), micro_tokens, rows)), Vec::new())
        } else {
            How::There(Packed::default(), Vec::new())
        };
        Past { engine, how, versions: Vec::new(), of: Vec::new() }
    }

    /// Takes the next version.
    pub fn update(&mut self, version: u64, source: &mut dyn WeightSource) -> Result<(), EngineError> {
        self.engine.update(version, source).map(drop)
    }

    /// Whether a micro-batch is of one version.
    pub fn one_version(&self) -> bool {
        matches!(self.how, How::There(..))
    }

    /// Runs a micro-batch; what [`Past::logits`] gives is of it.
    pub fn run<'a>(&mut self, rows: &[Row], rollouts: impl Iterator<Item = &'a Rollout>) -> Result<(), CudaError> {
        let Past { engine, how, versions, of } = self;
        versions.clear();
        of.clear();
        for version in rollouts.flat_map(token_versions) {
            let at = versions.iter().position(|&known| known == version);
            of.push(if engine.holds(version) {
                at.unwrap_or_else(|| {
                    versions.push(version);
                    versions.len() - 1
                })
            } else {
                NO_MODEL
            });
        }
        match how {
            How::Here(side, hidden) => {
                hidden.resize_with(versions.len(), Vec::new);
                for (&version, into) in versions.iter().zip(hidden) {
                    let cpu = std::sync::Arc::clone(engine.cpu());
                    side.run(&cpu, engine.model_at(version).expect("it is held"), rows);
                    into.clone_from(&side.hidden);
                }
            }
            How::There(packed, predicting) => {
                assert!(versions.len() < 2, "a micro-batch on a device is of one version");
                if let Some(&version) = versions.first() {
                    packed.fill(engine.kv_mut(), rows);
                    let ran = engine.step_at(version, packed.feeds());
                    predicting.clone_from(&packed.predicting);
                    packed.clear(engine.kv_mut());
                    ran?;
                }
            }
        }
        Ok(())
    }

    /// Logits of the predicting rows; none where no version of them is held any more.
    pub fn logits(&mut self) -> Option<Logits<'_>> {
        let Past { engine, how, versions, of } = self;
        if versions.is_empty() {
            return None;
        }
        Some(match how {
            How::Here(_, hidden) => {
                let mut views = Vec::with_capacity(versions.len());
                for (&version, hidden) in versions.iter().zip(&*hidden) {
                    views.push(View { head: engine.model_at(version).expect("it is held").head(), hidden });
                }
                Logits::Several { views, of }
            }
            How::There(_, rows) => Logits::Step { engine, rows },
        })
    }
}

/// The version that sampled each token.
pub(super) fn token_versions(rollout: &Rollout) -> impl Iterator<Item = u64> {
    let ends = rollout.versions.iter().skip(1).map(|&(first, _)| first).chain([rollout.ids.len()]);
    rollout.versions.iter().zip(ends).flat_map(|(&(first, version), end)| (first..end).map(move |_| version))
}
