use serde_json::json;

use super::*;

/// A valid config with `changes` merged in; a change to `"<absent>"` takes the key away.
fn with(changes: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = json!({
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "vocab_size": 512,
        "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "rope_theta": 1e6,
        "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1,
    });
    for (key, value) in changes.as_object().expect("an object") {
        let map = config.as_object_mut().expect("an object");
        if value == "<absent>" {
            map.shift_remove(key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    ModelConfig::parse(&config.to_string())
}

#[test]
fn a_config_is_read_as_it_stands() {
    let config = with(json!({})).unwrap();
    assert_eq!((config.arch, config.hidden, config.layers, config.heads), (Arch::Qwen3, 64, 3, 4));
    assert_eq!((config.kv_heads, config.head_dim, config.ffn, config.vocab), (2, 32, 160, 512));
    assert_eq!((config.tied, config.eps, config.max_positions), (true, 1e-6, 256));
    assert_eq!(config.rope, Rope { theta: 1e6, kind: RopeKind::Default });
    assert_eq!((config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm), (false, false, false, true));
    assert_eq!((config.sliding_window, config.bos, &config.stop_ids[..]), (None, Some(0), &[1][..]));
}

#[test]
fn both_rope_dialects_say_the_same() {
    let tables = [
        (json!({"rope_type": "linear", "factor": 2.0}), RopeKind::Linear { factor: 2.0 }),
        (
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 128}),
            RopeKind::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 128 },
        ),
        (json!({"rope_type": "dynamic", "factor": 2.0}), RopeKind::Dynamic { factor: 2.0, original: 256 }),
    ];
    for (table, kind) in tables {
        let mut modern = table.clone();
        modern["rope_theta"] = json!(5e5);
        let mut oldest = table.clone();
        let name = oldest.as_object_mut().unwrap().remove("rope_type").unwrap();
        oldest["type"] = name;
        let want = Rope { theta: 5e5, kind };
        for (dialect, changes) in [
            ("modern", json!({"rope_theta": "<absent>", "rope_parameters": modern})),
            ("legacy", json!({"rope_theta": 5e5, "rope_scaling": table})),
            ("oldest", json!({"rope_theta": 5e5, "rope_scaling": oldest})),
            ("both", json!({"rope_theta": 5e5, "rope_scaling": table, "rope_parameters": modern})),
        ] {
            assert_eq!(with(changes).unwrap().rope, want, "{dialect}");
        }
    }
}

#[test]
fn theta_is_never_guessed_when_a_dialect_states_ropes() {
    let error = with(json!({"rope_theta": "<absent>", "rope_parameters": {"rope_type": "default"}})).unwrap_err();
    assert!(error.to_string().contains("`rope_parameters.rope_theta` is missing"), "{error}");
    let error = with(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})).unwrap_err();
    assert!(error.to_string().contains("the same as rope_parameters.rope_theta = 10000"), "{error}");
    assert_eq!(with(json!({"rope_theta": "<absent>"})).unwrap().rope.theta, 10_000.0);
}

#[test]
fn yarn_takes_its_defaults_from_the_formula() {
    let config = with(json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 128}}))
    .unwrap();
    let RopeKind::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate } = config.rope.kind else {
        panic!("{:?}", config.rope)
    };
    assert_eq!((factor, original, beta_fast, beta_slow, truncate), (4.0, 128, 32.0, 1.0, true));
    assert!((attention_factor - 1.138_629_436_111_989).abs() < 1e-14, "{attention_factor}");
    assert_eq!(config.max_positions, 512, "the stretched length");
    let table = json!({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5});
    let config = with(json!({ "rope_scaling": table })).unwrap();
    // (0.1 ln 40 + 1) / (0.05 ln 40 + 1)
    assert!((f64::from(config.rope.attention_factor()) - 1.155721990).abs() < 1e-6, "{:?}", config.rope);
    assert_eq!(config.max_positions, 256, "no original length is stated");
}

#[test]
fn head_dim_is_its_own_key() {
    for absent in [json!({"head_dim": null}), json!({"head_dim": "<absent>"})] {
        assert_eq!(with(absent).unwrap().head_dim, 16);
    }
    let error = with(json!({"head_dim": null, "num_attention_heads": 6, "num_key_value_heads": 3})).unwrap_err();
    assert!(error.to_string().contains("a divisor of hidden_size = 64"), "{error}");
}

#[test]
fn biases_follow_the_family() {
    let bias = |changes: Value| {
        let config = with(changes).unwrap();
        (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm)
    };
    assert_eq!(bias(json!({"model_type": "qwen2"})), (true, false, false, false));
    assert_eq!(bias(json!({"model_type": "llama"})), (false, false, false, false));
    assert_eq!(
        bias(json!({"model_type": "llama", "attention_bias": true, "mlp_bias": true})),
        (true, true, true, false)
    );
    assert_eq!(bias(json!({"attention_bias": true})), (true, true, false, true));
    assert_eq!(bias(json!({"model_type": "mistral", "sliding_window": null})), (false, false, false, false));
}

#[test]
fn windows_cut_the_length_where_a_layer_has_one() {
    let window = |changes: Value| {
        let config = with(changes).unwrap();
        (config.sliding_window, config.max_positions)
    };
    assert_eq!(window(json!({"model_type": "mistral", "sliding_window": 64})), (Some(64), 64));
    assert_eq!(window(json!({"model_type": "mistral", "sliding_window": null})), (None, 256));
    assert_eq!(window(json!({"model_type": "mistral", "max_position_embeddings": 32768})), (Some(4096), 4096));
    assert_eq!(window(json!({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": false})), (None, 256));
    let sliding = |full: usize| json!({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": full});
    assert_eq!(window(sliding(3)), (None, 256), "no layer is left for the window");
    assert_eq!(window(sliding(2)), (Some(64), 64));
    let types = json!(["full_attention", "sliding_attention", "full_attention"]);
    assert_eq!(window(json!({"sliding_window": 64, "layer_types": types})), (Some(64), 64));
    assert_eq!(window(json!({"model_type": "llama", "sliding_window": 64})), (None, 256));
    assert_eq!(
        window(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 100}})),
        (None, 100)
    );
}

#[test]
fn faults_name_the_key_and_the_remedy() {
    let rows = [
        (json!({"model_type": "qwen3_moe"}), "model type `qwen3_moe` is not supported (did you mean `qwen3`?)"),
        (json!({"model_type": "<absent>"}), "`model_type` is missing"),
        (json!({"hidden_size": "<absent>"}), "`hidden_size` is missing"),
        (json!({"hidden_size": 0}), "`hidden_size` is 0; it must be an integer from 1"),
        (json!({"hidden_size": -1}), "`hidden_size` is -1"),
        (json!({"hidden_size": 64.5}), "`hidden_size` is 64.5"),
        (json!({"vocab_size": 1_u64 << 40}), "`vocab_size` is 1099511627776"),
        (json!({"num_hidden_layers": 1_000_000}), "an integer from 1 to 4096"),
        (json!({"num_key_value_heads": 3}), "a divisor of num_attention_heads = 4"),
        (json!({"num_key_value_heads": "<absent>"}), "`num_key_value_heads` is missing"),
        (json!({"head_dim": 31}), "even, for rotary pairs"),
        (json!({"hidden_act": "gelu"}), "`hidden_act` = \"gelu\" is not supported"),
        (json!({"mlp_bias": true}), "`mlp_bias` = true is not supported"),
        (json!({"model_type": "mistral", "attention_bias": true}), "the mistral family has no biases"),
        (json!({"rms_norm_eps": 0.0}), "`rms_norm_eps` is 0.0; it must be between 0 and 1"),
        (json!({"tie_word_embeddings": 1}), "true or false"),
        (json!({"eos_token_id": -1}), "`eos_token_id` is -1; it must be a token id"),
        (json!({"eos_token_id": [1, "x"]}), "a list of token ids"),
        (json!({"rope_theta": 0.0}), "`rope_theta` is 0.0; it must be between 1 and 1e15"),
        (json!({"rope_scaling": {"rope_type": "longrope"}}), "rope type `longrope` is not supported"),
        (json!({"rope_scaling": {"factor": 2.0}}), "`rope_scaling.rope_type` is missing"),
        (json!({"rope_scaling": {"type": "linear"}}), "`rope_scaling.factor` is missing"),
        (json!({"rope_scaling": {"type": "linear", "factor": -2}}), "`rope_scaling.factor` is -2"),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}}),
            "`rope_scaling.beta_slow` is 2; it must be below beta_fast",
        ),
        (json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}), "one rope serves all layers"),
        (json!({"partial_rotary_factor": 0.5}), "rotate the whole head"),
        (json!({"layer_types": ["linear_attention"]}), "`layer_types` = \"linear_attention\""),
        (json!({"quantization_config": {"quant_method": "gptq"}}), "`quantization_config.quant_method` = \"gptq\""),
        (
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}),
            "blocks of scales are [128, 128]",
        ),
    ];
    for (changes, want) in rows {
        let error = with(changes.clone()).expect_err(&changes.to_string()).to_string();
        assert!(error.starts_with("config.json: ") && error.contains(want), "{changes}: {error}");
    }
    for text in ["", "{", "[]", "3"] {
        let error = ModelConfig::parse(text).unwrap_err().to_string();
        assert!(error.contains("config.json: not a JSON object"), "{text}: {error}");
    }
}

#[test]
fn stop_ids_are_the_union_of_both_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    assert!(matches!(ModelConfig::open(dir.path()), Err(ConfigError::Missing { .. })));
    assert!(matches!(ModelConfig::open(&file), Err(ConfigError::NotAFolder { .. })));
    std::fs::write(&file, with(json!({"eos_token_id": [7, 3]})).unwrap().raw.to_string()).unwrap();
    assert_eq!(ModelConfig::open(dir.path()).unwrap().stop_ids, [3, 7]);
    let generation = dir.path().join("generation_config.json");
    std::fs::write(&generation, r#"{"eos_token_id": [5, 3]}"#).unwrap();
    assert_eq!(ModelConfig::open(dir.path()).unwrap().stop_ids, [3, 5, 7]);
    std::fs::write(&generation, r#"{"eos_token_id": 9}"#).unwrap();
    assert_eq!(ModelConfig::open(dir.path()).unwrap().stop_ids, [3, 7, 9]);
    std::fs::write(&generation, r#"{"eos_token_id": "x"}"#).unwrap();
    let error = ModelConfig::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("generation_config.json: `eos_token_id`"), "{error}");
}
