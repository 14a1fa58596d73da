//! Files that users share: the fixtures of `tests/fixtures` must go on loading, what the binary writes must keep the keys
//! of the fixtures, and `docs/formats.md` must name every key.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use budget::certificate::Certificate;
use engine::recipe::{Recipe, StaticScales};
use opd::config::{Config, LossKind, Precision, Task};
use opd::prompts::{self, Source};
use opd::tasks::TaskSpec;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

fn documentation() -> String {
    fs::read_to_string(root().join("docs/formats.md")).expect("docs/formats.md is there")
}

/// The objects of a JSONL file.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// That `new` has every key of `old`, with a value of the same kind or null.
fn assert_same_form(old: &Value, new: &Value, what: &str) {
    for (key, old) in old.as_object().expect("an object") {
        let new = new.get(key).unwrap_or_else(|| panic!("{what} has lost the key {key}"));
        let same = std::mem::discriminant(old) == std::mem::discriminant(new);
        assert!(same || new.is_null(), "{what}: {key} was {old} and is {new}");
        if old.is_object() {
            assert_same_form(old, new, what);
        }
    }
}

#[test]
fn a_run_file_with_every_key_loads() {
    let config = Config::load(&fixture("run.toml"), &[]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.student, fixture("models/student"));
    assert_eq!((config.updates, config.seed), (300, u64::MAX >> 1));
    assert_eq!(config.task, Task::Procedural(TaskSpec::ModularChain { modulus: 7, depth: 5, ops: "+-".into() }));
    assert_eq!(config.loss.kind, LossKind::ForwardKl);
    assert_eq!((config.rollout.recipe.as_str(), config.rollout.n, config.rollout.max_tokens), ("fp8", 2, 12));
    assert_eq!((config.train.precision, config.train.batch), (Precision::F32, 16));
    assert!(config.train.clip.is_infinite());
    assert_eq!((config.eval.problems, config.eval.every), (100, 20));
    assert_eq!(config.checkpoint.map(|c| c.every), Some(25));
}

#[test]
fn a_recipe_file_with_every_key_loads() {
    let config =
        engine::config::ModelConfig::open(&root().join("tests/golden/qwen3")).unwrap_or_else(|e| panic!("{e}"));
    let text = fs::read_to_string(fixture("recipe.toml")).expect("the fixture is committed");
    let recipe = Recipe::parse(&text, &fixture("recipe.toml"), &config).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(recipe.hash(), "496f8b26dcaa3247c05eb4387c7c55e732e7fde5366451fea05c92b619c58486");
    // The page's own example is a recipe too, for a model with the layers that it names.
    let page = documentation();
    let (_, rest) = page.split_once("```toml\nmodel = \"qwen3\"").expect("the page has an example");
    let (example, _) = rest.split_once("```").expect("it ends");
    let mut raw = config.raw.clone();
    raw["num_hidden_layers"] = 28.into();
    let large = engine::config::ModelConfig::parse(&raw.to_string()).expect("only the layers changed");
    let example = format!("model = \"qwen3\"{example}");
    let example = Recipe::parse(&example, &fixture("example.toml"), &large).unwrap_or_else(|e| panic!("{e}"));
    assert!(matches!(example.static_scales, StaticScales::Calibrated(_)));
    let keys = text.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    for key in keys.chain(["[default]", "[[layer]]", "[lm_head]", "[calibration]"]) {
        assert!(page.contains(&format!("`{key}`")), "docs/formats.md does not explain {key}");
    }
}

#[test]
fn a_resolved_run_file_loads_to_the_same() {
    for name in ["run.toml", "run-prompts.toml", "run-noise.toml"] {
        let config = Config::load(&fixture(name), &[]).unwrap_or_else(|e| panic!("{e}"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let resolved = folder.path().join("config.toml");
        fs::write(&resolved, config.to_toml()).expect("it can be written");
        assert_eq!(Config::load(&resolved, &[]).unwrap_or_else(|e| panic!("{e}")), config, "{name}");
    }
}

#[test]
fn a_run_on_prompts_takes_its_paths_from_the_files_folder() {
    let config = Config::load(&fixture("run-prompts.toml"), &[]).unwrap_or_else(|e| panic!("{e}"));
    let Task::Prompts(task) = &config.task else { panic!("a task with prompts is {:?}", config.task) };
    assert_eq!((task.prompts.clone(), task.max_prompt), (fixture("prompts.jsonl"), 64));
    assert_eq!((config.rollout.max_tokens, config.updates), (256, 200));
}

#[test]
fn a_run_with_noise_says_all_of_it() {
    let noise = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        let config = Config::load(&fixture("run-noise.toml"), &sets).unwrap_or_else(|e| panic!("{e}"));
        toml::Table::try_from(config.noise.expect("it has noise")).expect("plain data")
    };
    let all: BTreeSet<String> = [
        noise(&[]),
        noise(&["noise={ kind = \"weights\", sigma = 0.1 }"]),
        noise(&["noise={ kind = \"staleness\", staleness = 3 }"]),
    ]
    .into_iter()
    .flat_map(|table| table.into_iter().map(|(key, _)| key))
    .collect();
    assert_eq!(
        all.iter().map(String::as_str).collect::<Vec<_>>(),
        ["draw", "hold", "kind", "nats", "sigma", "staleness"]
    );
    for key in all {
        assert!(documentation().contains(&format!("`noise.{key}`")), "docs/formats.md lacks noise.{key}");
    }
}

#[test]
fn a_certificate_loads_and_is_documented() {
    let text = fs::read_to_string(fixture("certificate.json")).expect("the fixture is committed");
    let certificate = Certificate::parse(&text, "certificate.json").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((certificate.format, certificate.seeds.len(), certificate.families.len()), (1, 6, 2));
    let (page, mut names) = (documentation(), BTreeSet::new());
    every_key(&serde_json::from_str(&text).expect("JSON"), &mut names);
    for key in names {
        assert!(page.contains(&format!("`{key}`")), "docs/formats.md lacks {key} of a certificate");
    }
}

/// The keys of all objects in a value.
fn every_key(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            into.insert(key.clone());
            every_key(value, into);
        }),
        Value::Array(list) => list.iter().for_each(|value| every_key(value, into)),
        _ => {}
    }
}

#[test]
fn every_key_of_a_run_file_is_documented() {
    let text = documentation();
    let config = Config::load(&fixture("run.toml"), &["budget=certificate.json".into()]);
    let config = config.unwrap_or_else(|e| panic!("{e}"));
    let table: toml::Table = config.to_toml().parse().expect("its own output is TOML");
    for (name, value) in &table {
        match value {
            toml::Value::Table(inner) if name != "task" => {
                for key in inner.keys() {
                    let key = format!("`{name}.{key}`");
                    assert!(text.contains(&key), "docs/formats.md lacks {key}");
                }
            }
            _ => assert!(text.contains(&format!("`{name}`")), "docs/formats.md lacks `{name}`"),
        }
    }
    for name in TaskSpec::NAMES {
        let spec = toml::Table::try_from(TaskSpec::example(name).expect("a task of that name")).expect("plain data");
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/formats.md lacks the task {name}"));
        if name == "sort" {
            continue; // its row refers to that of copy
        }
        for key in spec.keys().filter(|key| *key != "name") {
            assert!(row.contains(&format!("`{key}`")), "docs/formats.md lacks {key} of {name}");
        }
    }
}

#[test]
fn every_form_of_prompt_loads() {
    let prompts = prompts::read(&fixture("prompts.jsonl")).unwrap_or_else(|e| panic!("{e}"));
    let text = |source: &Source| match source {
        Source::Text(text) => text.clone(),
        Source::Chat(messages) => messages.iter().map(|m| format!("{}: {}\n", m.role, m.content)).collect(),
        Source::Ids(ids) => format!("{ids:?}"),
    };
    let found: Vec<(String, Option<&str>, usize)> =
        prompts.iter().map(|p| (text(&p.source), p.answer.as_deref(), p.line)).collect();
    let want = [
        ("One plus one is".to_owned(), Some("2"), 1),
        ("system: Be brief.\nuser: Hello\n".to_owned(), None, 2),
        ("user: Half of seven?\n".to_owned(), Some("3.5"), 4),
        ("[1, 15, 13, 14, 48]".to_owned(), None, 5),
        ("[1, 14, 13, 48]".to_owned(), Some("1/2"), 6),
    ];
    assert_eq!(found, want);
}

#[test]
fn a_rollout_line_is_whole_and_documented() {
    let text = documentation();
    let [line] = &lines(&fixture("rollout.jsonl"))[..] else { panic!("one line") };
    for key in keys(line) {
        assert!(text.contains(&format!("`{key}`")), "docs/formats.md lacks {key} of rollout lines");
    }
    assert_eq!(line["ids"].as_array().map(Vec::len), line["logprobs_rollout"].as_array().map(Vec::len));
    assert!(line["versions"][0][0] == 0 && line["versions"][0][1].is_u64(), "{}", line["versions"]);
    for key in ["recipe", "model"] {
        assert_eq!(line[key].as_str().map(str::len), Some(64), "{key} is a BLAKE3 hash in hexadecimal");
    }
}

/// Runs the binary with `--json --quiet`; its last line of standard output as an object.
fn leeway(folder: &Path, words: &[&str]) -> Value {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_leeway"))
        .current_dir(folder)
        .args(words)
        .args(["--json", "--quiet", "--threads", "2"])
        .output()
        .expect("the binary runs");
    assert!(status.success(), "{words:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    let stdout = String::from_utf8(stdout).expect("output is UTF-8");
    serde_json::from_str(stdout.lines().last().expect("a line of output")).expect("the last line is JSON")
}

/// The keys that `docs/formats.md` promises for a command's object.
fn promised(text: &str, command: &str) -> BTreeSet<String> {
    let row = text.lines().filter_map(|line| line.strip_prefix(&format!("| `{command}` | `"))).next_back();
    let row = row.unwrap_or_else(|| panic!("docs/formats.md has no row of {command}'s keys"));
    row.trim_end_matches("` |").split_whitespace().map(str::to_owned).collect()
}

#[test]
fn commands_write_what_is_documented() {
    let text = documentation();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path();
    let check = |command: &str, words: &[&str]| -> Value {
        let object = leeway(dir, words);
        let got: BTreeSet<String> = keys(&object).into_iter().map(str::to_owned).collect();
        assert_eq!(got, promised(&text, command), "the object of {command}");
        object
    };
    let tiny =
        ["--hidden", "16", "--layers", "1", "--heads", "1", "--kv-heads", "1", "--head-dim", "16", "--ffn", "16"];
    check("init", &[&["init", "--tasks", "--out", "empty"][..], &tiny].concat());
    let task = "{ name = \"sort\", len_min = 2, len_max = 3 }";
    let few = ["--updates", "1", "--batch", "2", "--problems", "2"];
    check("pretrain", &[&["pretrain", "--model", "empty", "--out", "teacher", "--task", task][..], &few].concat());
    check("eval", &["eval", "--model", "teacher", "--task", task, "--problems", "2"]);
    check("doctor", &["doctor", "--model", "teacher"]);
    let groups = ["--prompt-length", "16", "--samples", "2"];
    check("capacity", &[&["capacity", "--model", "teacher", "--memory", "64MiB"][..], &groups].concat());
    let few = ["--rounds", "1", "--batch", "2", "--context", "8", "--prompt", "16"];
    let bench = check("bench", &[&["bench", "--model", "teacher"][..], &few].concat());
    for object in [&bench["limits"], &bench["capacity"], &bench["figures"][0], &bench["figures"][3]] {
        for key in keys(object) {
            assert!(text.contains(&format!("`{key}`")), "docs/formats.md lacks {key} of bench");
        }
    }
    check("score", &["score", "--model", "teacher", "--prompt", "<bos>cab:"]);
    let prompt = ["--prompt", "<bos>cab:", "--max-tokens", "2", "--n", "2", "--out", "rollouts.jsonl"];
    let result = check("generate", &[&["generate", "--model", "teacher"][..], &prompt].concat());
    for key in ["index", "sample", "ids", "text", "logprobs", "logprobs_raw", "finish"] {
        assert!(keys(&result["rows"][0]).contains(key), "rows of generate have lost {key}");
    }

    let words = ["--max-tokens", "2", "--n-prompts", "2", "--random-recipes", "1", "--units", "kv", "--out", "tuned"];
    let tuned = check(
        "recipe tune",
        &[&["recipe", "tune", "--model", "teacher", "--kv-ratio", "1.2", "--task", task][..], &words].concat(),
    );
    for key in ["unit", "layer", "kind", "bytes_saved", "d_nats", "ci95", "chosen"] {
        assert!(keys(&tuned["units"][0]).contains(key), "units of recipe tune have lost {key}");
    }
    for file in ["recipe.toml", "sensitivity.csv", "sensitivity.svg", "rollouts.jsonl", "state.jsonl"] {
        assert!(dir.join("tuned").join(file).exists() && text.contains(file), "{file} is written and documented");
    }

    let run = format!(
        "student = \"empty\"\nteacher = \"teacher\"\nupdates = 1\nout = \"run\"\ntask = {task}\n\
         rollout = {{ recipe = \"fp8\", n = 2 }}\ntrain = {{ batch = 2 }}\neval = {{ problems = 2 }}\n"
    );
    fs::write(dir.join("run.toml"), run).expect("it can be written");
    check("train", &["train", "run.toml"]);
    let ladder = "run = \"run.toml\"\nmetric = \"kl-teacher\"\nmargin = 0.5\nout = \"ladder\"\nseeds = 2\nrungs = [0.1]\n\
                  extend = 0.0\nfamilies = [\"zero-mean\"]\n";
    fs::write(dir.join("ladder.toml"), ladder).expect("it can be written");
    let calibrated = check("calibrate", &["calibrate", "ladder.toml"]);
    for key in keys(&calibrated["families"][0]) {
        assert!(text.contains(&format!("`{key}`")), "docs/formats.md lacks {key} of calibrate's families");
    }
    let record = &lines(&dir.join("ladder/runs.jsonl"))[0];
    for key in keys(record) {
        assert!(text.contains(&format!("`{key}`")), "docs/formats.md lacks {key} of runs.jsonl");
    }

    let old = &lines(&fixture("rollout.jsonl"))[0];
    for file in ["rollouts.jsonl", "run/rollouts.jsonl"] {
        let new = lines(&dir.join(file));
        assert!(!new.is_empty(), "{file} is empty");
        new.iter().for_each(|new| assert_same_form(old, new, file));
    }
    let (old, new) = (lines(&fixture("metrics.jsonl")), lines(&dir.join("run/metrics.jsonl")));
    assert_eq!(new.len(), 3, "an evaluation, an update, an evaluation");
    for (old, new) in old.iter().zip(&new) {
        assert_same_form(old, new, "metrics.jsonl");
        for key in keys(old) {
            assert!(text.contains(&format!("`{key}`")) || key == "eval", "docs/formats.md lacks {key} of metrics");
        }
    }
    for file in [
        "config.toml",
        "curve.svg",
        "samples.html",
        "samples.jsonl",
        "checkpoints/000001/trainer.json",
        "checkpoints/000001/config.json",
    ] {
        assert!(dir.join("run").join(file).exists(), "the run's folder lacks {file}");
    }
}
