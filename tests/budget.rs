//! `budget` in a run file: checked before the run, watched in it, and what is lowered when mismatch stays over.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::{last_line, leeway, run_json, stderr, task_model};
use serde_json::{Value, json};

const UPDATES: u64 = 12;

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
        let run = format!(
            "student = 'student'\nteacher = 'teacher'\nupdates = {UPDATES}\nseed = 3\n[task]\nname = 'copy'\nlen_max = 4\n\
             [rollout]\nn = 2\n[train]\nbatch = 4\nlr = 1e-3\nwarmup = 2\n[eval]\nproblems = 8\nevery = 0\n[checkpoint]\nevery = 2\n"
        );
        std::fs::write(bench.path("run.toml"), run).expect("written");
        let calibration = format!(
            "run = 'run.toml'\nout = {:?}\nmetric = 'kl-teacher'\nmargin = 100.0\nseeds = 2\nrungs = [0.01]\nextend = 0\n\
             families = ['coherent']\n",
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

    /// `NAME.json` with another budget: one that was found, or one beyond which nobody has looked, where nothing is rejected.
    fn certificate(&self, name: &str, budget: f64, at_least: bool) {
        let text = std::fs::read_to_string(self.path("calibration/certificate.json")).expect("written");
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        let family = &mut value["families"][0];
        (family["lower_nats"], family["budget_nats"]) = (json!(budget), json!(budget));
        (family["drift_limit"], family["growth"]["factor"]) = (json!(50.0), json!(1.0));
        family["verdict"] = json!(if at_least { "at-least" } else { "knee" });
        family["at_least"] = json!(at_least);
        std::fs::write(self.path(&format!("{name}.json")), value.to_string()).expect("written");
    }

    /// Every update may trip: D alone counts, and at once.
    fn at_once(&self, name: &str, budget: f64) -> String {
        self.certificate(name, budget, true);
        format!("budget={{ certificate = '{name}.json', patience = 1, remeasure = 1, ewma = 1 }}")
    }

    fn command(&self, out: &str, set: &[&str], more: &[&str]) -> std::process::Command {
        let mut command = leeway();
        command
            .args(["--json", "train", &self.text("run.toml"), "--set", &format!("out={}", self.text(out))])
            .args(more);
        for set in set {
            command.args(["--set", set]);
        }
        command
    }

    fn train(&self, out: &str, set: &[&str], more: &[&str]) -> Output {
        self.command(out, set, more).output().expect("the binary runs")
    }

    fn trained(&self, out: &str, set: &[&str], more: &[&str]) -> Value {
        let output = self.train(out, set, more);
        assert!(output.status.success(), "{}", stderr(&output));
        last_line(&output)
    }

    fn lines(&self, out: &str, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(out).join(file)).expect("written");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn updates(&self, out: &str) -> Vec<Value> {
        self.lines(out, "metrics.jsonl").into_iter().filter(|line| line["update"].is_u64()).collect()
    }

    fn fallbacks(&self, out: &str) -> Vec<Value> {
        self.lines(out, "metrics.jsonl").iter().filter_map(|line| line.get("fallback").cloned()).collect()
    }

    fn checkpoint(&self, out: &str, update: u64) -> PathBuf {
        self.path(out).join(format!("checkpoints/{update:06}"))
    }

    fn state(&self, out: &str, update: u64) -> Vec<u8> {
        std::fs::read(self.checkpoint(out, update).join("trainer.safetensors")).expect("written")
    }

    fn sealed(&self, out: &str, update: u64) -> Value {
        let text = std::fs::read_to_string(self.checkpoint(out, update).join("trainer.json")).expect("written");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Everything that a run computed: all but times.
    fn same_bits(&self, one: &str, other: &str) {
        self.same_training(one, other);
        let [a, b] = [one, other].map(|out| self.updates(out).iter().map(Bench::bare).collect::<Vec<_>>());
        assert_eq!(a, b);
    }

    fn bare(line: &Value) -> Value {
        let mut line = line.clone();
        let object = line.as_object_mut().expect("an object");
        object.retain(|key, _| !key.ends_with("_s") && key != "guard" && key != "device");
        if let Some(age) = object.get_mut("age") {
            *age = age["tokens"].clone();
        }
        line
    }

    /// Weights, rollouts and evaluations. (A run whose rollouts are behind cannot measure the first updates after a kill.)
    fn same_training(&self, one: &str, other: &str) {
        for at in (2..=UPDATES).step_by(2) {
            assert!(self.state(one, at) == self.state(other, at), "the weights differ after update {at}");
        }
        let [a, b] =
            [one, other].map(|out| self.lines(out, "rollouts.jsonl").iter().map(Bench::bare).collect::<Vec<_>>());
        assert!(a == b, "rollouts differ");
        let evals = |out: &str| -> Vec<Value> {
            self.lines(out, "metrics.jsonl").iter().filter_map(|line| line.get("eval").cloned()).collect()
        };
        assert_eq!(evals(one), evals(other));
    }

    /// A run that was killed after the checkpoint of `update`, and goes on.
    fn killed(&self, out: &str, set: &[&str], update: u64) {
        let mut child = self.command(out, set, &["--threads", "1"]);
        // The last of two --threads counts.
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let due = self.checkpoint(out, update).join("trainer.json");
        while !due.exists() && child.try_wait().expect("the system knows its child").is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(child.kill()); // SIGKILL; it may be at its end
        child.wait().expect("it is gone");
        // A machine that is busy elsewhere may let it come further: it goes on from there all the same.
        for later in update + 1..=UPDATES {
            drop(std::fs::remove_dir_all(self.checkpoint(out, later)));
        }
        assert!(due.exists(), "it came to update {update}");
    }
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", line[key]))
}

#[test]
fn an_admitted_run_is_the_run_without_a_budget() {
    let bench = Bench::new();
    bench.certificate("wide", 5.0, false);
    for (name, set) in [("turns", "seed=3"), ("stages", "schedule={ steps_off = 1 }")] {
        let set = ["rollout.recipe=fp8", set];
        let (off, held) = (format!("{name}-off"), format!("{name}-held"));
        let plain = bench.trained(&off, &set, &[]);
        let said = bench.trained(&held, &[&set[..], &["budget=wide.json"]].concat(), &[]);
        bench.same_bits(&off, &held);
        assert_eq!((&plain["budget"], &plain["fallbacks"]), (&json!("off"), &json!([])));
        assert_eq!((&said["budget"]["verdict"], &said["fallbacks"]), (&json!("admit"), &json!([])));
        assert_eq!(said["budget"]["budget_nats"], 5.0);
        // The verdict is the first thing that the run says, and every update says how it stands.
        let lines = bench.lines(&held, "metrics.jsonl");
        assert_eq!((&lines[0]["budget"]["verdict"], &lines[0]["budget"]["update"]), (&json!("admit"), &json!(0)));
        assert_eq!(lines.iter().filter(|line| line.get("budget").is_some()).count(), 1);
        for line in bench.updates(&held) {
            assert_eq!(line["guard"]["over"], 0);
            assert!(number(&line["guard"], "ewma_nats") > 0.0, "{line}");
        }
        let first = &bench.updates(&held)[0];
        let want = if name == "turns" { "mismatch_nats" } else { "k3" };
        assert_eq!(first["guard"]["ewma_nats"], first[want], "the first update is the average");
        // Resumed with nothing left to do it is not judged again, certificate or not.
        std::fs::rename(bench.path("wide.json"), bench.path("away.json")).expect("renamed");
        let again = bench.trained(&held, &[&set[..], &["budget=wide.json"]].concat(), &["--resume"]);
        assert_eq!(again["budget"], said["budget"]);
        std::fs::rename(bench.path("away.json"), bench.path("wide.json")).expect("renamed");
    }
}

#[test]
fn a_run_that_is_not_admitted_trains_nothing() {
    let bench = Bench::new();
    bench.certificate("tight", 1e-9, false);
    let set = ["rollout.recipe=fp8", "budget=tight.json"];
    let output = bench.train("run", &set, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let said = last_line(&output);
    assert_eq!((&said["verdict"], said["budget_nats"].as_f64()), (&json!("reject"), Some(1e-9)));
    assert!(said["repair"]["layers"].is_array(), "{said}");
    assert!(!bench.path("run").exists(), "nothing is written");
    // A run that was there stays as it was.
    bench.trained("run", &["budget=off"], &[]);
    let before = std::fs::read(bench.path("run/metrics.jsonl")).expect("written");
    let output = leeway()
        .args(["train", &bench.text("run.toml"), "--set", &format!("out={}", bench.text("run"))])
        .args(["--set", set[0], "--set", set[1]])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("REJECT: recipe fp8"), "admit's screen");
    assert_eq!(std::fs::read(bench.path("run/metrics.jsonl")).expect("written"), before);
    assert!(!bench.path("run.1").exists());
    // Rollouts that are the student's own have room in any budget.
    let said = bench.trained("own", &["budget=tight.json"], &[]);
    assert_eq!((&said["budget"]["verdict"], &said["mismatch_nats"]), (&json!("admit"), &json!(0.0)));
}

#[test]
fn certificates_that_do_not_fit_are_refused() {
    let bench = Bench::new();
    bench.certificate("wide", 5.0, false);
    let refused = |set: &[&str], more: &[&str]| {
        let output = bench.train("run", set, more);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output)
    };
    task_model(&bench.path("other"), 9);
    let error = refused(&["student=other", "budget=wide.json"], &[]);
    assert!(error.contains("is not a certificate of this run: `student` is"), "{error}");
    let error = refused(&["loss.kind=forward-kl", "rollout.max_tokens=3", "budget=wide.json"], &[]);
    assert!(error.contains("settings.loss_kind") && error.contains("settings.max_tokens"), "{error}");
    let error = refused(&["budget=nowhere.json"], &[]);
    assert!(error.contains(&bench.text("nowhere.json")), "{error}");
    let error = refused(&["budget=run.toml"], &[]);
    assert!(error.contains("a certificate is written by `leeway calibrate`"), "{error}");
    let error = refused(&["budget=on"], &[]);
    assert!(error.contains("`budget` is \"on\"; it must be \"off\", or the path of a certificate"), "{error}");
    assert!(!bench.path("run").exists());
    // A budget decides bits: a run does not go on with another.
    bench.trained("run", &["budget=wide.json"], &[]);
    for other in ["budget=off", "budget={ certificate = 'wide.json', patience = 9 }"] {
        let error = refused(&[other], &["--resume"]);
        assert!(error.contains("another value of `budget"), "{error}");
    }
}

#[test]
fn over_the_budget_the_recipe_gives_way() {
    let bench = Bench::new();
    let fp8 = "rollout.recipe=fp8";
    bench.trained("free", &[fp8], &[]);
    let d: Vec<f64> = bench.updates("free").iter().map(|line| number(line, "mismatch_nats")).collect();
    // Every update is over, and the fifth in a row is one too many.
    let limit = d.iter().fold(f64::INFINITY, |a: f64, &b| a.min(b)) / 2.0;
    let trip = 5;
    let budget = bench.at_once("mid", limit);
    let set = [fp8, budget.as_str(), "budget.patience=5"];
    let output = bench.train("run", &set, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = last_line(&output);
    let fallbacks = bench.fallbacks("run");
    assert_eq!((fallbacks.len(), &said["fallbacks"]), (1, &json!(fallbacks)));
    let fallback = &fallbacks[0];
    assert_eq!((&fallback["update"], &fallback["lowered"]), (&json!(trip), &json!("recipe")));
    assert_eq!((&fallback["from"]["recipe"], &fallback["to"]["recipe"]), (&json!("fp8"), &json!("identity")));
    let numbers = ["ewma_nats", "d_nats", "limit_nats"].map(|key| number(fallback, key));
    assert_eq!(numbers, [d[trip - 1], d[trip - 1], limit]);
    let error = stderr(&output);
    assert!(error.contains(&format!("update {trip}: mismatch over the budget")), "{error}");
    assert!(error.contains("rollouts are in recipe identity from now on"), "{error}");
    // Up to there it is the run without a budget; from the next update on rollouts are the student's own.
    for (line, free) in bench.updates("run").iter().zip(&d) {
        let after = line["update"].as_u64() > Some(trip as u64);
        assert_eq!(number(line, "mismatch_nats"), if after { 0.0 } else { *free }, "{line}");
        assert!(!after || number(line, "k3") == 0.0, "{line}");
    }
    for line in bench.lines("run", "rollouts.jsonl") {
        let after = line["update"].as_u64() > Some(trip as u64);
        assert_eq!(line["recipe"], fallback[if after { "to" } else { "from" }]["recipe_hash"]);
    }
    let (before, after) = (trip as u64 / 2 * 2 - 2, trip as u64 / 2 * 2 + 2);
    assert!(bench.sealed("run", before).get("in_force").is_none());
    assert_eq!(bench.sealed("run", after)["in_force"], json!({"recipe": "identity", "staleness_max": 0}));
    // Killed before it, and after it.
    for (name, update) in [("before", before), ("after", after)] {
        bench.killed(name, &set, update);
        let again = bench.trained(name, &set, &["--resume"]);
        bench.same_bits("run", name);
        assert_eq!(again["fallbacks"], said["fallbacks"], "killed {name} it");
        assert_eq!(bench.fallbacks(name), fallbacks);
    }
}

#[test]
fn staleness_gives_way_before_rounding() {
    let bench = Bench::new();
    let budget = bench.at_once("nothing", 0.0);
    // Of version 0 the student is its own first rollout, so that nothing is over before the second update.
    let set = ["schedule={ steps_off = 2 }", budget.as_str()];
    let said = bench.trained("run", &set, &[]);
    assert_eq!(said["budget"]["verdict"], "gray", "beyond what was calibrated");
    let fallbacks = bench.fallbacks("run");
    assert_eq!(fallbacks.len(), 1, "{fallbacks:?}");
    assert_eq!((&fallbacks[0]["update"], &fallbacks[0]["lowered"]), (&json!(2), &json!("staleness")));
    let [from, to] = ["from", "to"].map(|key| fallbacks[0][key]["staleness_max"].as_u64());
    assert_eq!((from, to), (Some(2), Some(0)));
    for line in bench.updates("run") {
        let stale = line["update"] == 2;
        assert_eq!(number(&line, "mismatch_nats") > 0.0, stale, "{line}");
    }
    for line in bench.lines("run", "rollouts.jsonl") {
        let update = line["update"].as_u64().expect("a number");
        assert_eq!(line["versions"], json!([[0, if update < 3 { 0 } else { update - 1 }]]));
    }
    // With rounding too: what is stale has both, so age goes first and the recipe next.
    let set =
        ["schedule={ steps_off = 2 }", "rollout.recipe=kv8", "budget.patience=3", budget.as_str(), "budget.patience=2"];
    bench.trained("both", &set, &[]);
    let lowered: Vec<(Value, Value)> =
        bench.fallbacks("both").iter().map(|line| (line["update"].clone(), line["lowered"].clone())).collect();
    assert_eq!(lowered, [(json!(2), json!("staleness")), (json!(4), json!("recipe"))]);
    for line in bench.updates("both") {
        assert_eq!(number(&line, "mismatch_nats") > 0.0, line["update"].as_u64() < Some(5), "{line}");
    }
    for update in [2, 4] {
        let name = format!("killed{update}");
        bench.killed(&name, &set, update);
        bench.trained(&name, &set, &["--resume"]);
        bench.same_bits("both", &name);
        assert_eq!(bench.fallbacks(&name), bench.fallbacks("both"));
    }
}

#[test]
fn a_killed_run_counts_on_where_it_was() {
    let bench = Bench::new();
    bench.certificate("nothing", 0.0, true);
    // Nothing is lowered before the sixth update: of version 0 the student is its own first rollout.
    let budget = "budget={ certificate = 'nothing.json', patience = 5, ewma = 0.3, remeasure = 4 }";
    for (name, more) in [("stages", "schedule={ steps_off = 2 }"), ("turns", "rollout.recipe=fp8")] {
        let set = [budget, more];
        bench.trained(name, &set, &[]);
        let first = bench.fallbacks(name)[0]["update"].as_u64().expect("a number");
        assert!(first == if name == "stages" { 6 } else { 5 }, "{first}");
        for update in [2, 4] {
            let killed = format!("{name}{update}");
            bench.killed(&killed, &set, update);
            bench.trained(&killed, &set, &["--resume"]);
            bench.same_training(name, &killed);
            let lowered = |out: &str| -> Vec<Value> {
                bench
                    .fallbacks(out)
                    .iter()
                    .map(|line| json!([line["update"], line["lowered"], line["ewma_nats"]]))
                    .collect()
            };
            assert_eq!(lowered(&killed), lowered(name));
            let [a, b] = [name, &killed[..]]
                .map(|out| bench.updates(out).iter().map(|line| line["guard"].clone()).collect::<Vec<_>>());
            assert_eq!(a, b, "the average and the count go on");
        }
    }
}

#[test]
fn a_cap_on_age_is_halved_until_rollouts_take_turns() {
    let bench = Bench::new();
    let budget = bench.at_once("nothing", 0.0);
    let set = ["schedule=async", "rollout.staleness_max=4", "rollout.recipe=fp8", budget.as_str()];
    bench.trained("run", &set, &[]);
    let steps: Vec<(Option<u64>, Value)> = bench
        .fallbacks("run")
        .iter()
        .map(|line| (line["to"]["staleness_max"].as_u64(), line["to"]["recipe"].clone()))
        .collect();
    let caps: Vec<u64> = steps.iter().filter_map(|(cap, _)| *cap).collect();
    // Which of the two an update blames depends on how old its tokens happen to be; the end does not.
    assert_eq!((steps.len(), caps.last()), (4, Some(&0)), "{steps:?}");
    let mut halves = caps.clone();
    halves.dedup();
    assert!([&[2, 1, 0][..], &[4, 2, 1, 0]].contains(&&halves[..]), "{steps:?}");
    let mut cap = 4;
    for line in bench.lines("run", "metrics.jsonl") {
        if let Some(max) = line["age"]["max"].as_u64() {
            assert!(max <= cap, "{line}");
        }
        cap = line["fallback"]["to"]["staleness_max"].as_u64().unwrap_or(cap);
    }
    let last = bench.fallbacks("run")[3]["update"].as_u64().expect("a number");
    let after: Vec<Value> =
        bench.updates("run").into_iter().filter(|line| line["update"].as_u64() > Some(last)).collect();
    assert!(!after.is_empty() && after.iter().all(|line| number(line, "mismatch_nats") == 0.0), "{after:?}");
    let order: Vec<u64> =
        bench.lines("run", "rollouts.jsonl").iter().map(|line| line["sample"].as_u64().expect("a number")).collect();
    assert_eq!(order, (0..UPDATES * 8).collect::<Vec<_>>(), "every sample once");
}

#[test]
fn noise_is_on_purpose() {
    let bench = Bench::new();
    let budget = bench.at_once("nothing", 0.0);
    let noise = "noise={ kind = 'weights', draw = 'frozen', sigma = 0.05 }";
    let output = bench.train("run", &["rollout.recipe=fp8", noise, &budget], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let fallbacks = bench.fallbacks("run");
    let lowered: Vec<&Value> = fallbacks.iter().map(|line| &line["lowered"]).collect();
    assert_eq!(lowered, [&json!("recipe"), &Value::Null], "what is left is said once");
    assert_eq!((&fallbacks[1]["update"], &fallbacks[1]["to"]), (&json!(2), &Value::Null));
    let error = stderr(&output);
    assert_eq!(error.matches("what is left is injected noise").count(), 1, "{error}");
    let lines = bench.updates("run");
    assert!(lines.len() as u64 == UPDATES && lines.iter().all(|line| number(&line["by_source"], "noise") > 0.0));
    // Nothing of it is said again after a resume.
    std::fs::remove_dir_all(bench.checkpoint("run", UPDATES)).expect("removed");
    let said = bench.trained("run", &["rollout.recipe=fp8", noise, &budget], &["--resume"]);
    assert_eq!((&said["fallbacks"], bench.fallbacks("run").len()), (&json!(fallbacks), 2));
}

#[test]
fn the_table_says_what_became_of_the_budget() {
    let bench = Bench::new();
    bench.at_once("nothing", 0.0);
    let table = |out: &str, budget: &str| {
        let args = ["train", &bench.text("run.toml"), "--set", "rollout.recipe=fp8", "--set", budget, "--set"];
        let output = leeway().args(args).arg(format!("out={}", bench.text(out))).output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
    };
    let row = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line[name.len()..].trim().to_owned()
    };
    let (text, error) = table("off", "budget=off");
    assert_eq!(row(&text, "budget"), "off, not held in bounds");
    assert!(error.contains("budget off: mismatch is measured, and not held in bounds"), "{error}");
    let (text, error) = table("on", "budget={ certificate = 'nothing.json', patience = 1 }");
    assert_eq!(row(&text, "budget (gray)"), "0.0 (exactly)");
    assert_eq!(row(&text, "from update 2 on"), "recipe identity");
    assert!(error.contains("it cannot be told whether this run is within its budget"), "{error}");
}

/// The keys of the result, of the verdict and of a fallback are documented.
#[test]
fn outputs_are_documented() {
    let page = std::fs::read_to_string(common::repository("docs/formats.md")).expect("the document");
    let bench = Bench::new();
    let budget = bench.at_once("nothing", 0.0);
    let said = bench.trained("run", &["rollout.recipe=kv8", &budget], &[]);
    let named = |value: &Value| {
        for key in value.as_object().expect("an object").keys() {
            assert!(page.contains(key.as_str()), "docs/formats.md does not explain {key}");
        }
    };
    named(&said);
    named(&said["budget"]);
    named(&said["fallbacks"][0]);
    named(&bench.updates("run")[0]["guard"]);
    named(&bench.sealed("run", UPDATES));
    let files = |path: &Path| std::fs::read_dir(path).expect("a folder").count();
    assert_eq!(files(&bench.path("run/checkpoints")), 6, "a fallback leaves no folder of its own");
}
