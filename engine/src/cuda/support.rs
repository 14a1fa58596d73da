//! What CUDA kernels there are: everything else is refused by name before any of the model is loaded.

use ptx::DType;
use ptx::cuda::Pages;

use crate::config::ModelConfig;
use crate::recipe::{Activations, Proj, Projection, Recipe, WeightFormat};

/// Widths of a head that attention has kernels for.
const HEAD_DIMS: [usize; 5] = [16, 32, 64, 96, 128];

/// A part of a model for which there is no CUDA kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {what} has no CUDA kernel; {instead}, or use --device cpu")]
pub struct Unsupported {
    /// Which part: the model, or a layer and projection.
    pub part: String,
    /// What of it.
    pub what: String,
    /// What there are kernels for.
    pub instead: &'static str,
}

/// Whether a model under a recipe can run on a CUDA device with pages of so many tokens.
pub fn check(c: &ModelConfig, recipe: &Recipe, page_len: usize) -> Result<(), Unsupported> {
    if !Pages::has_page_len(page_len) {
        return Err(Unsupported {
            part: "the KV cache".into(),
            what: format!("attention over pages of {page_len} tokens"),
            instead: "choose a power of two up to 256",
        });
    }
    if !HEAD_DIMS.contains(&c.head_dim) {
        return Err(Unsupported {
            part: "the model".into(),
            what: format!("attention with head_dim {}", c.head_dim),
            instead: "there are some for 16, 32, 64, 96 and 128",
        });
    }
    weights("the embedding", recipe.embed)?;
    projection("the head", recipe.head)?;
    for (index, layer) in recipe.layers.iter().enumerate() {
        for proj in Proj::ALL {
            projection(&format!("layers.{index}.{}.{}", proj.module(), proj.name()), layer[proj])?;
        }
        for (name, dtype) in [("k", layer.k), ("v", layer.v)] {
            if dtype == DType::F32 {
                return Err(Unsupported {
                    part: format!("layers.{index}"),
                    what: format!("a KV cache with {name} in f32"),
                    instead: "choose a recipe that has it in bf16, e4m3 or e5m2",
                });
            }
        }
    }
    Ok(())
}

fn projection(part: &str, p: Projection) -> Result<(), Unsupported> {
    weights(part, p.weights)?;
    if p.activations == Activations::F32 {
        let what = "a matmul with its input in f32".into();
        return Err(Unsupported {
            part: part.into(),
            what,
            instead: "choose a recipe with activations in bf16 or e4m3",
        });
    }
    Ok(())
}

fn weights(part: &str, format: WeightFormat) -> Result<(), Unsupported> {
    if format.dtype == DType::F32 {
        let what = "a matrix in f32".into();
        return Err(Unsupported {
            part: part.into(),
            what,
            instead: "choose a recipe with weights in bf16 or e4m3, such as bf16 or fp8",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Precision;

    #[test]
    fn what_has_no_kernel_is_named() {
        let config = |head_dim: usize| {
            ModelConfig::parse(
                &serde_json::json!({
                    "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
                    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": head_dim,
                    "vocab_size": 50, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 1e4,
                    "tie_word_embeddings": true, "attention_bias": false
                })
                .to_string(),
            )
            .expect("a configuration")
        };
        let c = config(32);
        let of = |name| Recipe::built_in(name, Precision::Bf16, &c).expect("known");
        for name in ["bf16", "kv8", "fp8"] {
            assert_eq!(check(&c, &of(name), 16), Ok(()));
        }
        for page_len in [0, 12, 512] {
            let error = check(&c, &of("bf16"), page_len).expect_err("no kernel").to_string();
            let want =
                "the KV cache: attention over pages of 12 tokens has no CUDA kernel; choose a power of two up to 256";
            assert!(error.starts_with(&want.replace("12", &page_len.to_string())), "{error}");
        }
        let text = |c: &ModelConfig, recipe: &Recipe| check(c, recipe, 16).expect_err("no kernel").to_string();
        assert!(text(&c, &of("f32")).starts_with("the embedding: a matrix in f32 has no CUDA kernel"));
        assert!(text(&config(48), &of("bf16")).contains("head_dim 48"));
        let mut recipe = of("bf16");
        recipe.layers[1].v = DType::F32;
        assert!(text(&c, &recipe).starts_with("layers.1: a KV cache with v in f32"));
        recipe.layers[1][Proj::Down].activations = Activations::F32;
        assert!(text(&c, &recipe).starts_with("layers.1.mlp.down_proj: a matmul with its input in f32"));
        recipe.layers[0][Proj::K].weights.dtype = DType::F32;
        assert!(text(&c, &recipe).starts_with("layers.0.self_attn.k_proj: a matrix in f32"));
        recipe.head.activations = Activations::F32;
        assert!(text(&c, &recipe).starts_with("the head: a matmul"));
    }
}
