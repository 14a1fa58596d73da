//! A weights version with noise on its matrices or on its norm gains.

use engine::checkpoint::CheckpointError;
use engine::model::{Gradients, WeightSource};
use ptx::rng::noise_normals;

/// Noise on weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disturbance {
    /// On the gains of norms, each in proportion to itself; else on the elements of matrices, each in proportion to the
    /// root mean square of its matrix.
    pub gains: bool,
    /// Seed of the run.
    pub seed: u64,
    /// Which of the seed's draws.
    pub draw: u32,
    /// Its standard deviation in that proportion.
    pub sigma: f32,
}

/// A source with noise on what it gives. Biases stay as they are. Matrices are the embedding, the projections and the head; a
/// tied head has the noise of the embedding.
#[derive(Debug)]
pub struct Disturbed<'a, S> {
    inner: S,
    weights: &'a Gradients,
    how: Disturbance,
    /// Root mean squares, by parameter, once they were needed.
    rms: Vec<Option<f32>>,
}

impl<'a, S: WeightSource> Disturbed<'a, S> {
    /// `inner` with noise; `weights` are the whole of what it gives, before rounding.
    #[must_use]
    pub fn new(inner: S, weights: &'a Gradients, how: Disturbance) -> Disturbed<'a, S> {
        Disturbed { inner, weights, how, rms: vec![None; weights.params().len()] }
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // a mean, as weights are
    fn rms(&mut self, tensor: usize) -> f32 {
        *self.rms[tensor].get_or_insert_with(|| {
            let all = self.weights.tensor(tensor);
            let squares: f64 = all.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
            (squares / all.len() as f64).sqrt() as f32
        })
    }
}

impl<S: WeightSource> WeightSource for Disturbed<'_, S> {
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        self.inner.rows(name, first, rows, out)?;
        let params = self.weights.params();
        let tensor = params.iter().position(|param| param.name == name).expect("it has the parameters that it gives");
        let (is_matrix, is_gain) = (params[tensor].shape.len() > 1, name.ends_with("norm.weight"));
        let Disturbance { gains, seed, draw, sigma } = self.how;
        let scale = match gains {
            true if is_gain => None,
            false if is_matrix => Some(sigma * self.rms(tensor)),
            _ => return Ok(()),
        };
        let mut at = first * (out.len() / rows); // the element, in the whole parameter
        let tensor = u32::try_from(tensor).expect("parameters are few");
        let mut rest = out;
        while !rest.is_empty() {
            // The place of an element in its block is what it is whichever rows are read.
            let (block, lane) = (u32::try_from(at / 4).expect("elements are below 2^34"), at % 4);
            let normals = noise_normals(seed, [block, tensor, draw]);
            let (own, behind) = rest.split_at_mut(rest.len().min(4 - lane));
            for (x, normal) in own.iter_mut().zip(&normals[lane..]) {
                *x += scale.unwrap_or(sigma * *x) * normal;
            }
            at += own.len();
            rest = behind;
        }
        Ok(())
    }

    fn finished(&mut self, name: &str) {
        self.inner.finished(name);
    }

    fn kv_scales(&self, layer: usize) -> Option<(f32, f32)> {
        self.inner.kv_scales(layer)
    }
}
