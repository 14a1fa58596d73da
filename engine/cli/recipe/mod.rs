//! `leeway recipe`: looking at recipes and making them.

mod measure;
mod report;
pub mod sample;
mod show;
pub mod tune;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{Failure, Global};

#[derive(Debug, Args)]
pub struct RecipeArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What a recipe means for a model: the format of every tensor, and the hash.
    Show(show::ShowArgs),
    /// Measure what every part of a model costs in 8 bits, and choose the cheapest recipe for a goal.
    Tune(tune::TuneArgs),
}

pub fn run(args: &RecipeArgs, global: &Global) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Show(args) => show::run(args, global),
        Command::Tune(args) => tune::run(args, global),
    }
}
