//! What `recipe tune` measures and what it chooses by that.

use std::path::PathBuf;

use budget::mismatch::{Cluster, RatioEstimate};
use budget::sensitivity::{self, Additivity, Concentration, Item};
use engine::config::ModelConfig;
use engine::recipe::Recipe;
use indicatif::ProgressBar;
use opd::meter::Sum;
use opd::tune::{Tuner, Unit, page_bytes, saved, with_units};

use super::super::Failure;
use super::tune::{TuneArgs, bf16_page_bytes, kv_ratio};

/// A unit with what is known of it.
pub struct Measured {
    pub unit: Unit,
    pub cost: RatioEstimate,
    /// Bytes that quantising it saves: of weights, or of the pool's KV pages.
    pub bytes: u64,
    pub chosen: bool,
}

/// What all measurements say.
pub struct Outcome {
    pub units: Vec<Measured>,
    pub concentration: Concentration,
    pub additivity: Option<Additivity>,
    pub chosen: RatioEstimate,
    pub all: RatioEstimate,
    pub kv_ratio: f64,
    pub recipe: Recipe,
    pub recipe_file: PathBuf,
}

/// Costs of the units, and sums of them beside the cost measured of random recipes.
pub struct Costs {
    units: Vec<RatioEstimate>,
    pairs: Vec<(f64, f64)>,
}

/// Measures recipes against one reference.
pub struct Measure<'a> {
    pub tuner: Tuner<'a>,
    pub base: &'a Recipe,
    pub config: &'a ModelConfig,
    pub bar: &'a ProgressBar,
    pub seed: u64,
}

impl Measure<'_> {
    /// Every unit alone, and random recipes.
    pub fn units(&mut self, args: &TuneArgs, units: &[Unit]) -> Result<Costs, Failure> {
        self.bar.set_message("units");
        let mut sums = Vec::new();
        for &unit in units {
            let recipe = self.recipe([unit], &unit.to_string());
            sums.push(clusters(&self.measure(&recipe)?));
        }
        let costs = sensitivity::costs(sums.iter().map(Vec::as_slice), self.seed)?;
        let d: Vec<f64> = costs.iter().map(|cost| cost.ratio).collect();
        self.bar.set_message("random");
        let mut pairs = Vec::new();
        let choices = sensitivity::random_choices(self.seed, units.len(), args.random_recipes);
        for (number, choice) in choices.iter().enumerate() {
            let recipe = self.recipe(chosen(units, choice), &format!("random {number}"));
            pairs.push((sum_of(&d, choice), self.whole(&recipe)?.ratio));
        }
        Ok(Costs { units: costs, pairs })
    }

    /// The recipe chosen by the units' costs, and all units together, as they would run.
    pub fn wholes(
        &mut self,
        args: &TuneArgs,
        units: &[Unit],
        costs: Costs,
        want: Option<u64>,
        pages: u64,
    ) -> Result<Outcome, Failure> {
        self.bar.set_message("recipes");
        let everything = self.recipe(units.iter().copied(), "all units");
        let all = self.whole(&everything)?;
        let d: Vec<f64> = costs.units.iter().map(|cost| cost.ratio).collect();
        let saves: Vec<(u64, u64)> = units.iter().map(|&unit| saved(self.config, self.base, unit)).collect();
        let (choice, whole) = match (want, args.goal.budget) {
            (Some(want), _) => {
                let items: Vec<Item> =
                    d.iter().zip(&saves).map(|(&cost, &(_, page))| Item { cost, bytes: page }).collect();
                let choice = sensitivity::reaching(&items, want).expect("it was checked that all together reach it");
                let recipe = self.recipe(chosen(units, &choice), "tuned");
                (choice, self.whole(&recipe)?)
            }
            (None, Some(budget)) => {
                let item =
                    |(&cost, &(weights, page)): (&f64, &(u64, u64))| Item { cost, bytes: weights + pages * page };
                let items: Vec<Item> = d.iter().zip(&saves).map(item).collect();
                self.within(units, &items, budget)?
            }
            (None, None) => unreachable!("clap requires one of them"),
        };
        let recipe = self.recipe(chosen(units, &choice), "recipe");
        let measured = units.iter().zip(costs.units).zip(&saves).zip(&choice);
        let measured = measured.map(|(((&unit, cost), &(weights, page)), &chosen)| Measured {
            unit,
            cost,
            bytes: weights + pages * page,
            chosen,
        });
        Ok(Outcome {
            units: measured.collect(),
            concentration: sensitivity::concentration(&d),
            additivity: sensitivity::additivity(&costs.pairs),
            chosen: whole,
            all,
            kv_ratio: kv_ratio(bf16_page_bytes(self.config)?, page_bytes(self.config, &recipe)),
            recipe,
            recipe_file: args.out.join("recipe.toml"),
        })
    }

    /// The units that save most within `budget`, held to it as a whole: where units cost more together than apart, fewer
    /// are taken until the measured D is within it.
    fn within(&mut self, units: &[Unit], items: &[Item], budget: f64) -> Result<(Vec<bool>, RatioEstimate), Failure> {
        let costs: Vec<f64> = items.iter().map(|item| item.cost).collect();
        let (mut limit, mut tried) = (budget, None);
        loop {
            let choice = sensitivity::within_budget(items, limit);
            let sum = sum_of(&costs, &choice);
            if !choice.contains(&true) || (tried.is_some() && sum == 0.0) {
                let (unit, least) =
                    units.iter().zip(&costs).min_by(|a, b| a.1.total_cmp(b.1)).expect("there are units");
                let tried = tried.map_or(String::new(), |(count, d)| {
                    format!(", and the smallest recipe tried, {count} units, {d:.3e} as a whole")
                });
                return Err(format!(
                    "--budget {budget} buys nothing: the cheapest unit, {unit}, costs {least:.3e} nats per token \
                     alone{tried}; raise it (the measurements are kept)"
                )
                .into());
            }
            let picked = chosen(units, &choice);
            let whole = self.whole(&self.recipe(picked.iter().copied(), "tuned"))?;
            if whole.ratio <= budget {
                return Ok((choice, whole));
            }
            tried = Some((picked.len(), whole.ratio));
            // Below the present sum, rounding included, so the next choice is another one.
            limit = 0.999 * sum.min(limit) * (budget / whole.ratio);
            self.bar.inc_length(1);
        }
    }

    fn recipe(&self, units: impl IntoIterator<Item = Unit>, name: &str) -> Recipe {
        with_units(self.base, self.config, units, name)
    }

    fn measure(&mut self, recipe: &Recipe) -> Result<Vec<Sum>, Failure> {
        self.bar.set_prefix(recipe.name.clone());
        let sums = self.tuner.measure(recipe)?;
        self.bar.inc(1);
        Ok(sums)
    }

    fn whole(&mut self, recipe: &Recipe) -> Result<RatioEstimate, Failure> {
        let sums = clusters(&self.measure(recipe)?);
        Ok(sensitivity::costs([&sums[..]], self.seed)?.remove(0))
    }
}

#[allow(clippy::cast_precision_loss)] // counts of tokens
fn clusters(sums: &[Sum]) -> Vec<Cluster> {
    sums.iter().map(|sum| Cluster { sum: sum.nats, tokens: sum.tokens as f64 }).collect()
}

fn chosen(units: &[Unit], choice: &[bool]) -> Vec<Unit> {
    units.iter().zip(choice).filter(|(_, taken)| **taken).map(|(unit, _)| *unit).collect()
}

fn sum_of(costs: &[f64], choice: &[bool]) -> f64 {
    costs.iter().zip(choice).filter(|(_, taken)| **taken).map(|(cost, _)| cost).sum()
}
