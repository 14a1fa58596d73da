//! `leeway report`: what experiments found, read by the rules that their files fixed, as Markdown and as one HTML file that
//! loads nothing.

mod admission;
mod findings;
mod page;
mod runs;
mod scatter;
mod time;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use opd::tune::write_whole;
use serde_json::json;

use super::experiment::file::Folder;
use super::experiment::job::Hashes;
use super::experiment::models::Models;
use super::{Failure, Global};
use findings::Outcome;
use page::{Block, Page};
use runs::Runs;

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The folder of experiments.
    #[arg(long, value_name = "FOLDER", default_value = "experiments")]
    experiments: PathBuf,
    /// The page of Markdown; the page of HTML is beside it, and pictures in `pictures/` there.
    #[arg(long, value_name = "FILE", default_value = "docs/results.md")]
    out: PathBuf,
}

pub fn run(args: &ReportArgs, global: &Global) -> Result<ExitCode, Failure> {
    let folder = Folder(args.experiments.clone());
    let mut page = Page::new("Results of experiments");
    let mut summary = vec![["experiment", "claim", "outcome", "runs", "minutes"].map(str::to_owned).to_vec()];
    let (mut bodies, mut objects) = (Vec::new(), Vec::new());
    let mut hashes = Hashes::of_models(Models::open(&folder.0)?.hashes()?);
    for name in folder.names()? {
        let experiment = folder.open(&name)?;
        let runs = Runs::read(&name, &experiment, &folder, &mut hashes)?;
        let (found, blocks) = findings::find(&name, &experiment, &runs).map_err(|e| format!("{name}: {e}"))?;
        // Whoever looks before the end could stop where it looks best.
        let outcome = if runs.missing() > 0 { Outcome::Missing } else { found };
        let minutes = format!("{:.1}", runs.seconds() / 60.0);
        let made = runs.made();
        let shown = match (&experiment.arms_of, findings::trainings(&experiment)) {
            (Some(other), _) => format!("of {other}"),
            (None, Some(trainings)) => trainings.to_string(),
            (None, None) => made.to_string(),
        };
        summary.push(vec![name.clone(), experiment.claim.clone(), outcome.name().to_owned(), shown, minutes]);
        objects.push(json!({"experiment": name, "outcome": outcome.name(), "runs": made, "missing": runs.missing(), "stale": runs.stale()}));
        bodies.push(Block::Heading(format!("{name}: {}", experiment.title)));
        bodies.push(Block::Text(format!("**Claim.** {}", experiment.claim)));
        bodies.push(Block::Text(format!("**Supported if.** {}", experiment.supports)));
        if runs.missing() > 0 && made > 0 {
            bodies
                .push(Block::Text(format!("**Not finished.** Of the runs and checks {} are missing.", runs.missing())));
        }
        if runs.stale() > 0 {
            bodies.push(Block::Text(format!(
                "{} lines are of what this file said before, and are left out.",
                runs.stale()
            )));
        }
        bodies.extend(blocks);
        bodies.push(Block::Text(format!("**Outcome.** {}", outcome.sentence())));
    }
    page.add(Block::Text(
        "Made by `leeway report` from the files in `experiments/` and the lines in `experiments/results/`. What would support a \
         claim was written there before the first run; an outcome follows from it by rule. Differences are paired by seed, \
         with 95% intervals by Student's t; better is positive."
            .to_owned(),
    ));
    page.add(Block::Table(summary));
    bodies.into_iter().for_each(|block| page.add(block));
    let stem = args.out.file_stem().and_then(|stem| stem.to_str()).unwrap_or("results").to_owned();
    let beside = args.out.parent().map(PathBuf::from).unwrap_or_default();
    let write = |path: PathBuf, text: &str| -> Result<(), Failure> {
        write_whole(&path, text.as_bytes()).map_err(|e| format!("{}: {e}", path.display()).into())
    };
    std::fs::create_dir_all(beside.join("pictures")).map_err(|e| format!("{}: {e}", beside.display()))?;
    for (picture, svg) in page.pictures() {
        write(beside.join("pictures").join(format!("{stem}-{picture}.svg")), svg)?;
    }
    write(args.out.clone(), &page.markdown(&stem))?;
    let html = args.out.with_extension("html");
    write(html.clone(), &page.html())?;
    if !global.json {
        super::print(format_args!("{}, {}\n", args.out.display(), html.display()))?;
    }
    global.print_json(&json!({"experiments": objects, "markdown": args.out, "html": html}))?;
    Ok(ExitCode::SUCCESS)
}
