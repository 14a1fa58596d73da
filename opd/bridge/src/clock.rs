//! The clock that all processes of a machine share: heartbeats and deadlines, never an input of a computation.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).expect("the monotonic clock is not negative");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
