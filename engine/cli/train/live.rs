//! The line on standard error that says how a run is doing: redrawn in place on a terminal, elsewhere one line every ten
//! seconds.

use std::io::IsTerminal as _;

use opd::clock::Stopwatch;
use opd::train::{EvalReport, UpdateReport};

use super::super::Global;

/// Seconds between lines where there is no terminal.
const EVERY_S: f64 = 10.0;
/// Columns of a line that goes to a file.
const FILE_COLUMNS: usize = 200;

/// What the line is made from.
#[derive(Debug, Default)]
pub struct State {
    /// Updates done, and in all.
    pub updates: (u64, u64),
    /// Completions of the update under way: finished, and in all.
    pub sampled: Option<(usize, usize)>,
    pub last: Option<UpdateReport>,
    /// Versions between the oldest that sampled a token of the last update and the one it trained.
    pub age: u64,
    /// Of the last evaluation.
    pub accuracy: Option<f64>,
    pub left_s: Option<f64>,
}

/// The line in at most `columns` characters: what matters least is left out first.
pub fn line(state: &State, columns: usize) -> String {
    // In the order of the line, each with its rank; the highest rank is left out first.
    let mut parts = vec![(0, format!("update {}/{}", state.updates.0, state.updates.1))];
    if let Some(last) = &state.last {
        let rate = |seconds: f64| count(if seconds > 0.0 { last.tokens as f64 / seconds } else { 0.0 });
        let rates = (rate(last.rollout_s), rate(last.teacher_s), rate(last.train_s));
        parts.push((1, format!("loss {:.4}", last.loss)));
        parts.push((2, format!("KL {:.4}", last.kl_teacher)));
        if let Some(accuracy) = state.accuracy {
            parts.push((3, format!("acc {:.1}%", 100.0 * accuracy)));
        }
        if last.phase.is_none() {
            parts.push((4, format!("D {:.1e}", last.mismatch_nats)));
        }
        parts.push((6, format!("age {}", state.age)));
        parts.push((5, format!("tok/s roll {} teach {} train {}", rates.0, rates.1, rates.2)));
    }
    if let Some((done, all)) = state.sampled {
        parts.push((8, format!("sampled {done}/{all}")));
    }
    if let Some(left) = state.left_s {
        parts.push((7, format!("eta {}", clock(left))));
    }
    loop {
        let line = parts.iter().map(|(_, part)| &part[..]).collect::<Vec<_>>().join("  ");
        let Some(least) = (0..parts.len()).skip(1).max_by_key(|&at| parts[at].0) else {
            return line.chars().take(columns).collect();
        };
        if line.chars().count() <= columns {
            return line;
        }
        parts.remove(least);
    }
}

/// Three digits are enough to follow a rate.
fn count(x: f64) -> String {
    match x {
        x if x < 1e3 => format!("{x:.0}"),
        x if x < 1e4 => format!("{:.1}k", x / 1e3),
        x if x < 1e6 => format!("{:.0}k", x / 1e3),
        x => format!("{:.1}M", x / 1e6),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // whole seconds ahead
pub fn clock(seconds: f64) -> String {
    match seconds.round() as u64 {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m{:02}s", s / 60, s % 60),
        s => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}

/// Where the line goes.
#[derive(Debug)]
pub struct Live {
    bar: indicatif::ProgressBar,
    plain: Option<Stopwatch>,
    began: (Stopwatch, u64),
    state: State,
}

impl Live {
    pub fn new(global: &Global, done: u64, updates: u64, accuracy: Option<f64>) -> Live {
        let terminal = std::io::stderr().is_terminal();
        let bar = if global.quiet { indicatif::ProgressBar::hidden() } else { indicatif::ProgressBar::new(updates) };
        let style = indicatif::ProgressStyle::with_template("{msg}").expect("the template is ours");
        let plain = (!terminal && !global.quiet).then(Stopwatch::start);
        let state = State { updates: (done, updates), accuracy, ..State::default() };
        Live { bar: bar.with_style(style), plain, began: (Stopwatch::start(), done), state }
    }

    /// Completions of the update under way.
    pub fn sampled(&mut self, done: usize, all: usize) {
        self.state.sampled = Some((done, all));
        if done.is_multiple_of(16) || done == all {
            self.show();
        }
    }

    /// Takes an update whose tokens are of version `oldest` or later.
    pub fn updated(&mut self, report: &UpdateReport, oldest: Option<u64>) {
        // An update trains the version before it.
        self.state.age = oldest.map_or(0, |oldest| report.version.saturating_sub(oldest + 1));
        let (watch, first) = &self.began;
        let done = report.update.saturating_sub(*first).max(1);
        let left = self.state.updates.1.saturating_sub(report.update);
        self.state.left_s = Some(watch.elapsed_s() / done as f64 * left as f64);
        self.state.updates.0 = report.update;
        self.state.sampled = None;
        self.state.last = Some(report.clone());
        self.show();
    }

    /// Takes an evaluation, whose own line `say` prints above.
    pub fn evaluated(&mut self, report: &EvalReport, say: impl FnOnce()) {
        self.state.accuracy = report.accuracy;
        self.aside(say);
    }

    /// Prints something else above.
    pub fn aside(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn show(&mut self) {
        match &mut self.plain {
            Some(watch) if watch.elapsed_s() >= EVERY_S => {
                watch.lap_s();
                eprintln!("{}", line(&self.state, FILE_COLUMNS));
            }
            Some(_) => {}
            None => {
                let columns = usize::from(console::Term::stderr().size().1);
                // The last column is left free: some terminals wrap when it is written.
                self.bar.set_message(line(&self.state, columns.saturating_sub(1)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opd::train::BySource;

    fn state() -> State {
        let last = UpdateReport {
            target: None,
            weight: None,
            grpo: None,
            update: 120,
            version: 120,
            loss: 0.12345,
            kl_teacher: 0.30611,
            kl_by_teacher: None,
            kl_forward: 0.4,
            entropy: 1.0,
            mismatch_nats: 0.17,
            by_source: BySource { numerics: 0.17, staleness: 0.0, noise: None },
            phase: None,
            age: None,
            noise: None,
            dynamics: None,
            k3: 0.2,
            grad_norm: 1.0,
            lr: 1e-3,
            tokens: 2000,
            rollouts: 256,
            correct: None,
            missing: 0,
            truncated: 0,
            flop: opd::train::FlopReport::default(),
            rollout_s: 0.1,
            teacher_s: 0.01,
            behaviour_s: 0.1,
            train_s: 2.5,
            sync_s: 0.0,
        };
        State {
            updates: (120, 300),
            sampled: Some((16, 256)),
            last: Some(last),
            age: 0,
            accuracy: Some(0.654),
            left_s: Some(125.0),
        }
    }

    #[test]
    fn what_matters_least_goes_first() {
        let state = state();
        let whole = "update 120/300  loss 0.1235  KL 0.3061  acc 65.4%  D 1.7e-1  age 0  \
                     tok/s roll 20k teach 200k train 800  sampled 16/256  eta 2m05s";
        assert_eq!(line(&state, 200), whole);
        let at_100 = "update 120/300  loss 0.1235  KL 0.3061  acc 65.4%  D 1.7e-1  tok/s roll 20k teach 200k train 800";
        assert_eq!(line(&state, 100), at_100);
        assert_eq!(line(&state, 40), "update 120/300  loss 0.1235  KL 0.3061");
        assert_eq!(line(&state, 20), "update 120/300");
        assert_eq!(line(&state, 6), "update");
        for columns in 0..200 {
            assert!(line(&state, columns).chars().count() <= columns, "{columns} columns");
        }
        assert_eq!(line(&State { updates: (0, 9), ..State::default() }, 80), "update 0/9");
    }
}
