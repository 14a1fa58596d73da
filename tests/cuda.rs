//! The commands on the simulated CUDA device: what they compute there, what their results say of it, and what they refuse.

mod common;

use std::process::Output;

use common::{last_line, leeway, stderr, task_model};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder in which a process finds the simulated device in the place of a driver.
fn driver() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let library = ptx::cuda::simulator::driver_path().expect("built beside this test");
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::os::unix::fs::symlink(&library, dir.path().join(name)).expect("a link");
    }
    dir
}

/// Runs the binary with the simulated device, or with what is no driver, whatever else this machine has.
fn run(driver: Option<&TempDir>, words: &[&str]) -> Output {
    run_on(driver, words, "8.9,8.0")
}

/// The same where the simulated devices have other compute capabilities.
fn run_on(driver: Option<&TempDir>, words: &[&str], capabilities: &str) -> Output {
    let none = tempfile::tempdir().expect("a temporary folder");
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::fs::write(none.path().join(name), "no library").expect("written");
    }
    let mut command = leeway();
    command.env("LD_LIBRARY_PATH", driver.unwrap_or(&none).path()).env("LEEWAY_SIMT_MODE", "fast");
    command.env("LEEWAY_SIMT_CAPABILITY", capabilities);
    command.args(words).output().expect("the binary runs")
}

fn run_json(driver: &TempDir, words: &[&str]) -> Value {
    let output = run(Some(driver), &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    last_line(&output)
}

fn check_device(result: &Value) {
    let device = result["device"].as_str().expect("a name");
    assert!(device.starts_with("cuda:0 (") && device.contains("8.9") && device.contains("simulated"), "{device}");
    assert_eq!(result["gpu"]["simulated"], true);
    assert_eq!(result["gpu"]["capability"], "8.9");
    assert!(result["gpu"]["name"].as_str().is_some_and(|name| name.contains("not a GPU")));
}

#[test]
fn completions_and_their_scores_are_the_same_bits() {
    let (driver, root) = (driver(), tempfile::tempdir().expect("a temporary folder"));
    let path = |name: &str| root.path().join(name).to_str().expect("Unicode").to_owned();
    let model = path("model");
    task_model(root.path().join("model").as_path(), 1);
    let generate = [
        "generate",
        "--model",
        &model,
        "--recipe",
        "fp8",
        "--prompt",
        "cab>",
        "--n",
        "3",
        "--max-tokens",
        "8",
        "--ignore-eos",
        "--logprobs",
        "3",
        "--prompt-logprobs",
        "--kv-counts",
        "--device",
        "cuda",
    ];
    let generated = run_json(&driver, &generate);
    check_device(&generated);
    let rows = generated["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3);
    let counted = &generated["kv_counts"][0][0]["k"]["elements"];
    assert!(counted.as_u64() > Some(0), "8-bit keys are counted on the device too: {counted}");
    for row in rows {
        let (drawn, tops) = (&row["ids"], row["top_logprobs"].as_array().expect("lists"));
        assert_eq!(tops.len(), drawn.as_array().expect("ids").len());
        for (at, list) in tops.iter().enumerate() {
            let list = list.as_array().expect("a list");
            assert_eq!(list.len(), 3);
            let drawn = list.iter().find(|top| top[0] == drawn[at]);
            assert!(drawn.is_none_or(|top| (&top[1], &top[2]) == (&row["logprobs"][at], &row["logprobs_raw"][at])));
        }
    }
    // What a cut leaves out has no number, and what it leaves has all the probability.
    let cut = run_json(&driver, &[&generate[..], &["--top-k", "2", "--temperature", "0.8"]].concat());
    for list in
        cut["rows"].as_array().expect("rows").iter().flat_map(|row| row["top_logprobs"].as_array().expect("lists"))
    {
        let kept: f64 = (0..2).map(|i| list[i][1].as_f64().expect("kept").exp()).sum();
        assert!((kept - 1.0).abs() < 1e-5 && list[2][1].is_null() && list[2][2].is_number(), "{list}");
    }

    let out = path("rollouts.jsonl");
    run_json(&driver, &[&generate[..], &["--out", &out]].concat());
    let text = std::fs::read_to_string(&out).expect("written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ids = |line: &Value| -> Vec<Value> {
        let part = |key: &str| line[key].as_array().expect("ids").clone();
        [part("prompt_ids"), part("ids")].concat()
    };
    let asked: String = lines
        .iter()
        .zip(rows)
        .map(|(line, row)| {
            let ids = ids(line);
            let mut lists: Vec<Vec<Value>> = ids[1..].iter().map(|id| vec![id.clone(), json!(3)]).collect();
            let prompt = line["prompt_ids"].as_array().expect("ids").len();
            for (list, tops) in lists[prompt - 1..].iter_mut().zip(row["top_logprobs"].as_array().expect("lists")) {
                list.extend(tops.as_array().expect("a list").iter().map(|top| top[0].clone()));
            }
            json!({"ids": ids, "candidates": lists}).to_string() + "\n"
        })
        .collect();
    let file = path("ids.jsonl");
    std::fs::write(&file, asked).expect("written");
    let scored =
        run_json(&driver, &["score", "--model", &model, "--recipe", "fp8", "--ids", &file, "--device", "cuda:0"]);
    check_device(&scored);
    for (row, line) in lines.iter().enumerate() {
        let (want, prompt) = (&line["logprobs_rollout"], line["prompt_ids"].as_array().expect("ids").len());
        let got = &scored["logprobs"][row].as_array().expect("a list")[prompt - 1..];
        assert_eq!(&json!(got), want, "row {row}: sampled and scored on one device");
        for (i, list) in scored["candidates"][row].as_array().expect("lists").iter().enumerate() {
            assert_eq!(list[0], scored["logprobs"][row][i], "row {row}, place {i}");
            let tops = (i + 1).checked_sub(prompt).map(|at| &rows[row]["top_logprobs"][at]);
            for (at, top) in tops.iter().flat_map(|tops| tops.as_array().expect("a list")).enumerate() {
                assert_eq!(list[2 + at], top[2], "row {row}, place {i}: the likeliest of a draw, scored");
            }
        }
    }

    // The CPU's are near, and the likeliest tokens are the same but for ties.
    let on_cpu = common::run_json(["score", "--model", &model, "--recipe", "fp8", "--ids", &file]);
    let flat = |value: &Value| -> Vec<f64> {
        value["logprobs"]
            .as_array()
            .expect("rows")
            .iter()
            .flat_map(|row| row.as_array().expect("a list"))
            .map(|x| x.as_f64().expect("a number"))
            .collect()
    };
    let worst = flat(&scored).iter().zip(flat(&on_cpu)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 0.1, "logprobs on two devices differ by {worst}");
}

#[test]
fn evaluation_runs_there() {
    let (driver, root) = (driver(), tempfile::tempdir().expect("a temporary folder"));
    task_model(root.path().join("model").as_path(), 2);
    let model = root.path().join("model").to_str().expect("Unicode").to_owned();
    let eval =
        ["eval", "--model", &model, "--recipe", "bf16", "--task", "copy", "--problems", "4", "--max-tokens", "4"];
    let result = run_json(&driver, &[&eval[..], &["--device", "auto"]].concat());
    check_device(&result);
    assert_eq!(result["n"], 4);
}

/// Rollouts and teacher on the device, updates on the CPU: D is exact and small, and not claimed to be zero; every logprob of
/// the rollouts is what the device gives again, or the run would have stopped.
#[test]
fn training_with_rollouts_on_a_device() {
    let (driver, root) = (driver(), tempfile::tempdir().expect("a temporary folder"));
    for (name, seed) in [("student", 0), ("teacher", 1)] {
        task_model(root.path().join(name).as_path(), seed);
    }
    let file = root.path().join("run.toml");
    let out = root.path().join("out");
    let text = format!(
        "student = \"student\"\nteacher = \"teacher\"\nout = {out:?}\nupdates = 2\n[task]\nname = \"copy\"\n\
         [train]\nbatch = 2\n[rollout]\nn = 2\nrecipe = \"identity\"\n[eval]\nproblems = 2\n"
    );
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("Unicode");
    let result = run_json(&driver, &["train", file, "--device", "cuda"]);
    check_device(&result);
    let mismatch = result["mismatch_nats"].as_f64().expect("a number");
    assert!((0.0..1e-3).contains(&mismatch), "two devices under one recipe: {mismatch}");
    assert_eq!(result["by_source"], json!({"numerics": mismatch, "staleness": 0.0}));
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).expect("written");
    let update: Value = serde_json::from_str(metrics.lines().nth(1).expect("an update")).expect("JSON");
    assert_eq!(update["by_source"]["numerics"], update["mismatch_nats"]);
    let rollouts = std::fs::read_to_string(out.join("rollouts.jsonl")).expect("written");
    assert!(rollouts.lines().all(|line| line.contains("simulated by ptx/simt")));
    // The same run on the CPU has other rollouts at most where two tokens are as likely; its mismatch is exactly zero.
    let on_cpu = common::run_json(["train", file, "--set", &format!("out={}", root.path().join("cpu").display())]);
    assert_eq!((on_cpu["mismatch_nats"].as_f64(), on_cpu.get("gpu")), (Some(0.0), None));
    // Another device has other bits, so a run goes on where it began.
    let resume = run(None, &["train", file, "--set", "updates=3", "--resume"]);
    assert_eq!(resume.status.code(), Some(1));
    assert!(stderr(&resume).contains("resume on the device that it began on"), "{}", stderr(&resume));
    let resumed = run_json(&driver, &["train", file, "--set", "updates=3", "--resume", "--device", "cuda"]);
    assert_eq!(resumed["updates"], 3);
    // The reference of a target runs there too.
    let led = root.path().join("led");
    let out = format!("out={}", led.display());
    run_json(&driver, &["train", file, "--set", "loss.target=bounded", "--set", &out, "--device", "cuda"]);
    let metrics = std::fs::read_to_string(led.join("metrics.jsonl")).expect("written");
    let update: Value = serde_json::from_str(metrics.lines().nth(1).expect("an update")).expect("JSON");
    let kl = update["target"]["kl_max"].as_f64().expect("a number");
    assert!(kl > 0.0 && kl <= 0.01 * (1.0 + 1e-6), "{update}");
}

#[test]
fn selftest_of_an_op() {
    let driver = driver();
    let output = run(Some(&driver), &["selftest", "--device", "cuda", "--op", "nothing"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--op nothing is none of the ops: embedding, rmsnorm"), "{}", stderr(&output));
    let output = run(None, &["selftest", "--op", "linear"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--op names kernels of a CUDA device"), "{}", stderr(&output));
}

/// `--memory` is all that a run takes of the device: with no byte more there it runs, and what it needs at least is told.
#[test]
fn memory_is_kept() {
    let (driver, root) = (driver(), tempfile::tempdir().expect("a temporary folder"));
    let model = root.path().join("model").to_str().expect("Unicode").to_owned();
    task_model(root.path().join("model").as_path(), 4);
    let generate = |memory: usize, device_has: usize, top_p: &str| {
        let (memory, device_has) = (memory.to_string(), device_has.to_string());
        let mut command = leeway();
        command.env("LD_LIBRARY_PATH", driver.path()).env("LEEWAY_SIMT_MODE", "fast");
        command.env("LEEWAY_SIMT_MEMORY", device_has).args(["generate", "--model", &model, "--recipe", "bf16"]);
        command.args(["--prompt", "cab>", "--max-tokens", "40", "--ignore-eos", "--batch", "2", "--step-tokens", "16"]);
        command.args(["--n", "2", "--top-p", top_p, "--memory", &memory, "--device", "cuda"]);
        command.output().expect("the binary runs")
    };
    for top_p in ["1", "0.9"] {
        let refused = stderr(&generate(1000, 1 << 30, top_p));
        let fixed = refused.split("workspace alone take ").nth(1).and_then(|rest| rest.split(' ').next());
        let fixed: usize = fixed.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{refused}"));
        let checkpoint = engine::checkpoint::Checkpoint::open(root.path().join("model").as_path()).expect("a model");
        let (config, precision) = (checkpoint.config(), engine::recipe::Precision::Bf16);
        let recipe = engine::recipe::Recipe::built_in("bf16", precision, config).expect("a built-in name");
        let page_len = engine::engine::PAGE_LEN;
        let page_bytes = kv::Layout::new(engine::engine::kv_shapes(config, &recipe, page_len)).page_bytes();
        // Both samples at once; with prefix reuse they share no page to the end, since each writes on in its own.
        let pages = 2 * (4 + 40_usize).div_ceil(page_len);
        let enough = fixed + pages * page_bytes;
        let output = generate(enough, enough, top_p);
        assert!(output.status.success(), "top_p {top_p}: {}", stderr(&output));
        let output = generate(fixed + page_bytes, 1 << 30, top_p);
        assert!(stderr(&output).contains("raise --memory"), "top_p {top_p}: {}", stderr(&output));
        let output = generate(fixed - 1, 1 << 30, top_p);
        assert!(stderr(&output).contains(&format!("workspace alone take {fixed}")), "{}", stderr(&output));
    }
}

/// What cannot be had is an error of one line, and never another device.
#[test]
fn what_is_not_there_is_refused() {
    let (driver, root) = (driver(), tempfile::tempdir().expect("a temporary folder"));
    task_model(root.path().join("model").as_path(), 3);
    let model = root.path().join("model").to_str().expect("Unicode").to_owned();
    let score = ["score", "--model", &model, "--prompt", "ab>"];
    let refused = |driver: Option<&TempDir>, words: &[&str], says: &str| {
        let output = run(driver, words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains(says) && text.trim_end().lines().count() == 1, "{words:?}: {text}");
        assert!(output.stdout.is_empty(), "{words:?}");
    };
    let on = |device: &'static str, more: &[&'static str]| [&score[..], &["--device", device], more].concat();
    refused(None, &on("cuda", &["--recipe", "bf16"]), "no CUDA driver");
    refused(Some(&driver), &on("cuda:9", &["--recipe", "bf16"]), "there is no cuda:9");
    refused(Some(&driver), &on("gpu", &[]), "unknown device \"gpu\"; devices are cpu, cuda, cuda:N");
    refused(Some(&driver), &on("cuda:x", &[]), "unknown device \"cuda:x\"");
    refused(Some(&driver), &on("cuda", &["--recipe", "f32"]), "the embedding: a matrix in f32 has no CUDA kernel");
    let huge = ["--recipe", "bf16", "--kv-memory", "64GiB"];
    refused(Some(&driver), &on("cuda", &huge), "--kv-memory is 68719476736 bytes; the device has");
    let out = root.path().join("other").to_str().expect("Unicode").to_owned();
    let pretrain = ["pretrain", "--model", &model, "--out", &out, "--task", "copy", "--device", "cuda"];
    refused(Some(&driver), &pretrain, "this command runs on the CPU alone");

    let output = run(None, &[&on("auto", &["--recipe", "bf16"])[..], &["--json"]].concat());
    assert!(
        output.status.success() && stderr(&output).contains("--device auto: cpu (no CUDA driver"),
        "{}",
        stderr(&output)
    );
    assert!(last_line(&output)["device"].as_str().is_some_and(|name| name.starts_with("cpu")));
    // A device that cannot run the model is none that auto takes; the first that can is.
    let output = run(Some(&driver), &[&on("auto", &["--recipe", "f32"])[..], &["--json"]].concat());
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("--device auto: cpu (the embedding: a matrix in f32"), "{said}");
    assert!(last_line(&output)["device"].as_str().is_some_and(|name| name.starts_with("cpu")));
    let output = run_on(Some(&driver), &on("auto", &["--recipe", "bf16"]), "7.5,8.0");
    assert!(stderr(&output).starts_with("--device auto: cuda:1 ("), "{}", stderr(&output));
    let doctor = |driver| last_line(&run(driver, &["doctor", "--json"]))["cuda"].as_str().expect("a line").to_owned();
    assert!(doctor(None).starts_with("none: no CUDA driver"), "{}", doctor(None));
    assert!(doctor(Some(&driver)).contains("compute capability 8.9"), "{}", doctor(Some(&driver)));
}

/// Noise on weights reaches a device's rollouts and what they are compared with; noise on logits is the CPU's and refused.
#[test]
fn noise_is_put_into_a_devices_rollouts() {
    let (driver, root) = (driver(), tempfile::tempdir().expect("a temporary folder"));
    (0..).zip(["student", "teacher"]).for_each(|(seed, name)| task_model(&root.path().join(name), seed));
    let file = root.path().join("run.toml");
    let text = format!(
        "student = 'student'\nteacher = 'teacher'\nupdates = 2\nout = {:?}\n[task]\nname = 'copy'\nlen_max = 4\n[noise]\n\
         nats = 0.05\n[rollout]\nrecipe = 'bf16'\nn = 2\n[train]\nbatch = 4\n[eval]\nproblems = 4\n",
        root.path().join("run")
    );
    std::fs::write(&file, text).expect("written");
    let words = ["train", file.to_str().expect("Unicode"), "--device", "cuda"];
    let result = run_json(&driver, &words);
    check_device(&result);
    let d = result["mismatch_nats"].as_f64().expect("a number");
    assert!((0.02..0.1).contains(&d) && result["by_source"]["noise"] == result["mismatch_nats"], "{result}");
    let output = run(Some(&driver), &[&words[..], &["--set", "noise.kind=logits"]].concat());
    assert!(stderr(&output).contains("noise.kind is \"logits\"") && !output.status.success(), "{}", stderr(&output));
}
