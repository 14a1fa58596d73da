//! A folder under a recipe of bf16 matmul inputs, and version 0 of a bf16 run with that recipe, are the same weights to
//! the bit, also where the folder is stored in f32.

mod common;

use engine::checkpoint::Checkpoint;
use engine::model::Model;
use engine::recipe::{Precision, Recipe};
use opd::master::Master;
use ptx::Cpu;
use ptx::dtype::{bf16_from_f32, bf16_to_f32};
use ptx::ops::linear::Packed;

/// Bits of everything that a forward pass reads.
fn bits(model: &Model) -> Vec<u32> {
    let mut all: Vec<f32> = Vec::new();
    let matrix = |w: &Packed, all: &mut Vec<f32>| {
        let mut row = vec![0.0; w.k()];
        for i in 0..w.n() {
            w.row(i, &mut row);
            all.extend(&row);
        }
    };
    for w in [&model.embed, model.head()] {
        matrix(w, &mut all);
    }
    all.extend(&model.norm);
    for l in &model.layers {
        for w in [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down] {
            matrix(w, &mut all);
        }
        let vectors = [&l.attn_norm, &l.mlp_norm, &l.k_scales, &l.v_scales];
        let others = l.qkv_bias.iter().flatten().chain(&l.o_bias).chain(l.qk_norm.iter().flatten());
        vectors.into_iter().chain(others).chain(l.mlp_bias.iter().flatten()).for_each(|v| all.extend(v));
    }
    all.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_folder_in_f32_is_rounded_as_a_training_version_is() {
    let cpu = Cpu::new(2);
    for arch in ["qwen3", "qwen2", "llama"] {
        let dir = common::golden_copy(arch, |_| {});
        let checkpoint = Checkpoint::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
        let exact = common::load(&cpu, dir.path(), "f32");
        let rounded = exact.norm.iter().filter(|&&g| bf16_to_f32(bf16_from_f32(g)) != g).count();
        assert!(rounded > 0, "{arch}: gains that are bf16 values would show nothing");
        let master = Master::load(&checkpoint, Precision::Bf16).unwrap_or_else(|e| panic!("{e}"));
        for name in ["bf16", "kv8", "fp8"] {
            let recipe = Recipe::built_in(name, Precision::Bf16, checkpoint.config()).expect("a built-in name");
            let mut version = Model::empty(checkpoint.config().clone(), recipe);
            version.update(&cpu, 0, &mut master.version(&cpu)).unwrap_or_else(|e| panic!("{e}"));
            let folder = common::load(&cpu, dir.path(), name);
            assert!(bits(&folder) == bits(&version), "{arch} {name}");
        }
        let version = Master::load(&checkpoint, Precision::F32).unwrap_or_else(|e| panic!("{e}"));
        let mut whole = Model::empty(checkpoint.config().clone(), exact.recipe.clone());
        whole.update(&cpu, 0, &mut version.version(&cpu)).unwrap_or_else(|e| panic!("{e}"));
        assert!(bits(&whole) == bits(&exact), "{arch}: f32 is not rounded");
    }
}
