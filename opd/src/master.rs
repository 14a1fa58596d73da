//! The trained parameters: f32 master weights with their AdamW moments. A weights version is the master rounded to the
//! training precision.

use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::config::ModelConfig;
use engine::model::{Gradients, Stored, WeightSource};
use engine::recipe::Precision;
use ptx::Cpu;
use ptx::ops::adamw::{self, AdamW};
use ptx::ops::{grad_norm, round};

/// Master weights, first and second moments, and how many updates they have seen.
#[derive(Clone, Debug)]
pub struct Master {
    /// f32 weights.
    pub weights: Gradients,
    /// First moments.
    pub m: Gradients,
    /// Second moments.
    pub v: Gradients,
    /// Updates applied; the weights version.
    pub updates: u64,
    precision: Precision,
}

impl Master {
    /// Reads a checkpoint's weights; the moments start at zero.
    pub fn load(checkpoint: &Checkpoint, precision: Precision) -> Result<Master, CheckpointError> {
        let config = checkpoint.config();
        let mut weights = Gradients::zeros(config);
        for index in 0..weights.params().len() {
            let param = weights.params()[index].clone();
            checkpoint.read_rows(&param.name, 0, param.shape[0], weights.tensor_mut(index))?;
            checkpoint.release(&param.name);
        }
        Ok(Master::new(config, weights, precision))
    }

    /// Master weights as given; the moments start at zero.
    #[must_use]
    pub fn new(config: &ModelConfig, weights: Gradients, precision: Precision) -> Master {
        Master { weights, m: Gradients::zeros(config), v: Gradients::zeros(config), updates: 0, precision }
    }

    /// The precision that versions are rounded to.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Applies one AdamW update. `gradients` are scaled so that their global norm is at most `clip`; returns the norm
    /// before that. Weight decay applies to matrices, not to norms and biases.
    pub fn update(&mut self, cpu: &Cpu, gradients: &Gradients, hyper: AdamW, clip: f32) -> f64 {
        let count = gradients.params().len();
        let squares: f64 = (0..count).map(|i| grad_norm::sum_of_squares(cpu, gradients.tensor(i))).sum();
        let norm = squares.sqrt();
        #[allow(clippy::cast_possible_truncation)] // a factor in (0, 1]
        let scale = if norm > f64::from(clip) { (f64::from(clip) / norm) as f32 } else { 1.0 };
        self.updates += 1;
        for i in 0..count {
            let decay = if gradients.params()[i].shape.len() > 1 { hyper.weight_decay } else { 0.0 };
            let hyper = AdamW { weight_decay: decay, ..hyper };
            let (weights, m, v) = (self.weights.tensor_mut(i), self.m.tensor_mut(i), self.v.tensor_mut(i));
            adamw::step(cpu, hyper, self.updates, scale, weights, gradients.tensor(i), m, v);
        }
        norm
    }

    /// The present weights version as a source for [`engine::model::Model::update`].
    #[must_use]
    pub fn version<'a>(&'a self, cpu: &'a Cpu) -> Version<'a> {
        Version::of(&self.weights, self.precision, cpu)
    }
}

/// The master weights rounded to the training precision.
#[derive(Debug)]
pub struct Version<'a> {
    weights: &'a Gradients,
    precision: Precision,
    cpu: &'a Cpu,
}

impl<'a> Version<'a> {
    /// The version that f32 weights are at a training precision.
    #[must_use]
    pub fn of(weights: &'a Gradients, precision: Precision, cpu: &'a Cpu) -> Version<'a> {
        Version { weights, precision, cpu }
    }

    /// The f32 weights.
    #[must_use]
    pub fn weights(&self) -> &'a Gradients {
        self.weights
    }
}

impl WeightSource for Version<'_> {
    fn stored(&mut self, name: &str, first: usize, rows: usize) -> Result<Option<Stored<'_>>, CheckpointError> {
        if self.precision != Precision::F32 {
            return Ok(None);
        }
        let tensor = self.weights.named(name).expect("the model and its master have the same parameters");
        let param = self.weights.params().iter().find(|param| param.name == name).expect("a tensor has a parameter");
        let width = tensor.len() / param.shape[0];
        Ok(Some(Stored::F32(&tensor[first * width..(first + rows) * width])))
    }

    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let tensor = self.weights.named(name).expect("the model and its master have the same parameters");
        let width = out.len() / rows;
        out.copy_from_slice(&tensor[first * width..(first + rows) * width]);
        if self.precision == Precision::Bf16 {
            round::bf16(self.cpu, out);
        }
        Ok(())
    }
}
