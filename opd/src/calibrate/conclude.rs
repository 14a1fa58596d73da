//! From runs to the certificate.

use budget::certificate::{
    Baseline, Certificate, FORMAT, Family, FitsResult, Growth, HingeResult, Kind, Metric, RungResult, Settings,
};
use budget::ladder::{self, Asked, Conclusion, Rung, Verdict, conclude, differences};
use budget::stats::Interval;

use super::Calibrator;
use super::run::{Record, Role, Task};
use crate::config::{Config, Loss, Precision, Task as On};
use crate::train::Origin;

/// BLAKE3 of a table as JSON without spaces, in hexadecimal.
fn hash(table: &toml::Table) -> String {
    blake3::hash(serde_json::to_string(table).expect("plain data").as_bytes()).to_hex().to_string()
}

/// The table of the loss, a reference by its hash.
fn loss_table(loss: &Loss, origin: &Origin) -> toml::Table {
    let mut table = toml::Table::try_from(loss).expect("plain data");
    if let Some(reference) = &origin.reference {
        table.insert("reference".to_owned(), reference.clone().into());
    }
    table
}

/// The table of the task, prompts by their hash.
fn task_table(task: &On, origin: &Origin) -> toml::Table {
    let mut table = toml::Table::try_from(task).expect("plain data");
    if let Some(prompts) = &origin.prompts {
        table.insert("prompts".to_owned(), prompts.clone().into());
    }
    table
}

/// Hash of what all runs of a calibration have in common: the resolved run file without seed, `out` and `wait_s`, with
/// hashes in the place of paths.
pub(super) fn config_hash(config: &Config, origin: &Origin) -> String {
    let mut table: toml::Table = config.to_toml().parse().expect("a resolved configuration is TOML");
    for key in ["seed", "out", "wait_s", "noise"] {
        table.remove(key);
    }
    let mut set = |key: &str, value: toml::Value| drop(table.insert(key.to_owned(), value));
    set("student", origin.student.clone().into());
    set("teacher", origin.teacher.clone().into());
    set("task", task_table(&config.task, origin).into());
    set("loss", loss_table(&config.loss, origin).into());
    set("recipe_hash", origin.recipe_hash.clone().into());
    hash(&table)
}

/// The settings of a run that a budget belongs to.
#[must_use]
pub fn settings(config: &Config, origin: &Origin) -> Settings {
    let loss = loss_table(&config.loss, origin);
    Settings {
        loss_kind: loss["kind"].as_str().expect("a word").to_owned(),
        loss: hash(&loss),
        task: hash(&task_table(&config.task, origin)),
        updates: config.updates.into(),
        max_tokens: config.rollout.max_tokens.into(),
        temperature: config.rollout.temperature,
        n: config.rollout.n.into(),
        batch: config.train.batch.into(),
        lr: config.train.lr,
        warmup: config.train.warmup.into(),
        clip: Some(config.train.clip).filter(|clip| clip.is_finite()),
        precision: match config.train.precision {
            Precision::Bf16 => "bf16".to_owned(),
            Precision::F32 => "f32".to_owned(),
        },
    }
}

impl Calibrator {
    /// The certificate of runs that are all there.
    pub(super) fn conclude(&self, rungs: &[(Kind, Vec<f64>)]) -> Certificate {
        let metric = self.calibration.metric;
        let baselines = self.records(Role::Baseline, None, None);
        let after: Vec<f64> = baselines.iter().map(|record| value(metric, record)).collect();
        let before = baselines.iter().map(|record| match metric {
            Metric::Accuracy => record.accuracy_before.expect("a baseline is judged before"),
            Metric::KlTeacher => record.kl_teacher_before.expect("a baseline is measured before"),
        });
        let families: Vec<Family> = rungs.iter().map(|(family, rungs)| self.family(*family, rungs, &after)).collect();
        let runs: usize = rungs.iter().map(|(_, rungs)| rungs.len() + 1).sum::<usize>() + 1;
        Certificate {
            format: FORMAT,
            leeway: env!("CARGO_PKG_VERSION").to_owned(),
            student: self.origin.student.clone(),
            teacher: self.origin.teacher.clone(),
            prompts: self.origin.prompts.clone(),
            recipe_hash: self.origin.recipe_hash.clone(),
            config_hash: self.hash.clone(),
            settings: settings(&self.base, &self.origin),
            metric,
            margin: self.calibration.margin,
            seeds: self.seeds().collect(),
            baseline: Baseline { before: before.collect(), after },
            families,
            runs: runs as u64 * u64::from(self.calibration.seeds),
            device: self.origin.device_kind.clone(),
            weights_version: self.base.updates.into(),
        }
    }

    fn records(&self, role: Role, family: Option<Kind>, target_nats: Option<f64>) -> Vec<&Record> {
        let record = |seed| {
            let task = Task { role, family, target_nats, seed };
            self.store.get(&self.hash, &task).expect("every run was made")
        };
        self.seeds().map(record).collect()
    }

    fn family(&self, kind: Kind, targets: &[f64], baseline: &[f64]) -> Family {
        let metric = self.calibration.metric;
        let quality = |values: &[f64]| -> Vec<f64> { values.iter().map(|&value| metric.quality(value)).collect() };
        let records: Vec<Vec<&Record>> =
            targets.iter().map(|&nats| self.records(Role::Rung, Some(kind), Some(nats))).collect();
        let values: Vec<Vec<f64>> =
            records.iter().map(|rung| rung.iter().map(|record| value(metric, record)).collect()).collect();
        let rungs: Vec<Rung> = records
            .iter()
            .zip(&values)
            .map(|(rung, values)| Rung {
                d_nats: rung.iter().map(|record| record.d_nats).collect(),
                quality: quality(values),
            })
            .collect();
        let Conclusion { differences, asked, passed_nats, verdict, budget_nats, lower_nats, fits, knee } =
            conclude(&quality(baseline), &rungs, self.calibration.margin, self.base.seed);
        let drift = |rung: &[&Record]| -> Vec<f64> { rung.iter().map(|r| r.drift.expect("a rung has it")).collect() };
        let last = asked.iter().take_while(|&&asked| asked == Asked::Pass).count();
        #[allow(clippy::cast_precision_loss)] // seeds
        let drift_limit = last.checked_sub(1).map(|last| {
            let drift = drift(&records[last]);
            drift.iter().map(|x| x.abs()).sum::<f64>() / drift.len() as f64
        });
        let results = targets.iter().enumerate().map(|(i, &target_nats)| RungResult {
            target_nats,
            d_nats: rungs[i].mean_nats(),
            d_nats_by_seed: rungs[i].d_nats.clone(),
            after: values[i].clone(),
            difference: differences[i],
            asked: asked[i],
            drift: drift(&records[i]),
        });
        Family {
            family: kind,
            rungs: results.collect(),
            passed_nats,
            verdict,
            at_least: verdict == Verdict::AtLeast,
            budget_nats,
            lower_nats,
            fits: fits.map(|ladder::Fits { constant, line, hinge }| FitsResult {
                constant,
                line,
                hinge: hinge.map(|(at, fit)| HingeResult { at, fit, knee }),
            }),
            growth: self.growth(kind),
            drift_limit,
        }
    }

    fn growth(&self, kind: Kind) -> Growth {
        let target_nats = self.calibration.growth;
        let records = self.records(Role::Growth, Some(kind), Some(target_nats));
        // A D of nothing, which rounding may leave of little noise, has grown by nothing that can be told.
        let ratio = |record: &&Record| (record.d_late_nats.max(1e-12) / record.d_early_nats.max(1e-12)).ln();
        let logs = differences(&records.iter().map(ratio).collect::<Vec<_>>());
        Growth {
            target_nats,
            early_nats: records.iter().map(|record| record.d_early_nats).collect(),
            late_nats: records.iter().map(|record| record.d_late_nats).collect(),
            factor: logs.mean.exp(),
            ci95: Interval { low: logs.ci95.low.exp(), high: logs.ci95.high.exp() },
        }
    }
}

fn value(metric: Metric, record: &Record) -> f64 {
    match metric {
        Metric::Accuracy => record.accuracy_after.expect("it was checked that completions are judged"),
        Metric::KlTeacher => record.kl_teacher_after,
    }
}
