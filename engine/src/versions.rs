//! The weights versions that an engine can run: the present one, and as many before it as were asked for, so that KV
//! which earlier versions wrote can be rebuilt.

use std::collections::VecDeque;
use std::sync::Arc;

use ptx::Cpu;
use ptx::kv_tile::KvScale;

use crate::engine::EngineError;
use crate::model::{Layer, Model, WeightSource};

/// One version of a model's weights, wherever they are held.
pub(crate) trait Weights: Sized {
    /// What is needed to write them.
    type Device;

    /// The version they are.
    ///
    /// # Panics
    /// When writing them failed.
    fn version(&self) -> u64;

    /// Room for another version of the same model.
    fn room(&self, device: &Self::Device) -> Result<Self, EngineError>;

    /// Makes them `version`, in place.
    fn write(&mut self, device: &Self::Device, version: u64, source: &mut dyn WeightSource) -> Result<(), EngineError>;

    /// The scales of keys and values that pages do not carry themselves, as bits.
    fn static_scales(&self) -> Vec<u32>;
}

/// Shared with those that only read it, such as a scoring stage and the loss; then it is never updated.
impl Weights for Arc<Model> {
    type Device = Cpu;

    fn version(&self) -> u64 {
        Model::version(self)
    }

    fn room(&self, _: &Cpu) -> Result<Arc<Model>, EngineError> {
        Ok(Arc::new(Model::empty(self.config.clone(), self.recipe.clone())))
    }

    fn write(&mut self, cpu: &Cpu, version: u64, source: &mut dyn WeightSource) -> Result<(), EngineError> {
        let model = Arc::get_mut(self).expect("a model that others read is not updated");
        Ok(model.update(cpu, version, source)?)
    }

    fn static_scales(&self) -> Vec<u32> {
        self.layers.iter().flat_map(static_scales).collect()
    }
}

/// The static scales of a layer, as bits; none where pages carry theirs.
pub(crate) fn static_scales(layer: &Layer) -> Vec<u32> {
    let all = layer.k_scales.iter().chain(&layer.v_scales);
    if layer.formats.kv_scale == KvScale::Static { all.map(|s| s.to_bits()).collect() } else { Vec::new() }
}

/// The present version and those before it.
#[derive(Debug)]
pub(crate) struct Versions<W> {
    present: W,
    /// The newest last.
    before: VecDeque<W>,
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

impl<W: Weights> Versions<W> {
    /// One version and no memory of others.
    pub fn new(present: W) -> Versions<W> {
        let newest = present.version();
        Versions { present, before: VecDeque::new(), keep: 0, newest, failed: false }
    }

    /// From now on `keep` versions before the present one stay, each a whole copy of the weights. Those beyond leave with
    /// the next update, since samples under way may still need them.
    pub fn retain(&mut self, keep: usize) {
        self.keep = keep;
    }

    /// The present version.
    pub fn present(&self) -> &W {
        &self.present
    }

    /// Version `version`, if it is still here.
    pub fn get(&self, version: u64) -> Option<&W> {
        std::iter::once(&self.present).chain(&self.before).find(|weights| weights.version() == version)
    }

    /// The oldest version that is still here.
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
        device: &W::Device,
        version: u64,
        source: &mut dyn WeightSource,
    ) -> Result<Switch, EngineError> {
        assert!(version > self.newest, "weights version {version} does not follow {}", self.newest);
        let scales = self.present.static_scales();
        self.failed = true;
        if self.keep == 0 {
            self.before.clear();
            self.present.write(device, version, source)?;
        } else {
            // The oldest makes room for the newest, so that no more than `keep` + 1 copies ever exist.
            while self.before.len() > self.keep {
                self.before.pop_front();
            }
            let spare = if self.before.len() == self.keep { self.before.pop_front() } else { None };
            let mut next = match spare {
                Some(spare) => spare,
                None => self.present.room(device)?,
            };
            next.write(device, version, source)?;
            self.before.push_back(std::mem::replace(&mut self.present, next));
        }
        self.newest = version;
        self.failed = false;
        let same_scales = scales == self.present.static_scales();
        Ok(Switch { version, oldest: self.oldest(), same_scales })
    }

    /// False after an update that failed, until one succeeds.
    pub fn usable(&self) -> bool {
        !self.failed
    }

    /// # Panics
    /// When the last update failed.
    pub fn assert_usable(&self) {
        assert!(self.usable(), "the last weights update failed: these weights may not be used");
    }
}
