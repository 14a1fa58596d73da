//! From runs to the certificate.

use budget::certificate::{
    Baseline, Certificate, FORMAT, Family, FitsResult, Growth, HingeResult, Kind, Metric, RungResult, Settings,
};
use budget::ladder::{self, Asked, Conclusion, Rung, Verdict, conclude, differences};
use budget::stats::Interval;
use opd::calibrate::run::{self, Record, Role};
use opd::calibrate::{Calibrator, Ladder, loss_hash, task_hash};
use opd::config::{Config, Precision};
use opd::train::Origin;
use serde_json::Value;

/// The settings of a run that a budget belongs to.
#[must_use]
pub fn settings(config: &Config, origin: &Origin) -> Settings {
    let kind = serde_json::to_value(config.loss.kind).expect("a word");
    Settings {
        loss_kind: kind.as_str().map_or_else(|| Value::to_string(&kind), str::to_owned),
        loss: loss_hash(config, origin),
        task: task_hash(config, origin),
        updates: config.updates.into(),
        max_tokens: config.rollout.max_tokens.into(),
        temperature: config.rollout.temperature,
        n: config.rollout.n.into(),
        batch: config.train.batch.into(),
        lr: config.train.lr,
        warmup: config.train.warmup.into(),
        decay: config.train.decay.into(),
        clip: Some(config.train.clip).filter(|clip| clip.is_finite()),
        precision: match config.train.precision {
            Precision::Bf16 => "bf16".to_owned(),
            Precision::F32 => "f32".to_owned(),
        },
    }
}

/// What quality is, as a certificate says it.
pub fn metric(metric: opd::calibrate::Metric) -> Metric {
    match metric {
        opd::calibrate::Metric::Accuracy => Metric::Accuracy,
        opd::calibrate::Metric::KlTeacher => Metric::KlTeacher,
    }
}

/// A family, as a certificate says it.
pub fn kind(family: run::Family) -> Kind {
    match family {
        run::Family::ZeroMean => Kind::ZeroMean,
        run::Family::Coherent => Kind::Coherent,
    }
}

/// The certificate of a ladder whose runs are all there.
pub fn certificate(calibrator: &Calibrator, ladder: &Ladder) -> Certificate {
    let (calibration, base, origin) = (calibrator.calibration(), calibrator.base(), calibrator.origin());
    let metric = metric(calibration.metric);
    let baselines = calibrator.records(Role::Baseline, None, None);
    let after: Vec<f64> = baselines.iter().map(|record| value(metric, record)).collect();
    let before = baselines.iter().map(|record| match metric {
        Metric::Accuracy => record.accuracy_before.expect("a baseline is judged before"),
        Metric::KlTeacher => record.kl_teacher_before.expect("a baseline is measured before"),
    });
    let runs: usize = ladder.iter().map(|(_, rungs)| rungs.len() + 1).sum::<usize>() + 1;
    Certificate {
        format: FORMAT,
        leeway: env!("CARGO_PKG_VERSION").to_owned(),
        student: origin.student.clone(),
        teacher: origin.teacher.clone(),
        prompts: origin.prompts.clone(),
        recipe_hash: origin.recipe_hash.clone(),
        config_hash: calibrator.hash().to_owned(),
        settings: settings(base, origin),
        metric,
        margin: calibration.margin,
        seeds: calibrator.seeds().collect(),
        baseline: Baseline { before: before.collect(), after: after.clone() },
        families: ladder.iter().map(|(family, rungs)| of_family(calibrator, *family, rungs, &after)).collect(),
        runs: runs as u64 * u64::from(calibration.seeds),
        device: origin.device_kind.clone(),
        weights_version: base.updates.into(),
    }
}

fn of_family(calibrator: &Calibrator, family: run::Family, targets: &[f64], baseline: &[f64]) -> Family {
    let calibration = calibrator.calibration();
    let metric = metric(calibration.metric);
    let quality = |values: &[f64]| -> Vec<f64> { values.iter().map(|&value| metric.quality(value)).collect() };
    let records: Vec<Vec<&Record>> =
        targets.iter().map(|&nats| calibrator.records(Role::Rung, Some(family), Some(nats))).collect();
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
        conclude(&quality(baseline), &rungs, calibration.margin, calibrator.base().seed);
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
        family: kind(family),
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
        growth: growth(calibrator, family),
        drift_limit,
    }
}

fn growth(calibrator: &Calibrator, family: run::Family) -> Growth {
    let target_nats = calibrator.calibration().growth;
    let records = calibrator.records(Role::Growth, Some(family), Some(target_nats));
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

fn value(metric: Metric, record: &Record) -> f64 {
    match metric {
        Metric::Accuracy => record.accuracy_after.expect("it was checked that completions are judged"),
        Metric::KlTeacher => record.kl_teacher_after,
    }
}
