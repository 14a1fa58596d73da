//! Outliers planted into a folder's weights without changing the function that they compute: a positive control for
//! whatever looks for the layers that suffer under few bits, since random weights have none.
//!
//! One factor goes up by a power of two and the other one of the same product down by it, so every product, every sum
//! and every logit keeps its bits in f32 and bf16, within the range of exponents. What grows is the spread of
//! magnitudes that share a scale, and that is what 8-bit formats suffer from.

use std::path::Path;

use ptx::DType;

use crate::checkpoint::{self, Checkpoint, CheckpointError, Param};
use crate::config::ModelConfig;

/// Where an outlier sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The key elements `pair` and `pair + head_dim / 2`, which rotate together, of kv head `kv_head`; the queries of
    /// its group shrink. With QK-norm the gains carry it, which all heads of the layer share, so `kv_head` is not used.
    Keys {
        /// Which kv head.
        kv_head: usize,
        /// Below `head_dim / 2`.
        pair: usize,
    },
    /// Element `dim` of the values of a kv head; the columns of the output projection that read it shrink.
    Values {
        /// Which kv head.
        kv_head: usize,
        /// Below `head_dim`.
        dim: usize,
    },
    /// Row `row` of the up projection; the column of the down projection that reads it shrinks.
    Up {
        /// Below `ffn`.
        row: usize,
    },
}

/// One outlier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlier {
    /// Decoder layer.
    pub layer: usize,
    /// Where in it.
    pub place: Place,
    /// How much larger: a power of two.
    pub factor: f32,
}

/// Why nothing was planted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutlierError {
    /// A place that the model does not have.
    #[error("outlier {outlier:?}: {what} is {value}; the model has 0..{len}")]
    NoPlace {
        /// Which.
        outlier: Outlier,
        /// What is out of range.
        what: &'static str,
        /// Its value.
        value: usize,
        /// How many there are.
        len: usize,
    },
    /// A factor that would change bits.
    #[error("outlier {outlier:?}: the factor must be a power of two from 2^-32 to 2^32, e.g. 4096")]
    Factor {
        /// Which.
        outlier: Outlier,
    },
    /// Reading or writing weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Writes `out`: the model `from` with `outliers`, in F32 if all of `from` is stored so, else in BF16. It holds all values
/// in f32 meanwhile.
pub fn plant(from: &Checkpoint, outliers: &[Outlier], out: &Path) -> Result<ModelConfig, OutlierError> {
    let config = from.config();
    outliers.iter().try_for_each(|outlier| check(config, *outlier))?;
    let f32 = from.tensors().all(|t| t.dtype == DType::F32);
    // Everything is read before anything is written, so that a failure leaves no folder.
    let mut values = std::collections::HashMap::new();
    for tensor in from.tensors() {
        let mut x = vec![0.0; tensor.shape.iter().product()];
        from.read_rows(&tensor.name, 0, tensor.shape[0], &mut x)?;
        let param = Param { name: tensor.name.clone(), shape: tensor.shape.clone() };
        outliers.iter().for_each(|outlier| outlier.scale(config, &param, &mut x));
        values.insert(param.name, x);
    }
    let dtype = if f32 { DType::F32 } else { DType::Bf16 };
    checkpoint::write(out, config, dtype, Some(from.dir()), |param, into| {
        *into = values.remove(&param.name).expect("the same configuration has the same parameters");
    })?;
    Ok(config.clone())
}

fn check(c: &ModelConfig, outlier: Outlier) -> Result<(), OutlierError> {
    let factor = outlier.factor;
    let power_of_two = factor.is_normal() && factor > 0.0 && factor.to_bits() & 0x007f_ffff == 0;
    if !power_of_two || !(-32.0..=32.0).contains(&factor.log2()) {
        return Err(OutlierError::Factor { outlier });
    }
    let limits = match outlier.place {
        Place::Keys { kv_head, pair } => [("kv_head", kv_head, c.kv_heads), ("pair", pair, c.head_dim / 2)],
        Place::Values { kv_head, dim } => [("kv_head", kv_head, c.kv_heads), ("dim", dim, c.head_dim)],
        Place::Up { row } => [("row", row, c.ffn); 2],
    };
    for (what, value, len) in [("layer", outlier.layer, c.layers)].into_iter().chain(limits) {
        if value >= len {
            return Err(OutlierError::NoPlace { outlier, what, value, len });
        }
    }
    Ok(())
}

impl Outlier {
    /// Changes the values of one parameter, if it is one of those concerned.
    fn scale(&self, c: &ModelConfig, param: &Param, x: &mut [f32]) {
        let prefix = format!("model.layers.{}.", self.layer);
        let Some(name) = param.name.strip_prefix(&prefix) else { return };
        let (d, group, up, down) = (c.head_dim, c.heads / c.kv_heads, self.factor, 1.0 / self.factor);
        let columns = param.shape.get(1).copied().unwrap_or(1);
        let mut row = |row: usize, by: f32| x[row * columns..(row + 1) * columns].iter_mut().for_each(|x| *x *= by);
        match (self.place, name) {
            (Place::Keys { pair, .. }, "self_attn.k_norm.weight") => {
                [pair, pair + d / 2].into_iter().for_each(|j| row(j, up))
            }
            (Place::Keys { pair, .. }, "self_attn.q_norm.weight") => {
                [pair, pair + d / 2].into_iter().for_each(|j| row(j, down))
            }
            (Place::Keys { kv_head, pair }, "self_attn.k_proj.weight" | "self_attn.k_proj.bias") if !c.qk_norm => {
                [pair, pair + d / 2].into_iter().for_each(|j| row(kv_head * d + j, up))
            }
            (Place::Keys { kv_head, pair }, "self_attn.q_proj.weight" | "self_attn.q_proj.bias") if !c.qk_norm => {
                for head in kv_head * group..(kv_head + 1) * group {
                    [pair, pair + d / 2].into_iter().for_each(|j| row(head * d + j, down));
                }
            }
            (Place::Values { kv_head, dim }, "self_attn.v_proj.weight" | "self_attn.v_proj.bias") => {
                row(kv_head * d + dim, up);
            }
            (Place::Values { kv_head, dim }, "self_attn.o_proj.weight") => {
                for head in kv_head * group..(kv_head + 1) * group {
                    column(x, columns, head * d + dim, down);
                }
            }
            (Place::Up { row: at }, "mlp.up_proj.weight" | "mlp.up_proj.bias") => row(at, up),
            (Place::Up { row: at }, "mlp.down_proj.weight") => column(x, columns, at, down),
            _ => {}
        }
    }
}

fn column(x: &mut [f32], columns: usize, at: usize, by: f32) {
    x.iter_mut().skip(at).step_by(columns).for_each(|x| *x *= by);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use ptx::Cpu;

    use super::*;
    use crate::engine::{Engine, PAGE_LEN};
    use crate::model::Model;
    use crate::recipe::{Precision, Recipe};
    use crate::rollout::{Limits, ScoreRow, score};

    /// Tiny models whose gains and biases are off their defaults.
    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
    }

    fn logprobs(dir: &Path, recipe: &str) -> Vec<u32> {
        let checkpoint = Checkpoint::open(dir).unwrap();
        let cpu = Arc::new(Cpu::new(1));
        let recipe = Recipe::built_in(recipe, Precision::Bf16, checkpoint.config()).unwrap();
        let model = Model::load(&cpu, &checkpoint, recipe).unwrap();
        let valid = model.config.vocab;
        let mut engine = Engine::new(cpu, model, PAGE_LEN, 8, valid);
        let ids: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % u32::try_from(valid).unwrap()).collect();
        let mut bits = Vec::new();
        score(&mut engine, &[ScoreRow::new(ids.clone())], Limits::default(), &mut |_, row| {
            bits.extend(row.unwrap().logprobs.iter().map(|x| x.to_bits()));
        });
        bits
    }

    fn all_places(c: &ModelConfig, factor: f32) -> Vec<Outlier> {
        let (kv_head, layer) = (c.kv_heads - 1, c.layers - 1);
        [Place::Keys { kv_head, pair: 1 }, Place::Values { kv_head, dim: 2 }, Place::Up { row: 3 }]
            .map(|place| Outlier { layer, place, factor })
            .into()
    }

    /// Bit for bit under f32 and bf16; under 8-bit keys and values the same outliers move every logprob.
    #[test]
    fn the_function_keeps_its_bits() {
        for name in ["qwen3", "qwen2", "llama", "mistral"] {
            let from = golden(name);
            let checkpoint = Checkpoint::open(&from).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let outliers = all_places(checkpoint.config(), 4096.0);
            plant(&checkpoint, &outliers, dir.path()).unwrap();
            assert_ne!(Checkpoint::open(dir.path()).unwrap().model_hash(), checkpoint.model_hash());
            for recipe in ["f32", "bf16"] {
                assert_eq!(logprobs(dir.path(), recipe), logprobs(&from, recipe), "{name} under {recipe}");
            }
            let moved =
                logprobs(dir.path(), "kv8").iter().zip(logprobs(&from, "kv8")).filter(|(a, b)| **a != *b).count();
            assert!(moved > 20, "{name}: {moved} of 39 logprobs moved under kv8");
        }
    }

    #[test]
    fn what_the_model_has_not_is_refused() {
        let checkpoint = Checkpoint::open(&golden("llama")).unwrap();
        let c = checkpoint.config();
        let good = all_places(c, 2.0)[0];
        let target = tempfile::tempdir().unwrap();
        for (bad, want) in [
            (Outlier { factor: 3.0, ..good }, "power of two"),
            (Outlier { factor: -2.0, ..good }, "power of two"),
            (Outlier { factor: f32::INFINITY, ..good }, "power of two"),
            (Outlier { factor: 2.0_f32.powi(33), ..good }, "power of two"),
            (Outlier { layer: c.layers, ..good }, "layer is"),
            (Outlier { place: Place::Keys { kv_head: 0, pair: c.head_dim / 2 }, ..good }, "pair is"),
            (Outlier { place: Place::Values { kv_head: c.kv_heads, dim: 0 }, ..good }, "kv_head is"),
            (Outlier { place: Place::Up { row: c.ffn }, ..good }, "row is"),
        ] {
            let error = plant(&checkpoint, &[bad], &target.path().join("model")).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
    }
}
