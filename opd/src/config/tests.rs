use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::tasks::TaskSpec;

const SMALLEST: &str = "student = \"s\"\nteacher = \"/t\"\n[task]\nname = \"copy\"\n";

fn parse_with(text: &str, sets: &[&str]) -> Result<Config, String> {
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    load::parse(text, "run.toml", &sets, Path::new("/file"), Path::new("/here")).map_err(|error| error.to_string())
}

fn parse(text: &str) -> Result<Config, String> {
    parse_with(text, &[])
}

/// The page's example, and what it says of defaults: the smallest file means the same.
#[test]
fn the_documented_file_is_the_default() {
    let page = include_str!("mod.rs");
    let (_, rest) = page.split_once("//! ```toml\n").unwrap();
    let (example, _) = rest.split_once("//! ```\n").unwrap();
    let example: String =
        example.lines().map(|line| line.trim_start_matches("//!").trim_start().to_string() + "\n").collect();
    let documented = parse(&example).unwrap();
    let smallest = "student = \"models/student\"\nteacher = \"models/teacher\"\nout = \"runs/first\"\n\
        [task]\nname = \"modular-chain\"\n[checkpoint]\n[dynamics]\n[noise]\nsigma = 0.01\n[offline]\n";
    assert_eq!(documented, parse(smallest).unwrap());
    assert_eq!(parse(SMALLEST).unwrap().out, Path::new("/here/runs/opd"));
    assert_eq!(parse(SMALLEST).unwrap().checkpoint, None);
}

#[test]
fn paths_and_lengths_are_resolved() {
    let config = parse(SMALLEST).unwrap();
    assert_eq!((config.student.as_path(), config.teacher.as_path()), (Path::new("/file/s"), Path::new("/t")));
    assert_eq!(config.rollout.max_tokens, 13, "12 letters and the end");
    assert_eq!(config.rollout.recipe, "identity");
    assert_eq!(config.sequences(), 256);
    let text = "student = \"s\"\nteacher = \"t\"\n[task]\nprompts = \"p.jsonl\"\n[rollout]\nrecipe = \"fp8\"\n";
    let config = parse(text).unwrap();
    let want = PromptTask { prompts: "/file/p.jsonl".into(), max_prompt: 1024, teachers: BTreeMap::new() };
    assert_eq!((config.task, config.rollout.max_tokens), (Task::Prompts(want), 256));
    assert_eq!(config.rollout.recipe, "fp8");
    assert_eq!(parse(&format!("{SMALLEST}[rollout]\nmax_tokens = 5")).unwrap().rollout.max_tokens, 5);
    let config = parse(&format!("{SMALLEST}[rollout]\nrecipe = 'recipes/mixed.toml'")).unwrap();
    assert_eq!(config.rollout.recipe, "/file/recipes/mixed.toml");
    let config = parse_with(SMALLEST, &["rollout.recipe=/r/mixed.toml"]).unwrap();
    assert_eq!(config.rollout.recipe, "/r/mixed.toml");
}

#[test]
fn the_resolved_file_means_the_same_anywhere() {
    let texts = [
        SMALLEST.to_string(),
        format!("seed = {}\n{SMALLEST}[train]\nlr = 3\nclip = inf\nbeta2 = 0.999\n[checkpoint]\nevery = 7", i64::MAX),
        "student = \"s\"\nteacher = \"t\"\n[task]\nprompts = \"p\"\n[rollout]\nrecipe = \"kv8\"".to_string(),
        format!("{SMALLEST}[rollout]\nrecipe = 'mixed.toml'"),
        format!("schedule = 'async'\nwait_s = 3\n{SMALLEST}[rollout]\nin_flight = 'recompute'"),
        format!("schedule = {{ steps_off = 3 }}\n{SMALLEST}"),
        format!("budget = 'c.json'\n{SMALLEST}"),
        format!("budget = {{ certificate = 'a/c.json', ewma = 1 }}\n{SMALLEST}"),
        SMALLEST.replace("copy", "addition") + "digits_test = 9\n[train]\nprecision = \"f32\"",
    ];
    for text in texts {
        let config = parse(&text).unwrap();
        let resolved = config.to_toml();
        let again = load::parse(&resolved, "c.toml", &[], Path::new("/other"), Path::new("/elsewhere")).unwrap();
        assert_eq!(again, config);
        assert_eq!(again.to_toml(), resolved);
        assert!(resolved.contains("warmup = 10"), "defaults are written out");
    }
}

#[test]
fn overrides_are_applied_in_order() {
    let sets = [
        "train.lr = 1e-3",
        "task.name=addition",
        "task.digits_test=7",
        "out=2024",
        "rollout.temperature=1",
        "loss.kind=forward-kl",
        "teacher='a b'",
        "rollout.n=2",
        "rollout.n=3",
        "checkpoint.every=5",
    ];
    let config = parse_with(SMALLEST, &sets).unwrap();
    let task = TaskSpec::Addition { digits_min: 2, digits_max: 5, digits_test: Some(7) };
    assert_eq!((config.train.lr, config.task), (1e-3, Task::Procedural(task)));
    assert_eq!((config.out.as_path(), config.teacher.as_path()), (Path::new("/here/2024"), Path::new("/file/a b")));
    assert_eq!((config.rollout.n, config.loss.kind), (3, LossKind::ForwardKl));
    assert_eq!(config.checkpoint, Some(Checkpoint { every: 5 }));
    let table = parse_with("student = 's'\nteacher = 't'", &["task={name='sort', len_max=6}"]).unwrap();
    assert_eq!(table.task, Task::Procedural(TaskSpec::Sort { len_min: 4, len_max: 6 }));
}

#[test]
fn staleness_goes_by_the_schedule() {
    let of = |text: &str, sets: &[&str]| {
        let config = parse_with(text, sets).unwrap();
        (config.schedule, config.rollout.staleness_max, config.rollout.in_flight)
    };
    assert_eq!(of(SMALLEST, &[]), (Schedule::Sync, 0, InFlight::Drain));
    assert_eq!(of(SMALLEST, &["schedule=async"]), (Schedule::Async, 2, InFlight::Keep));
    let off = |steps_off| Schedule::StepsOff(StepsOff { steps_off });
    assert_eq!(of(SMALLEST, &["schedule.steps_off=3"]), (off(3), 3, InFlight::Drain));
    assert_eq!(of(SMALLEST, &["schedule={steps_off=4}", "rollout.staleness_max=4"]), (off(4), 4, InFlight::Drain));
    let text = format!("schedule = 'sync'\n{SMALLEST}");
    assert_eq!(of(&text, &["schedule.steps_off=2"]), (off(2), 2, InFlight::Drain));
    assert_eq!(of(&text, &["schedule=async", "rollout.in_flight=drain"]), (Schedule::Async, 2, InFlight::Drain));
}

#[test]
fn a_budget_is_off_a_path_or_a_table() {
    let of = |text: &str, sets: &[&str]| parse_with(text, sets).unwrap().budget;
    let held = |certificate: &str| Held::by(certificate.into());
    assert_eq!(of(SMALLEST, &[]), Budget::Off);
    let text = format!("budget = 'c.json'\n{SMALLEST}");
    assert_eq!(of(&text, &[]), Budget::Held(held("/file/c.json")));
    assert_eq!(of(&text, &["budget=off"]), Budget::Off);
    assert_eq!(of(SMALLEST, &["budget=sub/certificate"]), Budget::Held(held("/file/sub/certificate")));
    assert_eq!(of(SMALLEST, &["budget=/c"]), Budget::Held(held("/c")));
    let knobs = Held { patience: 2, ewma: 1.0, remeasure: 3, ..held("/file/c.json") };
    let sets = ["budget.patience=2", "budget.ewma=1", "budget.remeasure=3"];
    assert_eq!(of(&text, &sets), Budget::Held(knobs.clone()));
    let table = "budget={ certificate = 'c.json', patience = 2, ewma = 1.0, remeasure = 3 }";
    assert_eq!(of(SMALLEST, &[table]), Budget::Held(knobs));
    let error = parse_with(SMALLEST, &["budget.patience=2"]).unwrap_err();
    assert!(error.contains("`budget.certificate` is missing") && error.contains("--set budget=off"), "{error}");
}

#[test]
fn errors_name_place_key_and_remedy() {
    let with = |text: &str| SMALLEST.to_string() + text;
    let cases = [
        ("student = ".to_string(), "run.toml:1:11: not TOML: "),
        (
            with("[train]\nlearning_rate = 1"),
            "run.toml:6: unknown key `train.learning_rate`; did you mean `train.lr`? known here: `batch`, `beta1`",
        ),
        (with("[train]\nwarm-up = 1"), "run.toml:6: unknown key `train.warm-up`; did you mean `train.warmup`?"),
        (with("[rolout]\nn = 1"), "run.toml:5: unknown key `rolout`; did you mean `rollout`?"),
        (format!("lr = 1\n{SMALLEST}"), "run.toml:1: unknown key `lr`; did you mean `train.lr`?"),
        (with("length_max = 3"), "run.toml:5: unknown key `task.length_max`; did you mean `task.len_max`?"),
        (
            with("modulus = 3"),
            "run.toml:5: unknown key `task.modulus`; did you mean `task.name`? known here: `len_max`, `len_min`, `name`",
        ),
        (
            "student = 's'\nteacher = 't'\n[task]\nnam = 'copy'".into(),
            "run.toml:4: unknown key `task.nam`; did you mean `task.name`?",
        ),
        (
            "student = 's'\nteacher = 't'\n[task]\nlen_max = 3".into(),
            "run.toml:3: `task.name` is missing: one of modular-chain, addition,",
        ),
        ("student = 's'\nteacher = 't'".into(), "run.toml: `task` is missing: a table that says what to train on"),
        (
            "student = 's'\nteacher = 't'\ntask = 'copy'".into(),
            "run.toml:3: `task` is \"copy\", text in quotes; it must be a table",
        ),
        (SMALLEST.replace("student", "teachrs"), "run.toml:1: unknown key `teachrs`; did you mean `teacher`?"),
        (SMALLEST.replace("student", "teachers"), "run.toml:1: unknown key `teachers`; did you mean `task.teachers`?"),
        (SMALLEST.replace("student = \"s\"", ""), "run.toml: `student` is missing: the folder of the model to train"),
        (
            SMALLEST.replace("\"s\"", "\"\""),
            "run.toml:1: `student` is empty; it must be the folder of the model to train",
        ),
        (with("prompts = 'p'"), "run.toml:5: `task` is both `name` and `prompts`; it must be one of them"),
        (
            with("[train]\nbatch = '64'"),
            "run.toml:6: `train.batch` is \"64\", text in quotes; it must be a whole number",
        ),
        (with("[train]\nbatch = 6.5"), "run.toml:6: `train.batch` is 6.5, a number; it must be a whole number"),
        (with("[train]\nbatch = -1"), "run.toml:6: `train.batch` is -1; it must be 0 to 4294967295"),
        (with("[train]\nbatch = [1]"), "run.toml:6: `train.batch` is a list; it must be a whole number"),
        (with("[train]\nlr = 0"), "run.toml:6: `train.lr` is 0; it must be more than 0 and finite"),
        (with("[train]\nlr = nan"), "run.toml:6: `train.lr` is NaN; it must be more than 0 and finite"),
        (
            with("[train]\ndecay = 191"),
            "run.toml:6: `train.decay` is 191; it must be at most the updates after the warm-up",
        ),
        (with("[train]\nclip = -0.0"), "run.toml:6: `train.clip` is -0; it must be more than 0; inf for no clipping"),
        (with("[train]\nbeta2 = 1.0"), "run.toml:6: `train.beta2` is 1; it must be at least 0 and less than 1"),
        (with("[train]\nweight_decay = -1"), "run.toml:6: `train.weight_decay` is -1; it must be at least 0"),
        (with("[train]\nbatch = 4000000000"), "run.toml:6: `train.batch` is 4000000000; it must be smaller"),
        (
            with("[train]\nprecision = 'fp32'"),
            "run.toml:6: `train.precision` is \"fp32\"; it must be \"bf16\" or \"f32\"; did you mean \"f32\"?",
        ),
        (
            with("[loss]\nkind = 'revers-kl'"),
            "run.toml:6: `loss.kind` is \"revers-kl\"; it must be \"reverse-kl\" or \"forward-kl\" or \"jsd\" or \
             \"skewed-reverse-kl\" or \"skewed-forward-kl\" or \"sampled\" or \"k2\" or \"k3-straight-through\" or \
             \"head-tail\" or \"grpo\"; did you mean \"reverse-kl\"?",
        ),
        (with("[rollout]\nn = 0"), "run.toml:6: `rollout.n` is 0; it must be at least 1"),
        (with("[rollout]\ntop_p = 0.9"), "run.toml:6: `rollout.top_p` is 0.9; it must be 1: "),
        (with("[rollout]\ntemperature = 0.0"), "run.toml:6: `rollout.temperature` is 0; it must be more than 0"),
        (
            with("[rollout]\ntemperature = 1e-7"),
            "run.toml:6: `rollout.temperature` is 0.0000001; it must be more than 0",
        ),
        (with("[rollout]\ntemperature = 1e39"), "run.toml:6: `rollout.temperature` is 1000"),
        (with("[rollout]\nmax_tokens = 0"), "run.toml:6: `rollout.max_tokens` is 0; it must be at least 1"),
        (
            with("[rollout]\nrecipe = ''"),
            "run.toml:6: `rollout.recipe` is \"\"; it must be one of identity, f32, bf16, kv8, fp8, or the path of a recipe file",
        ),
        (
            with("[rollout]\nstaleness_max = 1"),
            "run.toml:6: `rollout.staleness_max` is 1; it must be 0 when `schedule` is \"sync\"",
        ),
        (
            with("[rollout]\nin_flight = 'keep'"),
            "run.toml:6: `rollout.in_flight` is keep; it must be \"drain\" when `schedule` is \"sync\"",
        ),
        (
            format!("schedule = 'asink'\n{SMALLEST}"),
            "run.toml:1: `schedule` is \"asink\"; it must be \"sync\" or \"async\"; did you mean \"async\"?",
        ),
        (
            format!("schedule = {{ steps = 1 }}\n{SMALLEST}"),
            "run.toml:1: unknown key `schedule.steps`; did you mean `schedule.steps_off`?",
        ),
        (
            format!("schedule = {{ steps_off = 0 }}\n{SMALLEST}"),
            "run.toml:1: `schedule.steps_off` is 0; it must be at least 1; \"sync\" is 0 steps off",
        ),
        (
            format!("schedule = {{ steps_off = 2 }}\n{SMALLEST}[rollout]\nstaleness_max = 1"),
            "run.toml:7: `rollout.staleness_max` is 1; it must be 2, as `schedule.steps_off` is, or left out",
        ),
        (
            format!("schedule = {{ steps_off = 2 }}\n{SMALLEST}[rollout]\nin_flight = 'keep'"),
            "run.toml:7: `rollout.in_flight` is keep; it must be \"drain\" with `steps_off`",
        ),
        (
            format!("schedule = 'async'\n{SMALLEST}[rollout]\nstaleness_max = 0"),
            "run.toml:7: `rollout.staleness_max` is 0; it must be at least 1 when `schedule` is \"async\"",
        ),
        (format!("schedule = {{}}\n{SMALLEST}"), "run.toml:1: `schedule.steps_off` is missing"),
        (
            format!("schedule = 'async'\n{SMALLEST}[offline]\nupdates = 3"),
            "run.toml:1: `schedule` is \"async\"; it must be \"sync\" with `offline`",
        ),
        (
            with("[offline]\nupdates = 201"),
            "run.toml:6: `offline.updates` is 201; it must be 1 to `updates`, which is 200",
        ),
        (format!("ring = ''\n{SMALLEST}"), "run.toml:1: `ring` is \"\"; it must be the path of a ring"),
        (format!("wait_s = 0\n{SMALLEST}"), "run.toml:1: `wait_s` is 0; it must be more than 0 and finite"),
        (
            format!("budget = 'of'\n{SMALLEST}"),
            "run.toml:1: `budget` is \"of\"; it must be \"off\", or the path of a certificate that `leeway calibrate` wrote",
        ),
        (format!("budget = 'on'\n{SMALLEST}"), "run.toml:1: `budget` is \"on\"; it must be \"off\", or the path"),
        (format!("budget = ''\n{SMALLEST}"), "run.toml:1: `budget` is \"\"; it must be \"off\", or the path"),
        (format!("budget = 1\n{SMALLEST}"), "run.toml:1: `budget` is 1, a whole number; it must be text in quotes"),
        (
            format!("budget = {{ patience = 2 }}\n{SMALLEST}"),
            "run.toml:1: `budget.certificate` is missing: the path of what `leeway calibrate` wrote",
        ),
        (
            format!("budget = {{ certificate = 'c.json', patient = 2 }}\n{SMALLEST}"),
            "run.toml:1: unknown key `budget.patient`; did you mean `budget.patience`? known here: `certificate`, `ewma`, \
             `patience`, `remeasure`",
        ),
        (
            format!("budget = {{ certificate = 'c.json', patience = 0 }}\n{SMALLEST}"),
            "run.toml:1: `budget.patience` is 0; it must be at least 1 update",
        ),
        (
            "student = 's'\nteacher = 't'\n[budget]\ncertificate = 'c.json'\newma = 1.5\n[task]\nname = 'copy'"
                .to_owned(),
            "run.toml:5: `budget.ewma` is 1.5; it must be more than 0 and at most 1",
        ),
        (
            format!("budget = {{ certificate = 'c.json', remeasure = 0 }}\n{SMALLEST}"),
            "run.toml:1: `budget.remeasure` is 0; it must be at least 1 update",
        ),
        (with("[eval]\nproblems = 0"), "run.toml:6: `eval.problems` is 0; it must be at least 1"),
        (with("[eval]\ntemperature = -1"), "run.toml:6: `eval.temperature` is -1; it must be at least 0"),
        (with("[eval]\ntemperature = 1e-7"), "run.toml:6: `eval.temperature` is 0.0000001; it must be at least 0"),
        (with("[checkpoint]\nevery = 0"), "run.toml:6: `checkpoint.every` is 0; it must be at least 1"),
        (with("len_min = 20"), "run.toml:5: `task.len_min` is 20; it must be 1 to 12"),
        (SMALLEST.replace("copy", "copi"), "run.toml:4: `task.name` is \"copi\"; it must be \"modular-chain\" or"),
        (
            SMALLEST.replace("copy", "modular-chain") + "ops = '+/'",
            "run.toml:5: `task.ops` is \"+/\"; it must be one or more of + - *",
        ),
    ];
    for (text, want) in cases {
        let got = parse(&text).expect_err(&text);
        assert!(got.starts_with(want), "{text}\n   got: {got}\n  want: {want}");
    }
}

#[test]
fn errors_in_overrides_name_the_override() {
    let cases = [
        ("train.lr", "--set train.lr: write key=value"),
        ("train..lr=1", "--set train..lr=1: the key has an empty part"),
        ("student.x=1", "--set student.x=1: `student` is text in quotes, not a table"),
        ("train.lr=0", "--set train.lr=0: `train.lr` is 0; it must be more than 0"),
        ("train.lr=fast", "--set train.lr=fast: `train.lr` is \"fast\", text in quotes; it must be a number"),
        ("train.rl=1", "--set train.rl=1: unknown key `train.rl`; did you mean `train.lr`?"),
        ("seed=-1", "--set seed=-1: `seed` is -1; it must be 0 to 9223372036854775807"),
        ("task={name='copy', len_min=0}", "--set task={name='copy', len_min=0}: `task.len_min` is 0"),
    ];
    for (set, want) in cases {
        let got = parse_with(SMALLEST, &[set]).expect_err(set);
        assert!(got.starts_with(want), "got: {got}\nwant: {want}");
    }
}

/// The words that a key is checked against are those that its type takes.
#[test]
fn words_and_types_agree() {
    for words in &keys::WORDS {
        for &word in words.taken {
            // What a word needs beside it: running rollouts are a question only where some are running.
            let beside = match (words.key, word) {
                ("loss.kind", "head-tail") => "loss.support=student-top-k",
                ("rollout.in_flight", _) => "schedule=async",
                ("loss.window", _) => "loss.weight=mask",
                ("loss.ratio", _) => "loss.kind=grpo",
                ("noise.kind", "staleness") => "noise.staleness=1",
                ("noise.kind" | "noise.draw", _) => "noise.sigma=0.1",
                _ => "seed=0",
            };
            parse_with(SMALLEST, &[beside, &format!("{}={word}", words.key), "task={name='copy'}"]).unwrap();
            let wrong = format!("{}={word}x", words.key);
            assert!(parse_with(SMALLEST, &[&wrong]).unwrap_err().contains("did you mean"), "{wrong}");
        }
    }
    // No type takes a word that the table lacks: each lists its words when it refuses one.
    let listed = [
        toml::Value::from("?").try_into::<Schedule>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<LossKind>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<LossSupport>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<LossTarget>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<LossWeight>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<LossWindow>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<LossRatio>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<InFlight>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<NoiseKind>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<NoiseDraw>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<OfflineLoss>().unwrap_err().to_string(),
        toml::Value::from("?").try_into::<Precision>().unwrap_err().to_string(),
    ];
    let quoted = listed.iter().flat_map(|error| error.split('`').skip(3).step_by(2));
    for word in quoted {
        assert!(keys::WORDS.iter().any(|words| words.taken.contains(&word)), "{word} is in no table");
    }
}

#[test]
fn files_are_read_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let missing = Config::load(&file, &[]).unwrap_err().to_string();
    assert!(missing.starts_with(&file.display().to_string()), "{missing}");
    std::fs::write(&file, SMALLEST).unwrap();
    let config = Config::load(&file, &["out=x".to_string()]).unwrap();
    assert_eq!(config.student, folder.path().join("s"));
    assert_eq!(config.out, std::env::current_dir().unwrap().join("x"));
    std::fs::write(&file, "student = 1\n").unwrap();
    let wrong = Config::load(&file, &[]).unwrap_err().to_string();
    assert_eq!(wrong, format!("{}:1: `student` is 1, a whole number; it must be text in quotes", file.display()));
}

/// A new key has to be given the value that runs before it had, in `YOUNGER`, or calibrations and results of experiments are
/// of another configuration all at once.
#[test]
fn what_a_run_is_known_by_outlives_new_keys() {
    let mut table = parse(SMALLEST).unwrap().known_by();
    for path in ["student", "teacher"] {
        table.remove(path);
    }
    let text = serde_json::to_string(&table).unwrap();
    assert_eq!(blake3::hash(text.as_bytes()).to_hex()[..16], *"a74bb2798b8d4519", "{text}");
}
