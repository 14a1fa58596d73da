use std::fs;

use super::*;

/// A model of `layers` layers; only its shape matters here.
pub(crate) fn config(layers: usize, changes: &[(&str, Value)]) -> ModelConfig {
    let mut raw = json!({
        "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 11, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "max_position_embeddings": 32, "rope_theta": 1e4, "eos_token_id": 2,
    });
    for (key, value) in changes {
        raw[*key] = value.clone();
    }
    ModelConfig::parse(&raw.to_string()).unwrap()
}

fn parse(text: &str) -> Result<Recipe, String> {
    Recipe::parse(text, Path::new("mixed.toml"), &config(28, &[])).map_err(|e| e.to_string())
}

fn built_in(name: &str) -> Recipe {
    Recipe::built_in(name, Precision::Bf16, &config(28, &[])).unwrap()
}

/// Files that say the same as a built-in name are the same recipe.
#[test]
fn the_built_in_recipes_can_be_written_as_files() {
    let rows = [
        ("bf16", ""),
        ("bf16", "[default]\n[lm_head]\n"),
        ("f32", "[default]\nweights='f32'\nactivations='f32'\nk='f32'\nv='f32'"),
        ("kv8", "model='qwen3'\n[default]\nk='e4m3'\nv='e4m3'\nkv_scale='static'"),
        ("fp8", "[default]\nweights='e4m3'\nk='e4m3'\nv='e4m3'"),
        ("fp8", "[[layer]]\nmatch='layers.*'\nweights='e4m3'\nweights_scale='channel'\nk='e4m3'\nv='e4m3'"),
    ];
    for (name, text) in rows {
        let (file, built_in) = (parse(text).unwrap(), built_in(name));
        assert_eq!((&file.layers, file.embed, file.head), (&built_in.layers, built_in.embed, built_in.head), "{text}");
        assert_eq!(file.hash(), built_in.hash(), "{text}");
        assert_eq!(file.name, "mixed");
    }
    assert_eq!(built_in("identity").hash(), built_in("bf16").hash());
}

/// A hash in a log says the same next year.
#[test]
fn hashes_are_stable() {
    let small = config(1, &[]);
    let recipe = Recipe::built_in("fp8", Precision::Bf16, &small).unwrap();
    let proj = r#"{"activations":"bf16","weights":"e4m3/channel"}"#;
    let want = format!(
        r#"{{"embed":"bf16","head":{{"activations":"bf16","weights":"bf16"}},"layers":[{{"down_proj":{proj},"gate_proj":{proj},"k":"e4m3","k_proj":{proj},"kv_scale":"static","o_proj":{proj},"q_proj":{proj},"up_proj":{proj},"v":"e4m3","v_proj":{proj}}}]}}"#
    );
    assert_eq!(recipe.canonical_json(), want);
    assert_eq!(recipe.hash(), blake3::hash(want.as_bytes()).to_hex().to_string());
    // What no tensor is stored in differs by nothing.
    let hash = |text: &str| parse(text).unwrap().hash();
    let kv8 = "[default]\nk='e4m3'\nv='e4m3'\n";
    assert_eq!(hash("[default]\nkv_scale='token'"), hash(""));
    assert_ne!(hash(&format!("{kv8}kv_scale='token'")), hash(kv8));
    assert_ne!(hash(&format!("{kv8}kv_scale='checkpoint'")), hash(kv8));
}

#[test]
fn entries_apply_in_order_to_what_they_match() {
    let text = "
        [default]
        weights = 'e4m3'
        weights_scale = 'tensor'
        k = 'e4m3'
        v = 'e5m2'
        kv_scale = 'token'
        [[layer]]
        match = 'model.layers.1-3.self_attn'
        k = 'bf16'
        activations = 'f32'
        [[layer]]
        match = 'layers.2.self_attn.qkv_proj'
        weights = 'bf16'
        [[layer]]
        match = 'layers.*.mlp.gate_up_proj'
        weights_scale = 'block128'
        activations = 'e4m3'
        [[layer]]
        match = 'layers.3'
        k = 'f32'
        v = 'f32'
        [lm_head]
        weights = 'e4m3'";
    let recipe = parse(text).unwrap();
    let e4m3 = |scale| WeightFormat { dtype: DType::E4m3, scale };
    let tensor = e4m3(WeightScale::Tensor);
    let [zero, one, two, three] = [0, 1, 2, 3].map(|layer| recipe.layers[layer]);
    assert_eq!((zero.k, zero.v, zero.kv_scale), (DType::E4m3, DType::E5m2, KvScale::Token));
    assert_eq!((one.k, one.v, one.kv_scale), (DType::Bf16, DType::E5m2, KvScale::Token));
    assert_eq!((three.k, three.v, three.kv_scale), (DType::F32, DType::F32, KvScale::Static), "nothing to scale");
    for proj in Proj::ALL {
        let (zero, one, two) = (zero[proj], one[proj], two[proj]);
        let attention = proj.module() == "self_attn";
        let gate_up = [Proj::Gate, Proj::Up].contains(&proj);
        assert_eq!(zero.weights, if gate_up { e4m3(WeightScale::Block128) } else { tensor }, "{proj:?}");
        let activations = if gate_up { Activations::E4m3 } else { Activations::Bf16 };
        assert_eq!(zero.activations, activations, "{proj:?}");
        assert_eq!(one.activations, if attention { Activations::F32 } else { activations }, "{proj:?}");
        let qkv = [Proj::Q, Proj::K, Proj::V].contains(&proj);
        assert_eq!(two.weights, if qkv { WeightFormat::new(DType::Bf16) } else { zero.weights }, "{proj:?}");
    }
    assert_eq!(recipe.head, Projection { weights: tensor, activations: Activations::Bf16 });
    assert_eq!(recipe.embed, tensor, "tied");
    let untied = config(28, &[("tie_word_embeddings", json!(false))]);
    let recipe = Recipe::parse(text, Path::new("r.toml"), &untied).unwrap();
    assert_eq!(recipe.embed, WeightFormat::new(DType::Bf16));
}

/// One row a fault: the file, and what is said of it.
#[test]
fn bad_recipes_say_where_and_what_to_write() {
    let kv8 = "[default]\nk='e4m3'\nv='e4m3'\n";
    let layer = |keys: &str| format!("[[layer]]\n{keys}");
    let rows: Vec<(String, &str)> = vec![
        ("[default".into(), "mixed.toml:1: not TOML: "),
        ("[default]\nk='bf16'\nk='f32'".into(), "mixed.toml:3: not TOML: duplicate key"),
        (
            "wieghts='bf16'".into(),
            "mixed.toml:1: unknown key `wieghts`; did you mean `default.weights`? known there: `model`, `default`, `layer`, \
             `lm_head`, `calibration`",
        ),
        ("\nweights='bf16'".into(), "mixed.toml:2: unknown key `weights`; did you mean `default.weights`?"),
        ("[defualt]\nk='bf16'".into(), "mixed.toml:1: unknown key `defualt`; did you mean `default`?"),
        (
            "[default]\nkv_scales='token'".into(),
            "mixed.toml:2: unknown key `default.kv_scales`; did you mean `default.kv_scale`? known there: `weights`, \
             `weights_scale`, `activations`, `k`, `v`, `kv_scale`",
        ),
        (
            layer("match='layers.0'\nactivation='bf16'"),
            "mixed.toml:3: unknown key `layer.activation`; did you mean `layer.activations`?",
        ),
        (
            "[lm_head]\nweight='bf16'".into(),
            "mixed.toml:2: unknown key `lm_head.weight`; did you mean `lm_head.weights`?",
        ),
        (
            "[lm_head]\nk='bf16'".into(),
            "mixed.toml:2: `lm_head.k` means nothing there: the head has no keys and values",
        ),
        ("[default]\nmatch='layers.0'".into(), "mixed.toml:2: `default.match` means nothing there: patterns are for"),
        ("default='bf16'".into(), "mixed.toml:1: `default` is text in quotes; it must be a table, [default]"),
        (
            "[layer]\nmatch='layers.0'".into(),
            "mixed.toml:1: `layer` is a table; it must be a list of tables, [[layer]]",
        ),
        ("layer=[1]".into(), "mixed.toml:1: `layer` is a whole number; it must be a table"),
        ("model=3".into(), "mixed.toml:1: `model` is a whole number; it must be text in quotes"),
        (
            "model='qwen2'".into(),
            "mixed.toml:1: the recipe is for `model` = \"qwen2\", and config.json has model_type \"qwen3\"; take a recipe",
        ),
        ("model='qwen33'".into(), "model_type \"qwen3\"; did you mean \"qwen3\"?"),
        (
            "[default]\nweights='e5m2'".into(),
            "mixed.toml:2: `default.weights` is \"e5m2\", for which there is no kernel; it must be one of \"f32\", \
             \"bf16\", \"e4m3\"",
        ),
        (
            "[default]\nk='f16'".into(),
            "`default.k` is \"f16\", for which there is no kernel; it must be one of \"f32\", \
             \"bf16\", \"e4m3\", \"e5m2\"",
        ),
        ("[default]\nactivations='e5m2'".into(), "`default.activations` is \"e5m2\", for which there is no kernel"),
        (
            "[lm_head]\nactivations='f16'".into(),
            "mixed.toml:2: `lm_head.activations` is \"f16\", for which there is no",
        ),
        (
            "[default]\nv='fp8'".into(),
            "mixed.toml:2: `default.v` is \"fp8\"; it must be one of \"f32\", \"bf16\", \"e4m3\", \"e5m2\"; did you mean",
        ),
        ("[default]\nweights_scale='chanel'".into(), "did you mean \"channel\"?"),
        (
            "[default]\nkv_scale='dynamic'".into(),
            "`default.kv_scale` is \"dynamic\"; it must be one of \"static\", \
             \"token\", \"checkpoint\"",
        ),
        ("[default]\nkv_scale='bf16'".into(), "`default.kv_scale` is \"bf16\"; it must be one of"),
        ("[default]\nk=8".into(), "mixed.toml:2: `default.k` is a whole number; it must be one of \"f32\""),
        (
            "[default]\nweights_scale='tensor'".into(),
            "mixed.toml:2: `default.weights_scale` means nothing there: only e4m3 weights have a scale, and none are",
        ),
        (
            "[lm_head]\nweights_scale='tensor'".into(),
            "mixed.toml:2: `lm_head.weights_scale` means nothing there: only e4m3 weights have a scale, and the head's are \
             bf16",
        ),
        (
            layer("match='layers.0'\nweights='bf16'\nweights_scale='tensor'"),
            "mixed.toml:4: `layer.weights_scale` means nothing there: bf16 weights have no scale",
        ),
        (
            layer("match='layers.0'\nweights_scale='tensor'"),
            "mixed.toml:3: `layer.weights_scale` means nothing there: only e4m3 weights have a scale",
        ),
        (
            layer("match='layers.0'\nkv_scale='token'"),
            "mixed.toml:3: `layer.kv_scale` means nothing there: only 8-bit keys and values have a scale",
        ),
        (layer("k='bf16'"), "mixed.toml:1: `layer.match` is missing: the part of the model it is for"),
        (layer("match='layers.0'"), "mixed.toml:2: `layer.match` means nothing there: the entry gives no format"),
        (layer("match=0\nk='bf16'"), "mixed.toml:2: `layer.match` is a whole number; it must be text in quotes"),
        (
            layer("match='layers.28'\nk='bf16'"),
            "mixed.toml:2: `match` = \"layers.28\" matches nothing: the model has layers 0-27, and no layer 28",
        ),
        (
            layer("match='layers.3.mlp.down_projj'\nweights='bf16'"),
            "mixed.toml:2: `match` = \"layers.3.mlp.down_projj\" matches nothing: there is no \"down_projj\"; did you \
             mean \"mlp.down_proj\"?",
        ),
        (layer("match='layer.0'\nk='bf16'"), "there is no \"layer\"; did you mean \"layers.0\"?"),
        (layer("match='layers.0.mlp.gate'\nweights='bf16'"), "there is no \"gate\"; did you mean \"mlp.gate_proj\"?"),
        (layer("match='lm_head'\nweights='bf16'"), "matches nothing: the head has a table of its own, [lm_head]"),
        (
            layer("match='layers.0.mlp'\nk='bf16'"),
            "mixed.toml:3: `layer.k` means nothing there: keys and values belong to a layer's attention as a whole",
        ),
        (layer("match='layers.0.self_attn.k_proj'\nkv_scale='token'"), "mixed.toml:3: `layer.kv_scale` means nothing"),
        (layer("match='layers.0.self_attn.qkv_proj'\nv='bf16'"), "mixed.toml:3: `layer.v` means nothing there"),
        (
            format!("{kv8}[[layer]]\nmatch='layers.2'\nkv_scale='checkpoint'"),
            "mixed.toml: layer 2 takes static scales from the checkpoint and layer 0 computes them",
        ),
        (
            "[calibration]\nids='good.jsonl'\nrom=2".into(),
            "mixed.toml:3: unknown key `calibration.rom`; did you mean \
             `calibration.room`?",
        ),
        ("[calibration]\nroom=2".into(), "mixed.toml:1: `calibration.ids` is missing: a JSONL file"),
        (
            "[calibration]\nids='good.jsonl'\nroom=0.5".into(),
            "mixed.toml:3: `calibration.room` is 0.5; it must be at least 1",
        ),
        (
            "[calibration]\nids='good.jsonl'\nroom=inf".into(),
            "`calibration.room` is inf; it must be at least 1 and finite",
        ),
        ("[calibration]\nids='good.jsonl'\nroom=nan".into(), "`calibration.room` is nan"),
        (
            "[calibration]\nids='good.jsonl'\nroom='2'".into(),
            "`calibration.room` is text in quotes; it must be a number",
        ),
        (
            "[calibration]\nids='good.jsonl'".into(),
            "mixed.toml:1: `calibration` means nothing there: no layer has 8-bit keys or values with kv_scale = \"static\"",
        ),
        (
            format!("{kv8}kv_scale='token'\n[calibration]\nids='good.jsonl'"),
            "mixed.toml:5: `calibration` means nothing there: no layer",
        ),
        (
            format!("{kv8}kv_scale='checkpoint'\n[calibration]\nids='good.jsonl'"),
            "mixed.toml:5: `calibration` means nothing there: the static scales are the checkpoint's",
        ),
        (
            format!("{kv8}[calibration]\nids='none.jsonl'"),
            "mixed.toml:4: `calibration.ids` names none.jsonl, which is no file",
        ),
        (format!("{kv8}[calibration]\nids='empty.jsonl'"), "empty.jsonl: no rows to calibrate with"),
        (format!("{kv8}[calibration]\nids='id.jsonl'"), "id.jsonl:2: `ids`[1] is 11; an id is a whole number below 11"),
        (format!("{kv8}[calibration]\nids='minus.jsonl'"), "minus.jsonl:1: `ids`[0] is -1; an id is a whole number"),
        (
            format!("{kv8}[calibration]\nids='long.jsonl'"),
            "long.jsonl:1: 33 ids; a row has 1 to 32, the model's context",
        ),
        (format!("{kv8}[calibration]\nids='none_in_row.jsonl'"), "none_in_row.jsonl:1: 0 ids"),
        (format!("{kv8}[calibration]\nids='rollout.jsonl'"), "rollout.jsonl:1: unknown key `prompt_ids`; a line is"),
        (format!("{kv8}[calibration]\nids='text.jsonl'"), "text.jsonl:1: not JSON; a line is an object"),
        (format!("{kv8}[calibration]\nids='list.jsonl'"), "list.jsonl:1: a line is an object such as"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("good.jsonl", "{\"ids\": [1, 2, 3]}\n"),
        ("empty.jsonl", "\n \n"),
        ("id.jsonl", "{\"ids\": [1]}\n{\"ids\": [1, 11]}"),
        ("minus.jsonl", "{\"ids\": [-1]}"),
        ("long.jsonl", &json!({"ids": vec![1; 33]}).to_string()),
        ("none_in_row.jsonl", "{\"ids\": []}"),
        ("rollout.jsonl", "{\"prompt_ids\": [1], \"ids\": [2]}"),
        ("text.jsonl", "ids"),
        ("list.jsonl", "[1, 2]"),
    ] {
        fs::write(dir.path().join(file), text).unwrap();
    }
    let path = dir.path().join("mixed.toml");
    let prefix = format!("{}/", dir.path().display());
    for (text, want) in rows {
        let Err(error) = Recipe::parse(&text, &path, &config(28, &[])) else { panic!("taken: {text}") };
        let error = error.to_string().replace(&prefix, "");
        assert!(error.contains(want), "{text}\nwant {want:?}\ngot  {error:?}");
    }
}

#[test]
fn a_recipe_is_a_name_or_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixed.v2.toml");
    fs::write(&path, "[default]\nk='e4m3'\n[calibration]\nids='ids.jsonl'\nroom=1.5").unwrap();
    fs::write(dir.path().join("ids.jsonl"), "\u{feff}{\"ids\": [1, 2, 3]}\r\n\n{\"ids\":[4]}\n").unwrap();
    let config = config(2, &[]);
    let open = |arg: &str| Recipe::open(arg, Precision::F32, &config);
    let recipe = open(path.to_str().unwrap()).unwrap();
    assert_eq!(recipe.name, "mixed.v2");
    let StaticScales::Calibrated(calibration) = &recipe.static_scales else { panic!("{recipe:?}") };
    assert_eq!(
        (&calibration.rows[..], calibration.room, calibration.tokens()),
        (&[vec![1, 2, 3], vec![4]][..], 1.5, 4)
    );
    assert_eq!(calibration.hash, blake3::hash(b"[[1,2,3],[4]]").to_hex().to_string());
    let tail = format!(r#""calibration":{{"ids":"{}","room":1.5}},"embed""#, calibration.hash);
    assert!(recipe.canonical_json().contains(&tail), "{}", recipe.canonical_json());
    // The ids and the room are part of the recipe, the file's name is not.
    let mut other = recipe.clone();
    other.static_scales = StaticScales::Calibrated(Calibration::new(vec![vec![1, 2, 3, 4]], 1.5));
    assert_ne!(other.hash(), recipe.hash());
    other.static_scales = StaticScales::Calibrated(Calibration::new(calibration.rows.clone(), 2.0));
    assert_ne!(other.hash(), recipe.hash());
    other = Recipe { name: "other".into(), ..recipe.clone() };
    assert_eq!(other.hash(), recipe.hash());

    // A file need not be called .toml if it is there.
    let bare = dir.path().join("recipe");
    fs::write(&bare, "").unwrap();
    assert_eq!(open(bare.to_str().unwrap()).unwrap().hash(), open("bf16").unwrap().hash());
    assert_eq!(open("identity").unwrap().hash(), open("f32").unwrap().hash());
    let error = open("fp9").unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown recipe \"fp9\"; built-in recipes: identity, f32, bf16, kv8, fp8; or give the path of a recipe file, such \
         as fp8.toml; did you mean \"fp8\"?"
    );
    let error = open("nowhere/x.toml").unwrap_err().to_string();
    assert!(error.starts_with("nowhere/x.toml: does not exist; give a recipe file, or one of identity,"), "{error}");
    assert!(open(dir.path().to_str().unwrap()).unwrap_err().to_string().contains("is no plain file"));
}
