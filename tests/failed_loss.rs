//! A loss that is no number: the run stops, names the place, and keeps what the loss was computed from.

mod common;

use common::{leeway, stderr, task_model};
use serde_json::Value;

#[test]
fn the_place_is_named_and_the_dump_is_kept() {
    let root = tempfile::tempdir().expect("a temporary folder");
    task_model(&root.path().join("student"), 0);
    let teacher = root.path().join("teacher");
    let words = "init --tasks --layers 2 --hidden 32 --head-dim 16 --heads 2 --kv-heads 1 --ffn 64 --untied --seed 1";
    let made = leeway().args(words.split(' ')).arg("--out").arg(&teacher).output().expect("it runs");
    assert!(made.status.success(), "{}", stderr(&made));
    // Every weight of its head is the largest bf16: the folder is sound, what it computes overflows.
    let path = teacher.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("written");
    let head = {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
        let data = tensors.tensor("lm_head.weight").expect("an untied head").data();
        let first = data.as_ptr().addr() - bytes.as_ptr().addr();
        first..first + data.len()
    };
    bytes[head].chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&[0x7f, 0x7f]));
    std::fs::write(&path, bytes).expect("written");
    let (file, out) = (root.path().join("run.toml"), root.path().join("run"));
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 2\n[task]\nname = \"copy\"\n[train]\nbatch = 2\n\
         [eval]\nproblems = 2\nevery = 0\n"
    );
    std::fs::write(&file, text).expect("written");
    let output = leeway().arg("train").arg(&file).output().expect("the binary runs");
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{error}");
    assert!(error.contains("update 0: the loss is not finite at rollout 0, token 0 (id "), "{error}");
    assert!(error.contains("teacher") && error.contains("nothing was updated"), "{error}");
    let path = out.join("failed/000000.json");
    assert!(error.contains(&format!("is in {}", path.display())), "{error}");
    let dump: Value = serde_json::from_slice(&std::fs::read(&path).expect("written")).expect("JSON");
    assert_eq!((dump["update"].as_u64(), dump["token"].as_u64()), (Some(0), Some(0)));
    let ids = dump["rollouts"][0]["ids"].as_array().expect("the ids of the rollout");
    assert_eq!(ids[0], dump["token_id"]);
    assert!(dump["weights_not_finite"].is_null(), "the student is not to blame");
    assert!(!out.join("checkpoints").exists());
}
