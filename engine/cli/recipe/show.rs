//! `leeway recipe show`: a recipe resolved for a model, from its `config.json` alone.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::config::ModelConfig;
use engine::plan::stated_precision;
use engine::recipe::{LayerRecipe, Proj, Recipe, StaticScales, weights_name};
use serde_json::json;

use super::super::table::Table;
use super::super::{Failure, Global, print};

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Model folder; its config.json is enough, and says what `identity` is.
    #[arg(long)]
    model: PathBuf,
    /// Recipe: identity, f32, bf16, kv8, fp8, or the path of a recipe file.
    #[arg(long)]
    recipe: String,
}

pub fn run(args: &ShowArgs, global: &Global) -> Result<ExitCode, Failure> {
    global.only_cpu()?;
    let config = ModelConfig::open(&args.model)?;
    let recipe = Recipe::open(&args.recipe, stated_precision(&config), &config)?;
    let (scales, calibration) = match &recipe.static_scales {
        StaticScales::Bounds => ("bounds", None),
        StaticScales::Checkpoint => ("checkpoint", None),
        StaticScales::Calibrated(calibration) => ("calibrated", Some(calibration)),
    };
    if !global.json {
        print(format_args!(
            "model_type  {}\nrecipe      {}\nhash        {}\n",
            config.arch,
            recipe.name,
            recipe.hash()
        ))?;
        print(format_args!("\n{}\n", layers(&recipe)))?;
        let tied = if config.tied { ", the head's weights" } else { "" };
        print(format_args!("embedding   {}{tied}\n", weights_name(recipe.embed)))?;
        let (weights, activations) = (weights_name(recipe.head.weights), recipe.head.activations.name());
        print(format_args!("head        {weights}, activations {activations}\n"))?;
        if let Some(calibration) = calibration {
            let (tokens, rows, room) = (calibration.tokens(), calibration.rows.len(), calibration.room);
            print(format_args!(
                "calibration {tokens} tokens in {rows} rows, {room} times their largest, ids {}\n",
                calibration.hash
            ))?;
        }
    }
    let ids = calibration.map(|c| json!({"ids": c.hash, "room": c.room, "rows": c.rows.len(), "tokens": c.tokens()}));
    global.print_json(&json!({
        "model_type": config.arch.model_type(), "recipe": recipe.name, "recipe_hash": recipe.hash(),
        "static_scales": scales, "calibration": ids, "table": recipe.table(),
    }))?;
    Ok(ExitCode::SUCCESS)
}

/// A row for every set of layers with equal formats.
fn layers(recipe: &Recipe) -> Table {
    let mut rows: Vec<(LayerRecipe, Vec<usize>)> = Vec::new();
    for (index, layer) in recipe.layers.iter().enumerate() {
        match rows.iter_mut().find(|(known, _)| known == layer) {
            Some((_, indices)) => indices.push(index),
            None => rows.push((*layer, vec![index])),
        }
    }
    let heading = ["layers", "q", "k", "v", "o", "gate", "up", "down", "K", "V", "scale", "activations"];
    let mut table = Table::new(heading);
    for (layer, indices) in rows {
        let [q, k, v, o, gate, up, down] = layer.projections.map(|p| weights_name(p.weights));
        let (key, value) = (layer.k.name().to_owned(), layer.v.name().to_owned());
        let scale = recipe.kv_scale_name(&layer).to_owned();
        table.row([ranges(&indices), q, k, v, o, gate, up, down, key, value, scale, activations(&layer)]);
    }
    table
}

/// `0-11, 13` of ascending numbers.
fn ranges(indices: &[usize]) -> String {
    let runs = indices.chunk_by(|a, b| a + 1 == *b);
    let texts = runs.map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// `bf16`, or `q k v bf16, o gate up down e4m3`.
fn activations(layer: &LayerRecipe) -> String {
    let runs = Proj::ALL.chunk_by(|a, b| layer[*a].activations == layer[*b].activations);
    let runs: Vec<(String, &str)> = runs
        .map(|run| {
            let names = run.iter().map(|proj| proj.name().trim_end_matches("_proj"));
            (names.collect::<Vec<_>>().join(" "), layer[run[0]].activations.name())
        })
        .collect();
    match &runs[..] {
        [(_, one)] => (*one).to_owned(),
        _ => runs.iter().map(|(names, word)| format!("{names} {word}")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_layers_share_a_row() {
        let raw = json!({
            "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 11, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": true, "max_position_embeddings": 32, "rope_theta": 1e4, "eos_token_id": 2,
        });
        let config = ModelConfig::parse(&raw.to_string()).expect("a configuration");
        let text = "[default]\nk='e4m3'\nv='e5m2'\n[[layer]]\nmatch='layers.3'\nk='bf16'\nv='bf16'\nactivations='f32'\n\
            [[layer]]\nmatch='layers.5.mlp'\nweights='e4m3'\nactivations='e4m3'";
        let recipe = Recipe::parse(text, "x.toml".as_ref(), &config).expect("a recipe");
        let want = "\
layers       q     k     v     o          gate            up          down     K     V   scale                   activations
---------------------------------------------------------------------------------------------------------------------------
0-2, 4    bf16  bf16  bf16  bf16          bf16          bf16          bf16  e4m3  e5m2  static                          bf16
3         bf16  bf16  bf16  bf16          bf16          bf16          bf16  bf16  bf16    none                           f32
5         bf16  bf16  bf16  bf16  e4m3/channel  e4m3/channel  e4m3/channel  e4m3  e5m2  static  q k v o bf16, gate up down e4m3
";
        let got = layers(&recipe).to_string();
        let words = |text: &str| {
            text.lines()
                .filter(|l| !l.starts_with('-'))
                .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&got), words(want), "{got}");
    }
}
