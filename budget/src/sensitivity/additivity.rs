//! Whether the cost of a recipe is the sum of its units' costs, tested on random recipes.

use serde::{Deserialize, Serialize};

use crate::stats::Random;

/// How well sums of unit costs predict whole recipes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Additivity {
    /// 1 - sum (measured - sum of units)^2 / sum (measured - mean measured)^2: nothing is fitted, so it may be negative.
    /// None when all recipes measured the same, where it says nothing.
    pub r2: Option<f64>,
    /// Measured over the sum of units, of the recipe where it is furthest from 1 in logarithm. Above 1 units harm more
    /// together than alone.
    pub worst_ratio: f64,
}

/// Additivity over recipes, each as (sum of its units' costs, cost measured as a whole); None without recipes.
///
/// # Panics
/// When a cost is negative or not finite.
#[must_use]
pub fn additivity(recipes: &[(f64, f64)]) -> Option<Additivity> {
    let fine = |x: f64| x.is_finite() && x >= 0.0;
    assert!(recipes.iter().all(|&(sum, whole)| fine(sum) && fine(whole)), "costs are finite and not negative");
    let ratios = recipes.iter().map(|&(sum, whole)| if whole == sum { 1.0 } else { whole / sum });
    let worst_ratio = ratios.max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))?;
    #[allow(clippy::cast_precision_loss)] // a handful of recipes
    let mean = recipes.iter().map(|r| r.1).sum::<f64>() / recipes.len() as f64;
    let spread: f64 = recipes.iter().map(|r| (r.1 - mean).powi(2)).sum();
    let residual: f64 = recipes.iter().map(|r| (r.1 - r.0).powi(2)).sum();
    Some(Additivity { r2: (spread > 0.0).then(|| 1.0 - residual / spread), worst_ratio })
}

/// `recipes` random choices among `units` units. Recipe r of R takes each unit with probability (r + 1/2) / R, so that
/// small and large recipes are both among them; one that would take nothing takes a random unit.
#[must_use]
pub fn random_choices(seed: u64, units: usize, recipes: usize) -> Vec<Vec<bool>> {
    let random = Random::new(seed);
    let mut counter = 0;
    (0..recipes)
        .map(|r| {
            #[allow(clippy::cast_precision_loss)] // a handful of recipes
            let probability = (r as f64 + 0.5) / recipes as f64;
            let mut choice: Vec<bool> = (0..units)
                .map(|_| {
                    counter += 1;
                    random.uniform(counter) < probability
                })
                .collect();
            counter += 1;
            if units > 0 && !choice.contains(&true) {
                choice[random.index(counter, units)] = true;
            }
            choice
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        assert_eq!(additivity(&[]), None);
        assert_eq!(additivity(&[(1.0, 1.0), (3.0, 3.0)]), Some(Additivity { r2: Some(1.0), worst_ratio: 1.0 }));
        // Mean 4; spread 4 + 4; residuals 1 and 4: R2 = 1 - 5/8. Ratios 2 and 1.5.
        assert_eq!(additivity(&[(1.0, 2.0), (4.0, 6.0)]), Some(Additivity { r2: Some(0.375), worst_ratio: 2.0 }));
        // A half is as far as a double.
        assert_eq!(additivity(&[(8.0, 4.0), (2.0, 3.0)]).unwrap().worst_ratio, 0.5);
        assert_eq!(additivity(&[(1.0, 2.0)]).unwrap().r2, None, "one recipe has no spread");
        assert_eq!(additivity(&[(0.0, 0.0)]).unwrap().worst_ratio, 1.0);
        assert_eq!(additivity(&[(0.0, 1.0)]).unwrap().worst_ratio, f64::INFINITY);
    }

    #[test]
    fn choices_are_of_all_sizes_and_repeat() {
        let choices = random_choices(3, 200, 8);
        assert_eq!(choices, random_choices(3, 200, 8));
        assert_ne!(choices, random_choices(4, 200, 8));
        let sizes: Vec<usize> = choices.iter().map(|c| c.iter().filter(|&&taken| taken).count()).collect();
        for (r, &size) in sizes.iter().enumerate() {
            // Mean 200 p, deviation at most sqrt(200)/2 = 7.1; four of them.
            let mean = 25.0 * (f64::from(u32::try_from(r).unwrap()) + 0.5);
            let size = f64::from(u32::try_from(size).unwrap());
            assert!((size - mean).abs() < 29.0, "{sizes:?}");
        }
        assert!(random_choices(1, 2, 50).iter().all(|c| c.contains(&true)), "an empty recipe tests nothing");
    }
}
