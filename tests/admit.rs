//! `leeway admit` from run file and certificate to verdict, reasons and repair.

mod common;

use std::path::PathBuf;

use common::{last_line, leeway, run_json, stderr, task_model};
use serde_json::{Value, json};

/// Models, a run file and the certificate of a calibration of it.
struct Bench {
    root: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (seed, name) in (0..).zip(["student", "teacher"]) {
            task_model(&root.path().join(name), seed);
        }
        let bench = Bench { root };
        let run = "student = 'student'\nteacher = 'teacher'\nupdates = 6\nseed = 3\n[task]\nname = 'copy'\nlen_max = 4\n[rollout]\n\
                   n = 2\n[train]\nbatch = 4\nlr = 1e-3\nwarmup = 2\n[eval]\nproblems = 8\n";
        std::fs::write(bench.path("run.toml"), run).expect("written");
        let calibration = format!(
            "run = 'run.toml'\nout = {:?}\nmetric = 'kl-teacher'\nmargin = 100.0\nseeds = 2\nrungs = [0.01]\nextend = 0\n",
            bench.path("calibration")
        );
        std::fs::write(bench.path("calibrate.toml"), calibration).expect("written");
        run_json(["calibrate", bench.text("calibrate.toml").as_str()]);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("Unicode").to_owned()
    }

    /// The certificate with another budget and drift limit; its name.
    fn certificate(&self, lower: f64, budget: f64, drift: f64, change: impl Fn(&mut Value)) -> String {
        let text = std::fs::read_to_string(self.path("calibration/certificate.json")).expect("written");
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        for family in value["families"].as_array_mut().expect("a list") {
            family["lower_nats"] = json!(lower);
            family["budget_nats"] = json!(budget);
            family["drift_limit"] = json!(drift);
            family["verdict"] = json!("knee");
            family["at_least"] = json!(false);
            family["growth"]["factor"] = json!(1.5);
        }
        change(&mut value);
        let path = self.path("certificate.json");
        std::fs::write(&path, value.to_string()).expect("written");
        path.to_str().expect("Unicode").to_owned()
    }

    fn admit(&self, certificate: &str, set: &[&str], more: &[&str]) -> (Option<i32>, Value, String) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_leeway"));
        if !more.contains(&"--threads") {
            command.args(["--threads", "2"]);
        }
        command.args(["--quiet", "--json", "admit", &self.text("run.toml"), "--certificate", certificate]).args(more);
        for set in set {
            command.args(["--set", set]);
        }
        let output = command.output().expect("the binary runs");
        let code = output.status.code();
        let value = if code == Some(1) || code == Some(2) { Value::Null } else { last_line(&output) };
        (code, value, stderr(&output))
    }
}

const KEYS: [&str; 32] = [
    "verdict",
    "reasons",
    "d_nats",
    "ci95",
    "ucb95",
    "limit_nats",
    "budget_nats",
    "at_least",
    "growth",
    "family",
    "drift",
    "by_source",
    "staleness",
    "prompts",
    "looks",
    "tokens",
    "cost_share",
    "cost_share_2000",
    "repair",
    "pilot_updates",
    "update_s",
    "wall_s",
    "weights_version",
    "seed",
    "student",
    "teacher",
    "recipe",
    "recipe_hash",
    "certificate",
    "config_hash",
    "device",
    "versions_behind",
];

#[test]
fn a_rollout_that_is_the_student_is_admitted_with_nothing() {
    let bench = Bench::new();
    // A budget of nothing has room for nothing.
    let certificate = bench.certificate(0.0, 0.0, 0.0, |_| {});
    let (code, said, error) = bench.admit(&certificate, &[], &[]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!((said["verdict"].as_str(), said["d_nats"].as_f64()), (Some("admit"), Some(0.0)));
    assert_eq!(said["drift"]["relative"], 0.0);
    assert_eq!(said["prompts"], 16, "one look is enough");
    assert!(said["cost_share_2000"].as_f64() < said["cost_share"].as_f64());
    let mut keys: Vec<&str> = said.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut promised = KEYS.to_vec();
    promised.sort_unstable();
    assert_eq!(keys, promised, "docs/formats.md");
    let formats = std::fs::read_to_string(common::repository("docs/formats.md")).expect("the document");
    let line = formats.lines().find(|line| line.starts_with("| `admit` |")).expect("its keys are documented");
    assert!(KEYS.iter().all(|key| line.contains(key)), "{line}");
}

#[test]
fn a_budget_decides_and_a_repair_repairs() {
    let bench = Bench::new();
    let recipe = ["rollout.recipe=fp8"];
    let (_, said, error) = bench.admit(&bench.certificate(1.0, 2.0, 5.0, |_| {}), &recipe, &[]);
    assert_eq!(said["verdict"], "admit", "{error}");
    let d = said["d_nats"].as_f64().expect("a number");
    assert!(d > 0.0 && said["by_source"]["numerics"] == said["d_nats"], "{said}");
    assert_eq!((&said["by_source"]["staleness"], &said["staleness"]), (&json!(0.0), &Value::Null));

    // Between the lower limit and the budget nothing can be told.
    let (code, said, _) = bench.admit(&bench.certificate(0.1 * d, 1.0, 5.0, |_| {}), &recipe, &["--prompts", "32"]);
    assert_eq!((code, &said["verdict"], &said["prompts"]), (Some(4), &json!("gray"), &json!(32)));

    // Over it: every layer is named, and what is proposed is admitted in its turn.
    let tight = bench.certificate(0.9 * d, 0.9 * d, 5.0, |_| {});
    let (code, said, _) = bench.admit(&tight, &recipe, &[]);
    assert_eq!((code, &said["verdict"]), (Some(3), &json!("reject")));
    let layers = said["repair"]["layers"].as_array().expect("layers");
    let nats: Vec<f64> = layers.iter().map(|layer| layer["d_nats"].as_f64().expect("a number")).collect();
    assert!(nats.len() == 2 && nats[0] >= nats[1] && nats[1] > 0.0, "{said}");
    let change = &said["repair"]["change"];
    assert!(!change["restored"].as_array().expect("a list").is_empty(), "{said}");
    let file = bench.path("repaired.toml");
    std::fs::write(&file, change["recipe"].as_str().expect("a recipe")).expect("written");
    let (code, said, error) = bench.admit(&tight, &[&format!("rollout.recipe={}", file.display())], &[]);
    assert_eq!((code, &said["verdict"]), (Some(0), &json!("admit")), "{error}");

    // Prefixes alone can reject.
    let (code, said, _) = bench.admit(&bench.certificate(1.0, 1.0, 0.0, |_| {}), &recipe, &[]);
    assert!(matches!(code, Some(3 | 4)), "{said}");
    assert_eq!(said["reasons"][0]["verdict"], "admit");
}

#[test]
fn staleness_is_measured_at_its_bound_and_has_its_law() {
    let bench = Bench::new();
    let wide = bench.certificate(5.0, 5.0, 50.0, |_| {});
    let stale = ["schedule={ steps_off = 3 }"];
    let (code, said, error) = bench.admit(&wide, &stale, &[]);
    assert_eq!(code, Some(0), "{error}");
    let (numerics, staleness) = (&said["by_source"]["numerics"], said["by_source"]["staleness"].as_f64());
    assert_eq!((numerics.as_f64(), said["versions_behind"].as_u64()), (Some(0.0), Some(3)));
    assert!(staleness > Some(0.0) && staleness == said["d_nats"].as_f64(), "identity adds nothing: {said}");
    let (a, b) = (said["staleness"]["a"].as_f64().expect("a"), said["staleness"]["b"].as_f64().expect("b"));
    assert!(a > 0.0 && (1.0..=2.0).contains(&b), "{said}");
    // The same by the noise of that name, and by one thread.
    let noise = ["noise={ kind = 'staleness', staleness = 3 }"];
    let (_, same, _) = bench.admit(&wide, &noise, &["--threads", "1"]);
    assert_eq!(same["d_nats"], said["d_nats"], "bit for bit");
    // Both together, and a repair that is fewer versions behind.
    let d = said["d_nats"].as_f64().expect("a number");
    let tight = bench.certificate(0.3 * d, 0.3 * d, 50.0, |_| {});
    let (code, said, _) = bench.admit(&tight, &["schedule={ steps_off = 3 }", "rollout.recipe=kv8"], &[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said["by_source"]["cross"].as_f64().expect("a number").abs() < d, "{said}");
    let change = &said["repair"]["change"];
    assert!(change["staleness_max"].as_u64() < Some(3), "{said}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let bench = Bench::new();
    let certificate = bench.certificate(1.0, 1.0, 1.0, |_| {});
    let refused = |certificate: &str, set: &[&str], more: &[&str]| {
        let (code, _, error) = bench.admit(certificate, set, more);
        assert_eq!(code, Some(1), "{error}");
        error
    };
    let error = refused(&certificate, &["train.lr=2e-3"], &[]);
    assert!(error.contains("`settings.lr` is 0.001 there and 0.002 in this run"), "{error}");
    let error = refused(&certificate, &["loss.kind=forward-kl"], &[]);
    assert!(error.contains("`settings.loss_kind` is \"reverse-kl\" there and \"forward-kl\" in this run"), "{error}");
    let error = refused(&certificate, &["rollout.max_tokens=3"], &[]);
    assert!(error.contains("settings.max_tokens"), "{error}");
    task_model(&bench.path("other"), 9);
    let error = refused(&certificate, &["student=other"], &[]);
    assert!(error.contains("`student` is"), "{error}");
    let error = refused(&certificate, &["schedule={ steps_off = 4 }"], &["--pilot", "3"]);
    assert!(error.contains("--pilot is 3") && error.contains("at least 4"), "{error}");
    let error = refused(&certificate, &["ring=/dev/shm/leeway-nobody"], &[]);
    assert!(error.contains("leave `ring` out"), "{error}");
    let only = bench.certificate(1.0, 1.0, 1.0, |value| {
        value["families"].as_array_mut().expect("a list").retain(|family| family["family"] == "zero-mean");
    });
    let error = refused(&only, &["rollout.recipe=fp8"], &[]);
    assert!(error.contains("no coherent family"), "{error}");
    let (code, said, error) = bench.admit(&only, &["noise={ kind = 'weights', sigma = 0.01 }"], &[]);
    assert_eq!((code, &said["family"]), (Some(0), &json!("zero-mean")), "{error}");
    let error = refused(&bench.text("run.toml"), &[], &[]);
    assert!(error.contains("run.toml") && error.contains("certificate"), "{error}");
    let error = refused(&bench.text("nothing.json"), &[], &[]);
    assert!(error.contains("nothing.json"), "{error}");
}

#[test]
fn the_screen_says_why() {
    let bench = Bench::new();
    let screen = |certificate: &str| {
        let args = ["admit", &bench.text("run.toml"), "--certificate", certificate, "--set", "rollout.recipe=fp8"];
        let output = leeway().args(args).output().expect("the binary runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = screen(&bench.certificate(1.0, 2.0, 5.0, |_| {}));
    assert!(text.starts_with("ADMIT: recipe fp8, up to 0 versions behind, against the coherent budget"), "{text}");
    assert!(text.contains("D, times 1.50 for growth") && text.contains("drift, share of the loss"), "{text}");
    let text = screen(&bench.certificate(1e-9, 1e-9, 5.0, |_| {}));
    assert!(text.starts_with("REJECT") && text.contains("D alone, nats/token") && text.contains("repair: "), "{text}");
    assert!(text.lines().count() < 40 && text.lines().all(|line| line.chars().count() <= 180), "one screen: {text}");
}
