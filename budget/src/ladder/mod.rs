//! From runs at rungs of mismatch to a budget: which rungs are no worse than none, and where quality begins to fall.
//!
//! Runs are paired: the run of a seed at a rung and that of the same seed without mismatch share everything else. Quality is
//! a number of which more is better; a difference is a rung's quality less the baseline's.
//!
//! * [`differences`]: the mean difference with its t intervals.
//! * [`fixed_sequence`]: rungs from the least up, each asked whether it is within a margin of the baseline, until the first
//!   that is not shown to be. The order is fixed beforehand, so the chance of passing any rung that is not is at most 5%.
//! * [`fit`]: flat up to a knee and falling beyond, against constant and line; [`knee`] is the same over resampled seeds.
//! * [`conclude`]: the budget of a family of mismatch and its lower limit.

mod differences;
mod fit;
mod knee;
mod sequence;
mod verdict;

pub use differences::{Differences, differences};
pub use fit::{Axis, Fit, Fits, Hinge, Point, fit};
pub use knee::{KNEE_DRAWS, Knee, knee};
pub use sequence::{Asked, fixed_sequence};
pub use verdict::{Conclusion, Rung, Verdict, conclude};
