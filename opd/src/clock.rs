//! The one place that reads the clock: durations for people, never an input of a computation.

/// Measures stages.
#[derive(Debug)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    #[allow(clippy::disallowed_methods)] // the allowed place
    pub fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    /// Seconds since the start or the last lap.
    #[allow(clippy::disallowed_methods)]
    pub fn lap_s(&mut self) -> f64 {
        let now = std::time::Instant::now();
        let lap = (now - self.0).as_secs_f64();
        self.0 = now;
        lap
    }

    /// Seconds since the start or the last lap, without a new lap.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Seconds since 1970, for files that say when they were written.
#[must_use]
#[allow(clippy::disallowed_methods)] // the allowed place
pub fn unix_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64()) // a clock set before 1970 says nothing
}
