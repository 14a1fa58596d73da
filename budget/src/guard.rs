//! The guard of a run: its mismatch, update by update, against the budget; and what is to be lowered when it stays over.
//!
//! ```text
//! average  <- k3                                        at first
//!          <- (1 - weight) average + weight k3          at every update
//!          <- D                                         every `remeasure` updates and at first, where D is to be had
//! over     <- over + 1 where average > limit, else 0
//! act      when over >= patience, unless D is to be had and within the limit: then D replaces the average
//! ```
//!
//! k3 comes from the sampled tokens and is there at every update; a few rare tokens carry most of it, so it is averaged, and
//! confirmed by the exact D before anything is done. The limit is the budget itself: growth is not put in, since D is seen as
//! it is now, and neither is the lower limit of the budget, which says what surely does no harm. To act is for what
//! is over the budget, as a rejection is.

use serde::{Deserialize, Serialize};

/// How the guard watches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The budget, nats per token.
    pub limit_nats: f64,
    /// Updates over it in a row before anything is done, at least 1.
    pub patience: u32,
    /// Weight of the newest update in the average, above 0 and at most 1.
    pub weight: f64,
    /// Updates from one exact D to the next that replaces the average, at least 1.
    pub remeasure: u32,
}

/// What the guard knows, which is all that it has to be given back to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The average, nats per token; none before the first update.
    pub average: Option<f64>,
    /// Updates since an exact D replaced it.
    pub since: u32,
    /// Updates over the limit in a row.
    pub over: u32,
    /// Whether nothing is left that could be lowered, which has been said.
    pub spent: bool,
}

/// A guard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    settings: Settings,
    state: State,
}

impl Guard {
    /// One that goes on from `state`; the default begins.
    ///
    /// # Panics
    /// When a setting is out of its range.
    #[must_use]
    pub fn new(settings: Settings, state: State) -> Guard {
        let Settings { limit_nats, patience, weight, remeasure } = settings;
        assert!(limit_nats >= 0.0 && patience > 0 && remeasure > 0, "{settings:?}");
        assert!(weight > 0.0 && weight <= 1.0, "{settings:?}");
        Guard { settings, state }
    }

    /// How it watches.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it knows.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Takes an update's `k3` and, where it could be measured, its exact `d`, nats per token. Whether something is to be
    /// lowered now. What is no number is as if the update had not been.
    pub fn watch(&mut self, k3: f64, d: Option<f64>) -> bool {
        let d = d.filter(|d| !d.is_nan());
        if k3.is_nan() {
            return false;
        }
        let Settings { limit_nats, patience, weight, remeasure } = self.settings;
        let state = &mut self.state;
        let due = state.average.is_none() || state.since + 1 >= remeasure;
        let moved = state.average.map_or(k3, |average| (1.0 - weight) * average + weight * k3);
        (state.average, state.since) = match d.filter(|_| due) {
            Some(d) => (Some(d), 0),
            None => (Some(moved), state.since.saturating_add(1)),
        };
        let within = |nats: Option<f64>| nats.is_some_and(|nats| nats <= limit_nats);
        state.over = if within(state.average) { 0 } else { state.over.saturating_add(1) };
        if state.over < patience || state.spent {
            return false;
        }
        if within(d) {
            (state.average, state.since, state.over) = (d, 0, 0);
            return false;
        }
        true
    }

    /// Something was lowered: what was seen before is of another configuration.
    pub fn lowered(&mut self) {
        self.state = State::default();
    }

    /// Nothing is left that could be lowered.
    pub fn spend(&mut self) {
        self.state.spent = true;
    }
}

/// D of an update by where it comes from, nats per token; not a number where it could not be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// Two ways of computing one version.
    pub numerics: f64,
    /// Tokens of earlier versions, their rounding included.
    pub staleness: f64,
    /// Injected noise, rounding included; 0 without.
    pub noise: f64,
}

/// What can still be lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levers {
    /// Rollouts may be behind by some version.
    pub staleness: bool,
    /// Rollouts are in another recipe than the trainer's own.
    pub recipe: bool,
}

/// What is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lever {
    /// How many versions rollouts may be behind.
    Staleness,
    /// The recipe's rounding.
    Recipe,
}

/// What to lower: the source that has most of D, if something is left to lower there, and else what is left of the other. The
/// parts do not say how much of a stale token's D is its rounding, so where most is staleness the recipe comes after it. Noise
/// is there on purpose and is not lowered; its part has the rounding of its tokens, which is.
#[must_use]
pub fn lever(parts: &Parts, levers: Levers) -> Option<Lever> {
    let rest = parts.numerics + parts.noise;
    // What could not be measured, on a schedule whose versions are gone, is for staleness to be blamed.
    let most = parts.staleness.is_nan() || rest.is_nan() || parts.staleness >= rest;
    let any = parts.staleness.is_nan() || parts.staleness > 0.0;
    if levers.staleness && most {
        Some(Lever::Staleness)
    } else if levers.recipe {
        Some(Lever::Recipe)
    } else if levers.staleness && any {
        Some(Lever::Staleness)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(patience: u32, weight: f64, remeasure: u32) -> Guard {
        Guard::new(Settings { limit_nats: 1.0, patience, weight, remeasure }, State::default())
    }

    #[test]
    fn averages_by_hand() {
        // Without an exact D: 2, then 2 * 0.75 + 6 * 0.25 = 3, then 3 * 0.75 + 1 * 0.25 = 2.5.
        let mut watched = guard(100, 0.25, 2);
        let averages = [2.0, 6.0, 1.0].map(|k3| {
            assert!(!watched.watch(k3, None));
            watched.state().average
        });
        assert_eq!(averages, [Some(2.0), Some(3.0), Some(2.5)]);
        // With one: it is the average at first and at every second update, k3 moves it in between: 0.5, 0.5 * 0.75 + 0.5, 0.1.
        let mut watched = guard(100, 0.25, 2);
        let averages = [(9.0, 0.5), (2.0, 9.0), (9.0, 0.1)].map(|(k3, d)| {
            watched.watch(k3, Some(d));
            watched.state().average
        });
        assert_eq!(averages, [Some(0.5), Some(0.875), Some(0.1)]);
        // One that is due and not to be had is taken as soon as it is.
        let mut watched = guard(100, 0.5, 2);
        for (k3, d, want) in
            [(4.0, Some(0.0), 0.0), (4.0, None, 2.0), (4.0, Some(f64::NAN), 3.0), (4.0, Some(0.5), 0.5)]
        {
            watched.watch(k3, d);
            assert_eq!(watched.state().average, Some(want));
        }
    }

    #[test]
    fn patience_is_in_a_row() {
        let mut watched = guard(3, 1.0, 100);
        watched.watch(0.0, Some(0.0));
        let tripped: Vec<bool> =
            [2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0].map(|k3| watched.watch(k3, Some(2.0))).into_iter().collect();
        // The limit itself is within; nothing is done before three in a row, and it is asked again until it is.
        assert_eq!(tripped, [false, false, false, false, false, true, true]);
        watched.lowered();
        assert_eq!(*watched.state(), State::default());
        assert!(!watched.watch(2.0, Some(2.0)) && !watched.watch(2.0, Some(2.0)) && watched.watch(2.0, Some(2.0)));
        watched.spend();
        assert!(!watched.watch(2.0, Some(2.0)), "nothing is left");
        assert_eq!(watched.state().over, 4, "it goes on counting");
    }

    #[test]
    fn the_exact_d_has_the_last_word() {
        let mut watched = guard(2, 1.0, 100);
        assert!(!watched.watch(5.0, Some(0.5)) && !watched.watch(5.0, Some(0.5)));
        assert!(!watched.watch(5.0, Some(0.5)), "k3 is over, D is not");
        assert_eq!((watched.state().average, watched.state().over), (Some(0.5), 0));
        assert!(!watched.watch(5.0, None) && watched.watch(5.0, None), "without one k3 has it");
    }

    #[test]
    fn updates_without_rollouts_are_nothing() {
        let mut watched = guard(1, 0.5, 2);
        assert!(!watched.watch(f64::NAN, Some(f64::NAN)));
        assert_eq!(*watched.state(), State::default());
    }

    /// No budget at all is held by a D of nothing and by no other.
    #[test]
    fn a_budget_of_nothing() {
        let mut watched =
            Guard::new(Settings { limit_nats: 0.0, patience: 1, weight: 0.2, remeasure: 10 }, State::default());
        assert!(!watched.watch(0.0, Some(0.0)) && watched.watch(1e-300, Some(1e-300)));
    }

    #[test]
    fn a_guard_goes_on_from_its_state() {
        let seen: Vec<(f64, Option<f64>)> =
            (0..40_u32).map(|i| (f64::from(i % 7) * 0.3, (i % 3 > 0).then(|| f64::from(i % 5) * 0.4))).collect();
        let mut whole = guard(2, 0.3, 4);
        let want: Vec<bool> = seen.iter().map(|&(k3, d)| whole.watch(k3, d)).collect();
        let mut parted = guard(2, 0.3, 4);
        let got: Vec<bool> = seen
            .iter()
            .map(|&(k3, d)| {
                let text = serde_json::to_string(parted.state()).unwrap();
                parted = Guard::new(*parted.settings(), serde_json::from_str(&text).unwrap());
                parted.watch(k3, d)
            })
            .collect();
        assert_eq!((got, parted), (want, whole));
    }

    #[test]
    fn what_has_most_goes_first() {
        let parts = |numerics, staleness, noise| Parts { numerics, staleness, noise };
        let (both, none) = (Levers { staleness: true, recipe: true }, Levers { staleness: false, recipe: false });
        let (stale, recipe) = (Levers { staleness: true, recipe: false }, Levers { staleness: false, recipe: true });
        for (parts, levers, want) in [
            (parts(1.0, 2.0, 0.0), both, Some(Lever::Staleness)),
            (parts(2.0, 1.0, 0.0), both, Some(Lever::Recipe)),
            (parts(2.0, 1.0, 0.0), stale, Some(Lever::Staleness)), // another device's sums are no recipe's
            (parts(2.0, 0.0, 0.0), stale, None),
            (parts(1.0, 2.0, 0.0), recipe, Some(Lever::Recipe)),
            (parts(f64::NAN, f64::NAN, 0.0), both, Some(Lever::Staleness)),
            (parts(f64::NAN, f64::NAN, 0.0), recipe, Some(Lever::Recipe)),
            (parts(0.0, 0.0, 3.0), recipe, Some(Lever::Recipe)), // rounding is in it
            (parts(0.0, 0.0, 3.0), none, None),
            (parts(1.0, 2.0, 3.0), none, None),
        ] {
            assert_eq!(lever(&parts, levers), want, "{parts:?}, {levers:?}");
        }
    }
}
