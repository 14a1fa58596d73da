//! `leeway calibrate`: trainings at rungs of injected mismatch, and the budget that follows from them.

mod conclude;
pub use conclude::settings;
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;

use budget::certificate::{Certificate, Family, Kind, Metric};
use budget::ladder::{Asked, Verdict};
use clap::Args;
use opd::calibrate::run::Family as Of;
use opd::calibrate::{CalibrateError, Calibration, Calibrator, Event, Metric as Quality};
use opd::clock::Stopwatch;
use opd::tune::write_whole;
use serde_json::json;

use super::table::Table;
use super::{Failure, Global};

/// The certificate's name in the folder.
const CERTIFICATE: &str = "certificate.json";
/// The picture's.
const PICTURE: &str = "dose_response.svg";

#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// The calibration's file (docs/calibrate.md).
    file: PathBuf,
    /// Runs at a time, in place of the file's; 0 is one a thread.
    #[arg(long)]
    jobs: Option<u32>,
    /// Print what would be run, and how much of it is there, and stop.
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: &CalibrateArgs, global: &Global) -> Result<ExitCode, Failure> {
    let watch = Stopwatch::start();
    let (mut calibration, config) = Calibration::load(&args.file)?;
    if let Some(jobs) = args.jobs {
        calibration.jobs = jobs;
    }
    let out = calibration.out.clone();
    if let Some(model) = [&config.student, &config.teacher].into_iter().find(|model| model.starts_with(&out)) {
        let (model, out) = (model.display(), out.display());
        return Err(format!("{model} lies in {out}, which this command writes: set `out` to another folder").into());
    }
    let mut calibrator = Calibrator::open(calibration, config, &global.cpu()?)?;
    if calibrator.store().torn() {
        eprintln!("the last line of runs.jsonl was cut off: that run is made again");
    }
    match calibrator.store().others(calibrator.hash()) {
        0 => {}
        n => eprintln!("runs.jsonl has {n} runs of another configuration: they are left alone"),
    }
    if args.dry_run {
        let (runs, there) = calibrator.plan();
        if global.json {
            global.print_json(&json!({"runs": runs, "there": there, "config_hash": calibrator.hash()}))?;
        } else {
            super::print(format_args!("{runs} runs, {there} of them there\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let certificate = climb(&mut calibrator, global.quiet)?;
    let (certificate_path, picture_path) = (out.join(CERTIFICATE), out.join(PICTURE));
    let named = |path: &PathBuf, e: &dyn std::fmt::Display| -> Failure { format!("{}: {e}", path.display()).into() };
    write_whole(&certificate_path, certificate.to_json().as_bytes()).map_err(|e| named(&certificate_path, &e))?;
    let svg = picture::draw(&certificate).map_err(|e| named(&picture_path, &e))?;
    write_whole(&picture_path, svg.as_bytes()).map_err(|e| named(&picture_path, &e))?;
    if !global.json {
        super::print(format_args!("{}", tables(&certificate)))?;
        super::print(format_args!("\n{}: certificate.json, dose_response.svg, runs.jsonl\n", out.display()))?;
    }
    let families = certificate.families.iter().map(|family| {
        json!({
            "family": family.family, "budget_nats": family.budget_nats, "lower_nats": family.lower_nats,
            "at_least": family.at_least, "verdict": family.verdict, "passed_nats": family.passed_nats,
            "growth": family.growth.factor, "drift_limit": family.drift_limit,
        })
    });
    global.print_json(&json!({
        "families": families.collect::<Vec<_>>(), "metric": certificate.metric, "margin": certificate.margin,
        "seeds": certificate.seeds, "runs": certificate.runs, "student": certificate.student,
        "teacher": certificate.teacher, "recipe_hash": certificate.recipe_hash, "config_hash": certificate.config_hash,
        "weights_version": certificate.weights_version, "device": certificate.device, "wall_s": watch.elapsed_s(),
        "out": out,
    }))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the ladder's runs and concludes; where no rung failed, with one more.
fn climb(calibrator: &mut Calibrator, quiet: bool) -> Result<Certificate, CalibrateError> {
    let metric = calibrator.calibration().metric;
    let mut say = |event: Event<'_>| {
        if !quiet {
            say(metric, &event);
        }
    };
    let mut ladder = calibrator.ladder();
    calibrator.climb(&ladder, &mut say)?;
    let certificate = conclude::certificate(calibrator, &ladder);
    let nats = calibrator.calibration().extend;
    let stands = |family: Of| {
        let found = certificate.family(conclude::kind(family));
        found.is_some_and(|found| found.at_least && found.rungs.iter().all(|rung| rung.target_nats < nats))
    };
    let more: Vec<Of> = ladder.iter().map(|(family, _)| *family).filter(|&family| stands(family)).collect();
    if more.is_empty() {
        return Ok(certificate);
    }
    if !quiet {
        let names: Vec<&str> = more.iter().map(|&family| name(conclude::kind(family))).collect();
        eprintln!("no rung failed for {}: one more, {nats} nats per token", names.join(" and "));
    }
    ladder.iter_mut().filter(|(family, _)| more.contains(family)).for_each(|(_, rungs)| rungs.push(nats));
    calibrator.climb(&ladder, &mut say)?;
    Ok(conclude::certificate(calibrator, &ladder))
}

fn say(metric: Quality, event: &Event<'_>) {
    match event {
        Event::Plan { runs, there: 0 } => eprintln!("{runs} runs"),
        Event::Plan { runs, there } => eprintln!("{runs} runs, {there} of them there"),
        Event::Finished { task, record, done, runs, left_s } => {
            let value = match metric {
                Quality::Accuracy => format!("accuracy {:.1}%", 100.0 * record.accuracy_after.unwrap_or(f64::NAN)),
                Quality::KlTeacher => format!("KL to teacher {:.4}", record.kl_teacher_after),
            };
            let left = super::train::clock(*left_s);
            eprintln!(
                "{done}/{runs}  {}: {value}, D {:.2e}, {:.1} s; left {left}",
                task.name(),
                record.d_nats,
                record.wall_s
            );
        }
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::ZeroMean => "zero-mean",
        Kind::Coherent => "coherent",
    }
}

fn tables(certificate: &Certificate) -> String {
    let unit = |x: f64| match certificate.metric {
        Metric::Accuracy => format!("{:+.2} points", 100.0 * x),
        Metric::KlTeacher => format!("{x:+.4} nats"),
    };
    let mut text = String::new();
    for family in &certificate.families {
        let mut table =
            Table::new([name(family.family), "D measured", "difference", "95% interval", "within the margin"]);
        for rung in &family.rungs {
            let d = &rung.difference;
            table.row([
                format!("{}", rung.target_nats),
                format!("{:.4}", rung.d_nats),
                unit(d.mean),
                format!("{} to {}", unit(d.ci95.low), unit(d.ci95.high)),
                match rung.asked {
                    Asked::Pass => "yes",
                    Asked::Fail => "not shown",
                    Asked::NotAsked => "not asked",
                }
                .to_owned(),
            ]);
        }
        text += &format!("{table}{}\n\n", budget(family));
    }
    text
}

/// The budget in words that promise no more than was found.
fn budget(family: &Family) -> String {
    let growth = format!("D grows {:.2} times over a run", family.growth.factor);
    match family.verdict {
        _ if family.budget_nats == 0.0 => {
            let why = if family.verdict == Verdict::Knee {
                "quality falls from the least rung on"
            } else {
                "scatter is too large for the margin"
            };
            format!("budget: none, no rung passed: {why}. {growth}")
        }
        Verdict::AtLeast => format!(
            "budget: at least {:.3} nats per token, the largest rung; no rung failed. {growth}",
            family.budget_nats
        ),
        Verdict::Knee => format!(
            "budget: {:.3} nats per token, lower 95% limit {:.3}; rungs up to {:.3} passed. {growth}",
            family.budget_nats, family.lower_nats, family.passed_nats
        ),
        Verdict::Unclear => format!(
            "budget: {:.3} nats per token, the last rung that passed; beyond it scatter is too large for the margin. {growth}",
            family.budget_nats
        ),
    }
}
