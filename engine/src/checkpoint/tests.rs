use std::cell::Cell;
use std::fs;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use ptx::dtype::{bf16_to_f32, e4m3_to_f32, round_bf16};
use ptx::rng::{Purpose, Stream};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::header::tests::file as raw_file;
use super::*;

/// Two layers, small and odd sizes, heads x head_dim other than hidden.
fn config(changes: Value) -> ModelConfig {
    let mut raw = json!({
        "model_type": "qwen3", "hidden_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 10, "vocab_size": 11,
        "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "max_position_embeddings": 32, "rope_theta": 1e4,
        "eos_token_id": [2, 1], "bos_token_id": 0, "dtype": "float32", "a_key_of_no_use": [1.5e-5, {"x": null}],
    });
    for (key, value) in changes.as_object().unwrap() {
        raw[key] = value.clone();
    }
    ModelConfig::parse(&raw.to_string()).unwrap()
}

fn random_values(name: &str, n: usize) -> Vec<f32> {
    let index = name.bytes().fold(0, |h, b| h * 31 % 1_000_003 + u64::from(b));
    let mut stream = Stream::new(3, Purpose::Test, index);
    (0..n).map(|_| stream.normal()).collect()
}

fn fetch(param: &Param, values: &mut Vec<f32>) {
    values.extend(random_values(&param.name, param.elements()));
}

/// A tensor to be put in a file: name, dtype, shape, bytes.
type Raw = (String, Dtype, Vec<usize>, Vec<u8>);

/// The parameters of `config` in BF16, each replaced or joined by those of `with`, in one file by the format's own crate.
fn folder(config: &ModelConfig, with: &[Raw], without: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.raw.to_string()).unwrap();
    let mut all: Vec<Raw> = with.to_vec();
    for param in inventory(config) {
        if !without.contains(&param.name.as_str()) && !with.iter().any(|(name, ..)| *name == param.name) {
            let values = random_values(&param.name, param.elements());
            let bytes = values.iter().flat_map(|x| ptx::dtype::bf16_from_f32(*x).to_le_bytes()).collect();
            all.push((param.name, Dtype::BF16, param.shape, bytes));
        }
    }
    save(&all, &dir.path().join("model.safetensors"));
    dir
}

fn save(all: &[Raw], path: &Path) {
    let views =
        all.iter().map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn raw(name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Raw {
    (name.into(), dtype, shape.to_vec(), bytes.to_vec())
}

fn f32s(name: &str, shape: &[usize], values: &[f32]) -> Raw {
    raw(name, Dtype::F32, shape, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

fn fault(dir: &Path) -> String {
    Checkpoint::open(dir).expect_err("must be refused").to_string()
}

fn read(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap();
    let mut out = vec![f32::NAN; tensor.shape.iter().product()];
    checkpoint.read_rows(name, 0, tensor.shape[0], &mut out).unwrap();
    out
}

#[test]
fn what_is_written_is_read_back_bit_by_bit() {
    for (dtype, tied, shard_bytes, files) in [
        (DType::F32, true, SHARD_BYTES, 1),
        (DType::Bf16, false, SHARD_BYTES, 1),
        (DType::Bf16, true, 400, 5),
        (DType::F32, false, 1, 25),
    ] {
        let config = config(json!({ "tie_word_embeddings": tied }));
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b/model");
        let options = WriteOptions { dtype, aux_from: None, shard_bytes };
        write_with(&dir, &config, &options, fetch, |at| fs::write(at.join("state.bin"), b"more")).unwrap();
        let checkpoint = Checkpoint::open(&dir).unwrap();
        assert_eq!(checkpoint.files.len(), files, "{dtype} by {shard_bytes}");
        let params = inventory(&config);
        assert_eq!(checkpoint.tensors().len(), params.len());
        for (tensor, param) in checkpoint.tensors().zip(&params) {
            assert_eq!((&tensor.name, &tensor.shape, tensor.dtype), (&param.name, &param.shape, dtype));
            let mut want = random_values(&param.name, param.elements());
            if dtype == DType::Bf16 {
                want.iter_mut().for_each(|x| *x = round_bf16(*x));
                let bits = checkpoint.bf16_rows(&param.name, 0, param.shape[0]).expect("aligned");
                assert!(bits.iter().zip(&want).all(|(b, x)| bf16_to_f32(*b).to_bits() == x.to_bits()));
            } else {
                assert_eq!(checkpoint.bf16_rows(&param.name, 0, 1), None);
            }
            checkpoint.check_finite(&param.name).unwrap();
            checkpoint.release(&param.name);
            let got = read(&checkpoint, &param.name);
            assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", param.name);
        }
        assert_eq!(fs::read(dir.join("state.bin")).unwrap(), b"more");
        assert_eq!(names(&parent.path().join("a/b")), ["model"]);
    }
}

#[test]
fn other_files_are_as_they_were() {
    let aux = tempfile::tempdir().unwrap();
    fs::write(aux.path().join("tokenizer.json"), b"not read here").unwrap();
    fs::write(aux.path().join("notes.txt"), b"not copied").unwrap();
    let dir = aux.path().join("model");
    let config = config(json!({"quantization_config": {"quant_method": "fp8"}}));
    write(&dir, &config, DType::Bf16, Some(aux.path()), fetch).unwrap();
    assert_eq!(names(&dir), ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]);
    let json = |name: &str| -> Value { serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap() };
    let mut want = config.raw.clone();
    want.as_object_mut().unwrap().shift_remove("quantization_config");
    want["dtype"] = json!("bfloat16");
    want["torch_dtype"] = json!("bfloat16");
    assert_eq!(json("config.json").to_string(), want.to_string(), "order included");
    assert_eq!(json("generation_config.json"), json!({"bos_token_id": 0, "eos_token_id": [1, 2]}));
    assert_eq!(fs::read(dir.join("tokenizer.json")).unwrap(), b"not read here");
    // In place: the folder's own files go with the new weights.
    fs::write(dir.join("generation_config.json"), r#"{"eos_token_id": 5}"#).unwrap();
    write(&dir, &config, DType::F32, Some(&dir), fetch).unwrap();
    assert_eq!(Checkpoint::open(&dir).unwrap().config().stop_ids, [1, 2, 5]);
    assert_eq!(names(&dir).len(), 4);
    // The format's own crate reads the file, and finds the framework's mark.
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    assert_eq!(safetensors::SafeTensors::deserialize(&bytes).unwrap().len(), inventory(&config).len());
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Takes so many bytes and syncs, then fails as a full disk does.
struct Full {
    file: fs::File,
    left: Rc<Cell<usize>>,
}

impl Full {
    fn take(&self, n: usize) -> io::Result<()> {
        let left = self.left.get().checked_sub(n).ok_or(io::ErrorKind::StorageFull)?;
        self.left.set(left);
        Ok(())
    }
}

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes.len())?;
        self.file.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl write::Sink for Full {
    fn sync(&mut self) -> io::Result<()> {
        self.take(1)
    }
}

#[test]
fn a_failed_write_leaves_no_trace() {
    let old = config(json!({"vocab_size": 7}));
    let new = config(json!({}));
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    let fresh = root.path().join("made/for/it");
    write(&dir, &old, DType::Bf16, None, fetch).unwrap();
    let hash = Checkpoint::open(&dir).unwrap().model_hash();
    let attempt = |to: &Path, budget: usize, finish: io::Result<()>| {
        let left = Rc::new(Cell::new(budget));
        let mut create = |path: &Path| -> io::Result<Box<dyn write::Sink>> {
            Ok(Box::new(Full { file: fs::File::create_new(path)?, left: left.clone() }))
        };
        let options = WriteOptions { dtype: DType::F32, aux_from: None, shard_bytes: 1000 };
        write::write_through(&mut create, to, &new, &options, fetch, |_| finish).map(|()| left.get())
    };
    let untouched = |why: &str| {
        assert_eq!(names(root.path()), ["model"], "{why}");
        assert_eq!(Checkpoint::open(&dir).unwrap().model_hash(), hash, "{why}");
    };
    let plenty = 1 << 20;
    let used = {
        let scratch = tempfile::tempdir().unwrap();
        plenty - attempt(&scratch.path().join("x"), plenty, Ok(())).unwrap()
    };
    for budget in (0..used).step_by(97).chain([used - 1]) {
        for to in [&dir, &fresh] {
            let error = attempt(to, budget, Ok(())).unwrap_err();
            assert!(matches!(error, CheckpointError::Io { doing: "be written", .. }), "{error}");
            untouched(&format!("{budget} of {used} bytes"));
        }
    }
    attempt(&dir, plenty, Err(io::ErrorKind::StorageFull.into())).unwrap_err();
    untouched("further files failed");
    let broken = |param: &Param, values: &mut Vec<f32>| {
        fetch(param, values);
        if param.name == "model.norm.weight" {
            values[4] = 3.4e38; // finite, and beyond the largest bf16
        }
    };
    let error = write(&dir, &new, DType::Bf16, None, broken).unwrap_err().to_string();
    assert!(error.contains("model.norm.weight, element 4, is inf as bf16"), "{error}");
    untouched("a weight was no number");
    let panics = std::panic::catch_unwind(|| write(&dir, &new, DType::Bf16, None, |_, values| values.push(1.0)));
    assert!(panics.is_err());
    untouched("fetch was wrong");

    attempt(&dir, used, Ok(())).unwrap();
    assert_eq!(names(root.path()), ["model"]);
    assert_ne!(Checkpoint::open(&dir).unwrap().model_hash(), hash);
}

#[test]
fn targets_that_are_no_model_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("thesis.tex"), b"x").unwrap();
    let config = config(json!({}));
    let error = write(&home, &config, DType::Bf16, None, fetch).unwrap_err().to_string();
    assert!(error.contains("holds no config.json, so it is not replaced"), "{error}");
    let file = home.join("thesis.tex");
    for target in [&file, &file.join("model"), &home.join("..")] {
        let error = write(target, &config, DType::Bf16, None, fetch).unwrap_err().to_string();
        assert!(error.contains("home") || error.contains("config.json"), "{error}");
    }
    assert_eq!((names(root.path()), names(&home)), (vec!["home".into()], vec!["thesis.tex".to_owned()]));
    let error = write(&home, &config, DType::F16, None, fetch).unwrap_err().to_string();
    assert!(error.contains("as f32 or bf16, not f16"), "{error}");
    let empty = root.path().join("empty");
    fs::create_dir(&empty).unwrap();
    write(&empty, &config, DType::Bf16, None, fetch).unwrap();
    #[cfg(unix)]
    {
        // A link stays a link, to the new content.
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&empty, &link).unwrap();
        write(&link, &config, DType::F32, None, fetch).unwrap();
        assert!(link.is_symlink());
        assert_eq!(Checkpoint::open(&empty).unwrap().tensors().next().unwrap().dtype, DType::F32);
    }
}

#[test]
fn the_hash_is_of_the_weights_alone() {
    let config = config(json!({}));
    let hash = |shard_bytes: u64, dtype: DType, extra: f32| {
        let dir = tempfile::tempdir().unwrap();
        let options = WriteOptions { dtype, aux_from: None, shard_bytes };
        let fetch = |param: &Param, values: &mut Vec<f32>| {
            fetch(param, values);
            values[0] += extra;
        };
        write_with(dir.path(), &config, &options, fetch, |_| Ok(())).unwrap();
        Checkpoint::open(dir.path()).unwrap().model_hash()
    };
    let one = hash(SHARD_BYTES, DType::F32, 0.0);
    assert_eq!(one, hash(300, DType::F32, 0.0), "spread over files");
    assert_ne!(one, hash(SHARD_BYTES, DType::Bf16, 0.0));
    assert_ne!(one, hash(SHARD_BYTES, DType::F32, 1.0));
    // The same from memory, as the format is documented.
    let mut params = inventory(&config);
    params.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = ModelHasher::new();
    let mut plain = blake3::Hasher::new();
    let count = |plain: &mut blake3::Hasher, n: usize| {
        plain.update(&u64::try_from(n).unwrap().to_le_bytes());
    };
    for param in &params {
        let bytes: Vec<u8> =
            random_values(&param.name, param.elements()).iter().flat_map(|x| x.to_le_bytes()).collect();
        hasher.tensor(&param.name, DType::F32, &param.shape);
        bytes.chunks(100).for_each(|piece| hasher.bytes(piece));
        for text in [&param.name, "F32"] {
            count(&mut plain, text.len());
            plain.update(text.as_bytes());
        }
        count(&mut plain, param.shape.len());
        param.shape.iter().for_each(|&n| count(&mut plain, n));
        count(&mut plain, bytes.len());
        plain.update(&bytes);
    }
    assert_eq!(one, hasher.finish());
    assert_eq!(one, plain.finalize().to_hex().to_string());
}

/// A tensor of several pieces, pages of it given back while others read; two that ask at once, and one that never asks.
#[test]
fn the_hash_is_the_same_in_the_background() {
    let config = config(json!({"hidden_size": 512, "vocab_size": 9000}));
    let dir = folder(&config, &[], &[]);
    let checkpoint = Arc::new(Checkpoint::open(dir.path()).unwrap());
    let hash = HashInBackground::start(Arc::clone(&checkpoint));
    let embeddings = read(&checkpoint, "model.embed_tokens.weight");
    std::thread::scope(|scope| {
        let asked = [(); 2].map(|()| scope.spawn(|| hash.get().to_owned()));
        for hash in asked {
            assert_eq!(hash.join().unwrap(), checkpoint.model_hash());
        }
    });
    assert!(embeddings == read(&checkpoint, "model.embed_tokens.weight"));
    drop(HashInBackground::start(checkpoint));
}

#[test]
fn inventory_faults_name_file_and_tensor() {
    let config = config(json!({}));
    let q = "model.layers.1.self_attn.q_proj.weight";
    let embedding = random_values(EMBEDDING, 66);
    let rows: Vec<(Vec<Raw>, Vec<&str>, Vec<&str>)> = vec![
        (vec![], vec![q], vec![q, "of shape [8, 6] is missing"]),
        (vec![], vec![q, "model.norm.weight"], vec![q, "and 1 more are"]),
        (
            vec![raw(q, Dtype::BF16, &[6, 8], &[0; 96])],
            vec![],
            vec![q, "at byte", "has shape [6, 8]", "calls for [8, 6]"],
        ),
        (vec![raw(q, Dtype::I8, &[8, 6], &[0; 48])], vec![], vec![q, "is I8", "convert"]),
        (
            vec![raw("model.layers.2.mlp.up_proj.weight", Dtype::BF16, &[1], &[0; 2])],
            vec![],
            vec!["model.layers.2.mlp.up_proj.weight", "is not one that config.json calls for", "did you mean"],
        ),
        (
            vec![raw("model.layers.0.self_attn.qkv_proj.weight", Dtype::BF16, &[1], &[0; 2])],
            vec![],
            vec!["qkv_proj.weight", "split it"],
        ),
        (vec![raw("model.layers.0.self_attn.q_proj.bias", Dtype::BF16, &[8], &[0; 16])], vec![], vec!["q_proj.bias"]),
        (
            vec![f32s("lm_head.weight", &[11, 6], &embedding)],
            vec![],
            vec!["lm_head.weight", "differs from model.embed_tokens"],
        ),
        (vec![f32s("model.layers.0.self_attn.q_scale", &[], &[1.0])], vec![], vec!["q_scale", "takes that scale"]),
        (
            vec![f32s("model.layers.0.self_attn.q_proj.weight_scale", &[], &[1.0])],
            vec![],
            vec!["q_proj.weight_scale", "is BF16, which takes no scale"],
        ),
        (
            vec![f32s("model.layers.0.mlp.fc_proj.weight_scale", &[], &[1.0])],
            vec![],
            vec!["fc_proj.weight_scale", "calls for no model.layers.0.mlp.fc_proj.weight"],
        ),
    ];
    for (with, without, wants) in rows {
        let dir = folder(&config, &with, &without);
        let error = fault(dir.path());
        assert!(error.starts_with(&dir.path().display().to_string()), "{error}");
        for want in wants {
            assert!(error.contains(want), "want {want:?}: {error}");
        }
    }
    let error =
        Checkpoint::open(folder(&config, &[], &[]).path()).unwrap().tensor("model.embed_token.weight").unwrap_err();
    assert!(error.to_string().contains("did you mean `model.embed_tokens.weight`"), "{error}");
}

#[test]
fn known_extras_are_accepted() {
    let config = config(json!({}));
    let bytes: Vec<u8> =
        random_values(EMBEDDING, 66).iter().flat_map(|x| ptx::dtype::bf16_from_f32(*x).to_le_bytes()).collect();
    let extras = [
        raw(HEAD, Dtype::BF16, &[11, 6], &bytes),
        f32s("model.layers.0.self_attn.rotary_emb.inv_freq", &[2], &[1.0, 0.5]),
        f32s("model.layers.0.self_attn.q_proj.input_scale", &[], &[0.5]),
    ];
    let (plain, more) = (folder(&config, &[], &[]), folder(&config, &extras, &[]));
    let (plain, more) = (Checkpoint::open(plain.path()).unwrap(), Checkpoint::open(more.path()).unwrap());
    assert_eq!(read(&plain, EMBEDDING), read(&more, EMBEDDING));
    let error = more.tensor(HEAD).unwrap_err().to_string();
    assert!(error.contains("there is no tensor lm_head.weight"), "{error}");
}

#[test]
fn files_of_a_folder_belong_together() {
    let config = config(json!({}));
    let sharded = || {
        let dir = tempfile::tempdir().unwrap();
        let options = WriteOptions { dtype: DType::Bf16, aux_from: None, shard_bytes: 450 };
        write_with(dir.path(), &config, &options, fetch, |_| Ok(())).unwrap();
        assert_eq!(names(dir.path()).iter().filter(|n| n.ends_with(".safetensors")).count(), 4);
        dir
    };
    type Damage = fn(&Path);
    type Row = (Box<dyn Fn(&Path)>, Vec<&'static str>);
    let index = "model.safetensors.index.json";
    let edit = |dir: &Path, change: &dyn Fn(&mut Value)| {
        let path = dir.join("model.safetensors.index.json");
        let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value["weight_map"]);
        fs::write(path, value.to_string()).unwrap();
    };
    let rows: Vec<Row> = vec![
        (
            Box::new(|dir| fs::remove_file(dir.join("model-00002-of-00004.safetensors")).unwrap()),
            vec!["model-00002-of-00004.safetensors: no such file", index],
        ),
        (
            Box::new(move |dir| {
                fs::remove_file(dir.join("model-00002-of-00004.safetensors")).unwrap();
                fs::remove_file(dir.join(index)).unwrap();
            }),
            vec!["model-00002-of-00004.safetensors: no such file"],
        ),
        (
            Box::new(move |dir| edit(dir, &|map| map["x"] = json!("model-00001-of-00004.safetensors"))),
            vec![index, "tensor x is to be in model-00001"],
        ),
        (
            Box::new(move |dir| edit(dir, &|map| drop(map.as_object_mut().unwrap().shift_remove("model.norm.weight")))),
            vec!["model-00004-of-00004.safetensors", "tensor model.norm.weight is not listed"],
        ),
        (
            Box::new(move |dir| edit(dir, &|map| map["x"] = json!("../model.safetensors"))),
            vec![index, "`../model.safetensors` is not the name"],
        ),
        (Box::new(move |dir| edit(dir, &|map| *map = json!({}))), vec![index, "empty"]),
        (Box::new(move |dir| fs::write(dir.join(index), "{").unwrap()), vec![index, "not an index"]),
        (
            Box::new(|dir| {
                fs::copy(dir.join("model-00001-of-00004.safetensors"), dir.join("model.safetensors")).unwrap();
            }),
            vec!["two sets of weights"],
        ),
        (
            Box::new(move |dir| {
                fs::remove_file(dir.join(index)).unwrap();
                fs::copy(dir.join("model-00001-of-00004.safetensors"), dir.join("model-extra.safetensors")).unwrap();
            }),
            vec!["model-extra.safetensors: tensor model.embed_tokens.weight is also in", "model-00001-of-00004"],
        ),
    ];
    for (damage, wants) in rows {
        let dir = sharded();
        damage(dir.path());
        let error = fault(dir.path());
        for want in wants {
            assert!(error.contains(want), "want {want:?}: {error}");
        }
    }
    let dir = sharded();
    let hash = Checkpoint::open(dir.path()).unwrap().model_hash();
    fs::remove_file(dir.path().join(index)).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().model_hash(), hash, "numbered files need no index");

    let weights = |change: Damage| {
        let dir = folder(&config, &[], &[]);
        change(&dir.path().join("model.safetensors"));
        fault(dir.path())
    };
    let cut: Damage = |path| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 10).unwrap();
    };
    assert!(weights(cut).contains("model.safetensors: truncated: tensor "));
    assert!(
        weights(|path| fs::write(path, []).unwrap()).contains("model.safetensors: truncated: the file has 0 bytes")
    );
    assert!(weights(|path| fs::write(path, raw_file("{}", 1)).unwrap()).contains("after the last tensor"));
    assert!(weights(|path| fs::remove_file(path).unwrap()).contains("fetch the folder again"));
    let gguf: Damage = |path| fs::rename(path, path.with_extension("gguf")).unwrap();
    assert!(weights(gguf).contains("GGUF is not read"));
    let pickled: Damage = |path| fs::rename(path, path.with_extension("bin")).unwrap();
    assert!(weights(pickled).contains("pickled weights are not read"));
    let folder: Damage = |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    assert!(weights(folder).contains("model.safetensors: cannot be mapped"));
    let dir = tempfile::tempdir().unwrap();
    assert!(fault(dir.path()).contains("config.json: no such file"));
    assert!(fault(&dir.path().join("model.safetensors")).contains("not a folder"));
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let config = config(json!({}));
    let name = "model.layers.0.mlp.gate_proj.weight"; // [10, 6]
    let mut bytes = vec![0_u8; 120];
    bytes[2 * 44..][..2].copy_from_slice(&0x7f80_u16.to_le_bytes());
    let dir = folder(&config, &[raw(name, Dtype::BF16, &[10, 6], &bytes)], &[]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut out = [0.0; 12];
    checkpoint.read_rows(name, 5, 2, &mut out).unwrap();
    assert!(checkpoint.finite_bf16_rows(name, 0, 7).unwrap().is_some());
    for error in [
        checkpoint.read_rows(name, 6, 2, &mut out).unwrap_err(),
        checkpoint.check_finite(name).unwrap_err(),
        checkpoint.finite_bf16_rows(name, 7, 3).unwrap_err(),
    ] {
        let error = error.to_string();
        for want in ["model.safetensors: ", name, "element 44 at byte ", "is inf"] {
            assert!(error.contains(want), "want {want:?}: {error}");
        }
    }
    // The offset is that of the element in the file.
    let CheckpointError::NonFinite { offset, .. } = checkpoint.check_finite(name).unwrap_err() else { panic!() };
    let file = fs::read(dir.path().join("model.safetensors")).unwrap();
    assert_eq!(file[offset..offset + 2], 0x7f80_u16.to_le_bytes());
    let out_of_range = std::panic::catch_unwind(|| {
        let mut out = [0.0; 12];
        checkpoint.read_rows(name, 9, 2, &mut out)
    });
    assert!(out_of_range.is_err(), "rows beyond the end are a fault of the caller");
}

/// An FP8 weight and its scale under every granularity, against element-wise products.
#[test]
fn fp8_weights_take_their_scales() {
    let config = config(json!({"hidden_size": 130, "intermediate_size": 257}));
    let (rows, columns) = (257, 130);
    let codes: Vec<u8> = (0..rows * columns)
        .map(|i| u8::try_from(i * 37 % 251).unwrap())
        .map(|c| if c & 0x7f == 0x7f { 0 } else { c })
        .collect();
    let name = "model.layers.1.mlp.up_proj.weight";
    let weight = raw(name, Dtype::F8_E4M3, &[rows, columns], &codes);
    let channel: Vec<f32> = random_values("channel", rows).iter().map(|x| x.abs() + 0.01).collect();
    let block: Vec<f32> = (1..=6_u8).map(|i| f32::from(i) * 0.3).collect();
    let scale = format!("{name}_scale");
    type Of = Box<dyn Fn(usize, usize) -> f32>;
    let by_channel = |channel: Vec<f32>| -> Of { Box::new(move |row, _| channel[row]) };
    let by_block = |block: Vec<f32>| -> Of { Box::new(move |row, column| block[row / 128 * 2 + column / 128]) };
    let cases: Vec<(Raw, Of)> = vec![
        (f32s(&scale, &[], &[0.7]), Box::new(|_, _| 0.7)),
        (f32s(&scale, &[1], &[0.7]), Box::new(|_, _| 0.7)),
        (f32s(&scale, &[rows], &channel), by_channel(channel.clone())),
        (f32s(&scale, &[rows, 1], &channel), by_channel(channel.clone())),
        (f32s(&scale, &[3, 2], &block), by_block(block.clone())),
        (f32s(&format!("{name}_scale_inv"), &[3, 2], &block), by_block(block.clone())),
        (raw(&scale, Dtype::BF16, &[1], &0x3f00_u16.to_le_bytes()), Box::new(|_, _| 0.5)),
    ];
    for (scale, of) in cases {
        let (label, shape) = (scale.0.clone(), scale.2.clone());
        let dir = folder(&config, &[weight.clone(), scale], &[]);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.tensor(name).unwrap().dtype, DType::E4m3);
        assert_eq!(checkpoint.bf16_rows(name, 0, 1), None);
        let want: Vec<f32> =
            codes.iter().enumerate().map(|(i, c)| e4m3_to_f32(*c) * of(i / columns, i % columns)).collect();
        assert_eq!(read(&checkpoint, name), want, "{label} {shape:?}");
        let mut out = vec![0.0; 3 * columns];
        checkpoint.read_rows(name, 127, 3, &mut out).unwrap();
        assert_eq!(out, want[127 * columns..130 * columns], "{label} {shape:?}");
        checkpoint.check_finite(name).unwrap();
    }
    let bad: Vec<(Vec<Raw>, Vec<&str>)> = vec![
        (vec![], vec![name, "has no scale"]),
        (vec![f32s(&scale, &[], &[0.0])], vec![&scale, "element 0 at byte", "is 0"]),
        (vec![f32s(&scale, &[], &[-1.0])], vec![&scale, "is -1"]),
        (vec![f32s(&scale, &[], &[f32::NAN])], vec![&scale, "is NaN"]),
        (
            vec![f32s(&format!("{name}_scale_inv"), &[3, 2], &[1.0, 1.0, 1.0, f32::INFINITY, 1.0, 1.0])],
            vec!["_scale_inv", "element 3", "is inf"],
        ),
        (
            vec![f32s(&scale, &[2], &[1.0; 2])],
            vec![&scale, "has shape [2]", "[257] or [257, 1] by channel, [3, 2] by blocks"],
        ),
        (vec![f32s(&format!("{name}_scale_inv"), &[], &[1.0])], vec!["_scale_inv", "[3, 2], by blocks"]),
        (vec![raw(&scale, Dtype::I32, &[1], &[0; 4])], vec![&scale, "is I32"]),
        (
            vec![f32s(&scale, &[], &[1.0]), f32s(&format!("{name}_scale_inv"), &[3, 2], &[1.0; 6])],
            vec!["up_proj.weight has another scale already"],
        ),
    ];
    for (scales, wants) in bad {
        let dir = folder(&config, &[vec![weight.clone()], scales].concat(), &[]);
        let error = fault(dir.path());
        assert!(error.contains("model.safetensors: "), "{error}");
        for want in wants {
            assert!(error.contains(want), "want {want:?}: {error}");
        }
    }
    // A code that is no number is found through its scale.
    let mut codes = codes.clone();
    codes[131] = 0x7f;
    let dir = folder(&config, &[raw(name, Dtype::F8_E4M3, &[rows, columns], &codes), f32s(&scale, &[], &[1.0])], &[]);
    let error = Checkpoint::open(dir.path()).unwrap().check_finite(name).unwrap_err().to_string();
    assert!(error.contains("element 131") && error.contains("NaN"), "{error}");
}

#[test]
fn cache_scales_are_read_under_every_name_and_never_in_halves() {
    let plain = config(json!({}));
    let at = |layer: usize, tail: &str| format!("model.layers.{layer}.self_attn.{tail}");
    let pairs = [
        "k_scale v_scale",
        "k_proj.k_scale v_proj.v_scale",
        "k_proj.output_scale v_proj.output_scale",
        "attn.k_scale attn.v_scale",
        "qkv_proj.k_scale qkv_proj.v_scale",
    ];
    for pair in pairs {
        let (k, v) = pair.split_once(' ').unwrap();
        let dir = folder(&plain, &[f32s(&at(1, k), &[], &[0.5]), f32s(&at(1, v), &[1], &[0.25])], &[]);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().kv_scales(), [None, Some((0.5, 0.25))], "{pair}");
        for (one, has, lacks) in [(k, 'K', 'V'), (v, 'V', 'K')] {
            let error = fault(folder(&plain, &[f32s(&at(1, one), &[], &[0.5])], &[]).path());
            let want =
                format!("layer 1 has a scale for its {has} (model.layers.1.self_attn.{one}) and none for its {lacks}");
            assert!(error.contains(&want), "{error}");
        }
    }
    for one in ["kv_scale", "attn.kv_scale", "qkv_proj.kv_scale"] {
        let both = folder(&plain, &[f32s(&at(0, one), &[], &[0.5])], &[]);
        assert_eq!(Checkpoint::open(both.path()).unwrap().kv_scales(), [Some((0.5, 0.5)), None], "{one}");
    }
    let bad: Vec<(Vec<Raw>, &str)> = vec![
        (vec![f32s(&at(0, "kv_scale"), &[], &[0.0])], "a scale is positive and finite"),
        (vec![f32s(&at(0, "attn.k_scale"), &[], &[-0.5])], "is -0.5; a scale is positive and finite"),
        (vec![f32s(&at(0, "v_proj.output_scale"), &[], &[f32::NAN])], "is NaN; a scale is positive and finite"),
        (vec![f32s(&at(0, "qkv_proj.k_scale"), &[1], &[f32::INFINITY])], "is inf; a scale is positive and finite"),
        (vec![f32s(&at(0, "attn.q_scale"), &[], &[1.0])], "takes that scale"),
        (vec![f32s(&at(0, "kv_scale"), &[2], &[1.0; 2])], "has shape [2]; it must be [] or [1]"),
        (
            vec![f32s(&at(0, "kv_scale"), &[], &[1.0]), f32s(&at(0, "k_scale"), &[], &[1.0])],
            "layer 0 has another scale",
        ),
        (vec![f32s(&at(2, "kv_scale"), &[], &[1.0])], "takes that scale"),
    ];
    for (scales, want) in bad {
        let error = fault(folder(&plain, &scales, &[]).path());
        assert!(error.contains(want), "want {want:?}: {error}");
    }
    for (scheme, refused) in [(json!({"type": "float"}), true), (json!({"dynamic": true}), false), (json!(null), false)]
    {
        let declared =
            config(json!({"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}}));
        let dir = folder(&declared, &[f32s(&at(0, "kv_scale"), &[], &[0.5])], &[]);
        let result = Checkpoint::open(dir.path());
        assert_eq!(result.is_err(), refused, "{scheme}");
        if let Err(error) = result {
            assert!(error.to_string().contains("kv_cache_scheme), and layer 1 has none"), "{error}");
        }
    }
}

/// A recipe takes the folder's own scales, and a folder without them cannot serve it.
#[test]
fn a_recipe_takes_the_folders_cache_scales() {
    use crate::model::Model;
    use crate::recipe::Recipe;
    let config = config(json!({}));
    let cpu = ptx::Cpu::new(1);
    let text = "[default]\nk='e4m3'\nv='e4m3'\nkv_scale='checkpoint'";
    let recipe = Recipe::parse(text, Path::new("r.toml"), &config).unwrap();
    let at = |layer: usize, tail: &str| format!("model.layers.{layer}.self_attn.{tail}");
    let scales = [
        f32s(&at(0, "kv_scale"), &[], &[0.125]),
        f32s(&at(1, "k_proj.output_scale"), &[1], &[0.3]),
        f32s(&at(1, "v_proj.output_scale"), &[1], &[1.0]),
    ];
    let dir = folder(&config, &scales, &[]);
    let model = Model::load(&cpu, &Checkpoint::open(dir.path()).unwrap(), recipe.clone()).unwrap();
    let got: Vec<(f32, f32)> = model.layers.iter().map(|l| (l.k_scales[0], l.v_scales[0])).collect();
    assert_eq!(got, [(0.125, 0.125), (0.5, 1.0)]);
    let bare = folder(&config, &scales[..1], &[]);
    let error = Model::load(&cpu, &Checkpoint::open(bare.path()).unwrap(), recipe).unwrap_err().to_string();
    assert!(error.starts_with("layer 1, weights version 0: ") && error.contains("come without scales"), "{error}");
}
