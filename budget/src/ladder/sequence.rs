//! The fixed-sequence test: from the least rung up, until the first that is not shown to be within the margin.

use serde::{Deserialize, Serialize};

use super::Differences;

/// What became of a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// It is no worse than the baseline by more than the margin.
    Pass,
    /// That is not shown.
    Fail,
    /// A lesser rung failed, so it was not asked.
    NotAsked,
}

/// Asks rungs in order; `margin` is how much worse is still good enough, in the quality's unit.
///
/// # Panics
/// When the margin is not positive.
#[must_use]
pub fn fixed_sequence(rungs: &[Differences], margin: f64) -> Vec<Asked> {
    assert!(margin > 0.0, "a margin of {margin}");
    let mut open = true;
    let ask = |rung: &Differences| {
        if !open {
            return Asked::NotAsked;
        }
        open = rung.lower95 > -margin;
        if open { Asked::Pass } else { Asked::Fail }
    };
    rungs.iter().map(ask).collect()
}

#[cfg(test)]
mod tests {
    use super::super::differences;
    use super::*;
    use crate::stats::Random;

    /// A standard normal by draw.
    fn normal(random: &Random, counter: &mut u64) -> f64 {
        *counter += 2;
        let (u, v) = (1.0 - random.uniform(*counter), random.uniform(*counter + 1));
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    #[test]
    fn it_stops_at_the_first_failure() {
        let rung = |mean: f64| differences(&[mean - 0.001, mean, mean + 0.001]);
        let rungs = [rung(0.01), rung(-0.005), rung(-0.05), rung(0.02)];
        let asked = fixed_sequence(&rungs, 0.02);
        assert_eq!(asked, [Asked::Pass, Asked::Pass, Asked::Fail, Asked::NotAsked]);
        assert_eq!(fixed_sequence(&rungs[..2], 0.02), [Asked::Pass, Asked::Pass]);
        // Exactly the margin is not within it.
        let same = differences(&[-0.02, -0.02]);
        assert_eq!(fixed_sequence(&[same], 0.02), [Asked::Fail]);
    }

    /// With five seeds, a rung exactly at the margin passes in 5% of experiments, and so does any bad rung of a whole
    /// ladder: 4000 experiments, standard error .0034. A rung without harm passes far more often.
    #[test]
    fn a_bad_rung_passes_in_five_of_a_hundred() {
        let random = Random::new(11);
        let (mut counter, mut one, mut ladder, mut good) = (0, 0, 0, 0);
        let (margin, deviation) = (0.02, 0.015);
        let experiments = 4000;
        for _ in 0..experiments {
            let mut rung = |mean: f64| {
                let pairs: Vec<f64> = (0..5).map(|_| mean + deviation * normal(&random, &mut counter)).collect();
                differences(&pairs)
            };
            one += u32::from(fixed_sequence(&[rung(-margin)], margin)[0] == Asked::Pass);
            good += u32::from(fixed_sequence(&[rung(0.0)], margin)[0] == Asked::Pass);
            let asked = fixed_sequence(&[rung(0.0), rung(-margin), rung(-margin), rung(-2.0 * margin)], margin);
            ladder += u32::from(asked[1..].contains(&Asked::Pass));
        }
        let share = |count: u32| f64::from(count) / f64::from(experiments);
        assert!((share(one) - 0.05).abs() < 0.012, "{}", share(one));
        assert!(share(ladder) < 0.062, "{}", share(ladder));
        assert!(share(good) > 0.6, "{}", share(good));
    }

    /// The two-sided interval holds the mean in 95 of 100.
    #[test]
    fn coverage_of_the_interval() {
        let random = Random::new(12);
        let (mut counter, mut held) = (0, 0);
        for _ in 0..4000 {
            let pairs: Vec<f64> = (0..5).map(|_| 0.3 + normal(&random, &mut counter)).collect();
            held += u32::from(differences(&pairs).ci95.contains(0.3));
        }
        let coverage = f64::from(held) / 4000.0;
        assert!((coverage - 0.95).abs() < 0.012, "{coverage}");
    }
}
