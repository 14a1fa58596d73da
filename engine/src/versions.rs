//! The weights versions that an engine can run: the present one, and as many before it as were asked for, so that KV
//! which earlier versions wrote can be rebuilt.

use std::collections::VecDeque;

use ptx::Cpu;
use ptx::kv_tile::KvScale;

use crate::checkpoint::CheckpointError;
use crate::model::{Layer, Model, WeightSource};

/// The present version and those before it.
#[derive(Debug)]
pub struct Versions {
    present: Model,
    /// The newest last.
    before: VecDeque<Model>,
    keep: usize,
    /// The highest number that ever stood for weights.
    newest: u64,
    failed: bool,
}

/// What an update changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The version now in force.
    pub version: u64,
    /// The oldest version that can still be run.
    pub oldest: u64,
    /// Whether every static KV scale is what it was. If not, codes that are already in pages mean other values under the
    /// new version, so those pages may not be read on.
    pub same_scales: bool,
}

impl Versions {
    /// One version and no memory of others.
    #[must_use]
    pub fn new(present: Model) -> Versions {
        let newest = present.version();
        Versions { present, before: VecDeque::new(), keep: 0, newest, failed: false }
    }

    /// From now on `keep` versions before the present one stay, each a whole copy of the weights. Those beyond leave with
    /// the next update, since samples under way may still need them.
    pub fn retain(&mut self, keep: usize) {
        self.keep = keep;
    }

    /// The present version.
    #[must_use]
    pub fn present(&self) -> &Model {
        &self.present
    }

    /// Version `version`, if it is still here.
    #[must_use]
    pub fn get(&self, version: u64) -> Option<&Model> {
        std::iter::once(&self.present).chain(&self.before).find(|model| model.version() == version)
    }

    /// The oldest version that is still here.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.before.front().unwrap_or(&self.present).version()
    }

    /// Makes `version` the present one: weights, and with them the static KV scales. Without retained versions it is
    /// written over the old one in place. After a failure nothing may be run until an update succeeds, and the oldest
    /// retained version may be gone.
    ///
    /// # Panics
    /// When `version` is not above every version before: a number stands for one set of weights for good.
    pub fn update(
        &mut self,
        cpu: &Cpu,
        version: u64,
        source: &mut dyn WeightSource,
    ) -> Result<Switch, CheckpointError> {
        assert!(version > self.newest, "weights version {version} does not follow {}", self.newest);
        let scales = static_scales(&self.present.layers);
        self.failed = true;
        if self.keep == 0 {
            self.before.clear();
            self.present.update(cpu, version, source)?;
        } else {
            // The oldest makes room for the newest, so that no more than `keep` + 1 copies ever exist.
            while self.before.len() > self.keep {
                self.before.pop_front();
            }
            let spare = if self.before.len() == self.keep { self.before.pop_front() } else { None };
            let mut next =
                spare.unwrap_or_else(|| Model::empty(self.present.config.clone(), self.present.recipe.clone()));
            next.update(cpu, version, source)?;
            self.before.push_back(std::mem::replace(&mut self.present, next));
        }
        self.newest = version;
        self.failed = false;
        let same_scales = scales == static_scales(&self.present.layers);
        Ok(Switch { version, oldest: self.oldest(), same_scales })
    }

    /// False after an update that failed, until one succeeds.
    #[must_use]
    pub fn usable(&self) -> bool {
        !self.failed
    }

    /// # Panics
    /// When the last update failed.
    pub(crate) fn assert_usable(&self) {
        assert!(self.usable(), "the last weights update failed: these weights may not be used");
    }
}

/// Scales that pages do not carry themselves, as bits.
fn static_scales(layers: &[Layer]) -> Vec<u32> {
    let of = |layer: &Layer| -> Vec<u32> {
        let all = layer.k_scales.iter().chain(&layer.v_scales);
        if layer.formats.kv_scale == KvScale::Static { all.map(|s| s.to_bits()).collect() } else { Vec::new() }
    };
    layers.iter().flat_map(of).collect()
}
