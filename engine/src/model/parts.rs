//! A weights version part by part, for a device that keeps the whole: here only one part exists at a time.

use ptx::Cpu;
use ptx::ops::linear::Packed;

use super::read::{Reader, block_len};
use super::weights::packed;
use super::{Layer, Model, WeightSource};
use crate::checkpoint::{CheckpointError, EMBEDDING, HEAD};
use crate::config::ModelConfig;
use crate::engine::EngineError;
use crate::recipe::{Recipe, StaticScales};

/// A part of a weights version in the recipe's formats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// The embedding, and the head where that is tied.
    Embedding(&'a Packed),
    /// A decoder layer and its static KV scales.
    Layer(usize, &'a Layer),
    /// Gain of the last norm.
    Norm(&'a [f32]),
    /// An untied head.
    Head(&'a Packed),
}

/// Hands the parts of weights version `version` to `each`, every one once: the values that [`Model::update`] would make of
/// the same source. Calibrated scales need the whole model first, so it then exists here for that long.
pub(crate) fn for_each_part(
    cpu: &Cpu,
    config: &ModelConfig,
    recipe: &Recipe,
    version: u64,
    source: &mut dyn WeightSource,
    each: &mut dyn FnMut(Part<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    if matches!(recipe.static_scales, StaticScales::Calibrated(_)) {
        let mut model = Model::empty(config.clone(), recipe.clone());
        model.update(cpu, version, source)?;
        return of_model(&model, each);
    }
    let mut block = vec![0.0; block_len(config)];
    let mut read = Reader { cpu, source, block: &mut block, version };
    let activations = recipe.head.activations;
    let matrix = |read: &mut Reader<'_>, name: &str, format| -> Result<Packed, CheckpointError> {
        let mut matrix = packed(format, config.vocab, config.hidden);
        read.matrix(name, activations, &mut matrix)?;
        Ok(matrix)
    };
    each(Part::Embedding(&matrix(&mut read, EMBEDDING, recipe.embed)?))?;
    let mut layer: Option<Layer> = None;
    for (index, &formats) in recipe.layers.iter().enumerate() {
        // One layer's memory serves all of the same formats.
        let mut own = match layer.take() {
            Some(layer) if layer.formats == formats => layer,
            _ => Layer::empty(config, formats),
        };
        read.layer(config, &recipe.static_scales, index, &mut own)?;
        each(Part::Layer(index, &own))?;
        layer = Some(own);
    }
    drop(layer);
    let mut norm = vec![0.0; config.hidden];
    read.vector("model.norm.weight", &[activations], &mut norm)?;
    each(Part::Norm(&norm))?;
    if !config.tied {
        each(Part::Head(&matrix(&mut read, HEAD, recipe.head.weights)?))?;
    }
    Ok(())
}

/// Hands parts of zeros to `each`: room for a version.
pub(crate) fn for_each_empty_part(
    config: &ModelConfig,
    recipe: &Recipe,
    each: &mut dyn FnMut(Part<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    each(Part::Embedding(&packed(recipe.embed, config.vocab, config.hidden)))?;
    for (index, &formats) in recipe.layers.iter().enumerate() {
        each(Part::Layer(index, &Layer::empty(config, formats)))?;
    }
    each(Part::Norm(&vec![0.0; config.hidden]))?;
    if config.tied { Ok(()) } else { each(Part::Head(&packed(recipe.head.weights, config.vocab, config.hidden))) }
}

fn of_model(model: &Model, each: &mut dyn FnMut(Part<'_>) -> Result<(), EngineError>) -> Result<(), EngineError> {
    each(Part::Embedding(&model.embed))?;
    for (index, layer) in model.layers.iter().enumerate() {
        each(Part::Layer(index, layer))?;
    }
    each(Part::Norm(&model.norm))?;
    if model.config.tied { Ok(()) } else { each(Part::Head(model.head())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::config::Arch;
    use crate::init::{InitSpec, random};
    use crate::recipe::Precision;
    use ptx::DType;

    /// Every value that a device is given is the CPU model's own, scales included, also where layers differ in format.
    #[test]
    fn parts_are_the_models() {
        for (tied, recipe, calibrated) in [(true, "fp8", false), (false, "bf16", false), (false, "mixed", true)] {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let (arch, dtype) = (Arch::Qwen2, DType::Bf16);
            let spec = InitSpec {
                arch,
                hidden: 32,
                layers: 3,
                heads: 2,
                kv_heads: 1,
                head_dim: 16,
                ffn: 48,
                vocab: 40,
                tied,
                seed: 5,
                dtype,
                max_positions: 64,
                rope_theta: 1e4,
                std: 0.3,
            };
            let config = random(dir.path(), &spec, None).expect("written");
            let checkpoint = Checkpoint::open(dir.path()).expect("opens");
            let mut recipe = match recipe {
                "mixed" => {
                    let mut mixed = Recipe::built_in("fp8", Precision::Bf16, &config).expect("known");
                    mixed.layers[1] = Recipe::built_in("bf16", Precision::Bf16, &config).expect("known").layers[1];
                    mixed
                }
                name => Recipe::built_in(name, Precision::Bf16, &config).expect("known"),
            };
            if calibrated {
                let calibration = crate::recipe::Calibration::new(vec![vec![1, 2, 3, 4]], 2.0);
                recipe.static_scales = StaticScales::Calibrated(calibration);
            }
            let cpu = Cpu::new(1);
            let mut model = Model::empty(config.clone(), recipe.clone());
            model.update(&cpu, 3, &mut &checkpoint).expect("read");
            let same = |a: &Packed, b: &Packed| {
                let row = |w: &Packed, row| {
                    let mut out = vec![0.0; w.k()];
                    w.row(row, &mut out);
                    out
                };
                assert_eq!((a.n(), a.k(), a.dtype()), (b.n(), b.k(), b.dtype()));
                (0..a.n()).for_each(|at| assert_eq!(row(a, at), row(b, at)));
            };
            let mut seen = 0;
            for_each_part(&cpu, &config, &recipe, 3, &mut &checkpoint, &mut |part| {
                match part {
                    Part::Embedding(own) => same(own, &model.embed),
                    Part::Head(own) => same(own, model.head()),
                    Part::Norm(own) => assert_eq!(own, model.norm),
                    Part::Layer(index, own) => {
                        let other = &model.layers[index];
                        for (a, b) in [
                            (&own.q, &other.q),
                            (&own.k, &other.k),
                            (&own.v, &other.v),
                            (&own.o, &other.o),
                            (&own.gate, &other.gate),
                            (&own.up, &other.up),
                            (&own.down, &other.down),
                        ] {
                            same(a, b);
                        }
                        assert_eq!((&own.attn_norm, &own.mlp_norm), (&other.attn_norm, &other.mlp_norm));
                        assert_eq!((&own.qkv_bias, &own.qk_norm), (&other.qkv_bias, &other.qk_norm));
                        assert_eq!((&own.k_scales, &own.v_scales), (&other.k_scales, &other.v_scales));
                    }
                }
                seen += 1;
                Ok(())
            })
            .expect("read");
            assert_eq!(seen, 1 + 3 + 1 + usize::from(!tied));
        }
    }
}
