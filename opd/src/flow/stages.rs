//! The learner's end of the stages: what comes in, what is asked for, and how long anybody waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use super::rollouts::{Command, Shared};
use super::scores::{Answer, Teacher, pass_on, score_all};
use super::{Admission, Broken, In, Intake, Lead, Out, Refused, RolloutStage, Scored, Settings, Unfinished};
use crate::clock::Stopwatch;
use crate::master::Master;
use crate::sequences::Row;
use crate::source::Source;
use crate::teach::TeachError;

/// How long the learner waits before it looks whether anybody is still there.
const LOOK: Duration = Duration::from_millis(200);
/// Rows of the learner's own that the scoring stage has at a time.
const ASKED_AHEAD: usize = 16;
/// Commands that may wait for the stage: news of weights are only a knock on the door, and a full door is one.
const COMMANDS: usize = 64;

/// Why the learner waits no longer.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// A stage said that it failed.
    #[error(transparent)]
    Rollout(Box<FailedRollout>),
    /// Weights could not be taken over.
    #[error(transparent)]
    Weights(engine::engine::EngineError),
    /// The teacher cannot go on.
    #[error(transparent)]
    Teacher(Box<TeachError>),
    /// A stage is gone without a word.
    #[error("the {stage} stage ended by itself; what it said is above")]
    Gone {
        /// Which.
        stage: &'static str,
    },
    /// Nothing happened for too long.
    #[error("waited {waited_s:.0} s for {what}, and nothing came; {state}; a larger `wait_s` waits longer")]
    Deadline {
        /// How long.
        waited_s: f64,
        /// For what.
        what: String,
        /// How the stages are.
        state: String,
    },
    /// A stage did what it may not.
    #[error("{0}: this is a bug of leeway: please report it")]
    Refused(#[from] Refused),
}

/// A rollout that could not be had.
#[derive(Debug, thiserror::Error)]
#[error("prompt {prompt}: {source}")]
pub struct FailedRollout {
    /// Number of the prompt.
    pub prompt: u64,
    /// Why.
    pub source: engine::rollout::RequestError,
}

impl From<TeachError> for WaitError {
    fn from(error: TeachError) -> WaitError {
        WaitError::Teacher(Box::new(error))
    }
}

impl From<Broken> for WaitError {
    fn from(broken: Broken) -> WaitError {
        match broken {
            Broken::Rollout { prompt, source } => WaitError::Rollout(Box::new(FailedRollout { prompt, source })),
            Broken::Weights(source) => WaitError::Weights(source),
            Broken::Teacher(source) => WaitError::Teacher(source),
        }
    }
}

/// What the stages begin with.
pub(crate) struct Start {
    pub engine: engine::engine::Engine,
    pub teacher: Option<Box<dyn Teacher>>,
    pub source: Arc<Source>,
    pub master: Arc<RwLock<Master>>,
    pub settings: Settings,
    pub lead: Lead,
    /// Prompts of an update.
    pub batch: u64,
    /// Prompts of the run.
    pub end: u64,
    /// Updates done.
    pub updates: u64,
    /// What was sampled for later updates, by a run that this one goes on with.
    pub in_flight: Vec<Unfinished>,
    pub wait_s: f64,
}

/// What comes to the learner beside groups.
enum Special {
    Mark(Vec<Unfinished>),
    Answer(Answer),
}

/// The stages, seen from the learner.
#[derive(Debug)]
pub(crate) struct Stages {
    intake: Intake<Scored>,
    lead: Lead,
    batch: u64,
    end: u64,
    commands: Option<Sender<Command>>,
    from: Option<Receiver<In>>,
    /// The way that the rollout stage's work takes to the scoring stage, for rows of the learner's own.
    to_score: Option<Sender<Out>>,
    shared: Arc<Shared>,
    scoring_ns: Arc<AtomicU64>,
    threads: Vec<(&'static str, JoinHandle<()>)>,
    wait_s: f64,
    /// Seconds that the learner had nothing to do.
    pub waited_s: f64,
    /// Prompts sampled again because they were too old at use.
    pub again: u64,
}

impl Stages {
    /// Starts the threads.
    pub fn start(start: Start) -> Stages {
        let Start { engine, teacher, source, master, settings, lead, batch, end, updates, in_flight, wait_s } = start;
        let next = in_flight.iter().map(|one| one.prompt + 1).max().unwrap_or(0).max(updates * batch);
        let admission = Admission::new(lead, batch, updates, next, end);
        // What admission lets be under way finds room in every channel, so no stage waits for the next.
        let ahead = usize::try_from((lead.cap() + 2) * batch).expect("prompts of some updates are counted in memory");
        let (commands, asked) = bounded(COMMANDS);
        let (sampled, to_score) = bounded(ahead + 3);
        let (scored, from) = bounded(ahead + 3);
        let (shared, scoring_ns) = (Arc::new(Shared::default()), Arc::new(AtomicU64::new(0)));
        let stage = RolloutStage { engine, admission, lead, source, master, settings, shared: Arc::clone(&shared) };
        let mut threads = Vec::new();
        let mut spawn = |name: &'static str, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(format!("leeway-{name}")).spawn(work);
            threads.push((name, spawned.expect("the system refused a thread")));
        };
        let own = sampled.clone();
        shared.begin(updates);
        shared.hold_from(u64::MAX);
        spawn("rollout", Box::new(move || stage.run(in_flight, &asked, &sampled)));
        let busy = Arc::clone(&scoring_ns);
        spawn(
            "scoring",
            Box::new(move || match teacher {
                Some(mut teacher) => score_all(&mut *teacher, &to_score, &scored, &busy),
                None => pass_on(&to_score, &scored),
            }),
        );
        Stages {
            intake: Intake::new(batch, lead.cap(), updates * batch),
            lead,
            batch,
            end,
            commands: Some(commands),
            from: Some(from),
            to_score: Some(own),
            shared,
            scoring_ns,
            threads,
            wait_s,
            waited_s: 0.0,
            again: 0,
        }
    }

    /// The groups of the next update, none too old for it. `tick` is called as each comes.
    pub fn gather(&mut self, tick: &mut dyn FnMut(usize)) -> Result<Vec<(u64, Scored)>, WaitError> {
        loop {
            while let Some(message) = self.arrived()? {
                drop(self.settle(message)?); // a mark that nobody waits for any more
            }
            while let Some(prompt) = self.intake.lacks() {
                self.shared.hold_from(u64::MAX);
                self.receive(&format!("the rollouts of prompt {prompt}"))?;
                tick(self.intake.waiting());
            }
            let old = self.intake.too_old();
            if old.is_empty() {
                let batch = self.intake.hand_out();
                // While this update is trained, the next one's prompts are enough.
                self.shared.hold_from(batch[0].0 + 2 * self.batch);
                return Ok(batch);
            }
            for (prompt, _) in old {
                self.again += 1;
                self.ask(Command::Again(prompt))?;
            }
        }
    }

    /// Scores of rows of the learner's own, `[predicting, hidden]` of each. Rows are asked for one by one, so that each answer is
    /// a sign of life, and some ahead, so that a teacher elsewhere need not wait for the next.
    pub fn score(&mut self, rows: &[Row]) -> Result<Vec<Answer>, WaitError> {
        let (mut answers, mut asked) = (Vec::with_capacity(rows.len()), 0);
        while answers.len() < rows.len() {
            while asked < rows.len() && asked - answers.len() < ASKED_AHEAD {
                let to_score = self.to_score.as_ref().expect("until dropped");
                // A stage that is gone has said why: that is what is received then.
                drop(to_score.send(Out::Rows(vec![rows[asked].clone()])));
                asked += 1;
            }
            let what = format!("the scores of completion {} of {} to evaluate", answers.len() + 1, rows.len());
            if let Some(Special::Answer(answer)) = self.receive(&what)? {
                answers.push(answer);
            }
        }
        Ok(answers)
    }

    /// The run is over: a teacher in another process may end.
    pub fn finish(self) {
        // A stage that is gone has nothing to be told.
        drop(self.to_score.as_ref().expect("until dropped").send(Out::Finish));
    }

    /// Waits for one thing to come, and takes it. What is no group is handed back.
    fn receive(&mut self, what: &str) -> Result<Option<Special>, WaitError> {
        let watch = Stopwatch::start();
        let got = loop {
            let left = Duration::from_secs_f64((self.wait_s - watch.elapsed_s()).max(0.0));
            match self.from.as_ref().expect("until dropped").recv_timeout(left.min(LOOK)) {
                // Whoever panicked says nothing more, and the scoring stage does not know of it.
                Err(RecvTimeoutError::Timeout) if self.shared.panicked.load(Ordering::Acquire) => {
                    break Err(WaitError::Gone { stage: "rollout" });
                }
                Err(RecvTimeoutError::Timeout) if left > LOOK => {}
                Err(RecvTimeoutError::Timeout) => {
                    let (waited_s, what, state) = (self.wait_s, what.to_owned(), self.state());
                    break Err(WaitError::Deadline { waited_s, what, state });
                }
                Err(RecvTimeoutError::Disconnected) => break Err(self.gone()),
                Ok(message) => break Ok(message),
            }
        };
        self.waited_s += watch.elapsed_s();
        self.settle(got?)
    }

    /// What a rollout stage that is over said last; it comes behind what the scoring stage has still to do.
    fn last_word(&mut self) -> WaitError {
        loop {
            match self.receive("what ended the rollout stage") {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// What has come already.
    fn arrived(&self) -> Result<Option<In>, WaitError> {
        match self.from.as_ref().expect("until dropped").try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.gone()),
        }
    }

    fn settle(&mut self, message: In) -> Result<Option<Special>, WaitError> {
        match message {
            In::Scored(scored) => self.intake.take(scored.sampled.prompt, scored)?,
            In::Mark(unfinished) => return Ok(Some(Special::Mark(unfinished))),
            In::Answer(answer) => return Ok(Some(Special::Answer(answer))),
            In::Failed(broken) => return Err(broken.into()),
        }
        Ok(None)
    }

    fn gone(&self) -> WaitError {
        let ended = self.threads.iter().find(|(_, thread)| thread.is_finished());
        WaitError::Gone { stage: ended.map_or("scoring", |(name, _)| name) }
    }

    fn state(&self) -> String {
        let [live, steps] = [&self.shared.live, &self.shared.steps].map(|count| count.load(Ordering::Relaxed));
        format!(
            "the rollout stage has {live} samples under way at version {} after {steps} steps, and {} prompts wait here",
            self.shared.taken(),
            self.intake.waiting()
        )
    }

    fn ask(&mut self, command: Command) -> Result<(), WaitError> {
        let commands = self.commands.as_ref().expect("until dropped");
        if commands.send(command).is_err() { Err(self.last_word()) } else { Ok(()) }
    }

    /// Waits, before version `version` is replaced, until the rollout stage has it, where rollouts have to be of exactly
    /// that version.
    pub fn before_replacing(&mut self, version: u64) -> Result<(), WaitError> {
        if Admission::last_wanted(self.lead, self.batch, self.end).is_none_or(|last| version > last) {
            return Ok(());
        }
        let watch = Stopwatch::start();
        while !self.shared.wait_taken(version, LOOK) {
            // What the stage has still to hand over must not keep it from going on, nor its failure unseen.
            while let Some(message) = self.arrived()? {
                drop(self.settle(message)?);
            }
            if self.shared.over.load(Ordering::Acquire) {
                return Err(self.last_word());
            }
            if watch.elapsed_s() > self.wait_s {
                let what = format!("the rollout stage to take version {version}");
                return Err(WaitError::Deadline { waited_s: self.wait_s, what, state: self.state() });
            }
        }
        self.waited_s += watch.elapsed_s();
        Ok(())
    }

    /// There is a new version.
    pub fn published(&self) {
        // A door that is full of knocks needs no other.
        let _ = self.commands.as_ref().expect("until dropped").try_send(Command::Weights);
    }

    /// Everything that was sampled for later updates, whole or begun, by prompt.
    ///
    /// With an exact lead all prompts of versions that are no more are waited for, so that a run which goes on samples
    /// the rest from the very versions that this one would.
    pub fn in_flight(&mut self, updates: u64) -> Result<Vec<Unfinished>, WaitError> {
        let mut unfinished = Vec::new();
        match self.lead {
            Lead::Exactly(n) => {
                let end = ((updates + n) * self.batch).min(self.end);
                while let Some(prompt) = self.intake.lacks_before(end) {
                    self.receive(&format!("the rollouts of prompt {prompt}"))?;
                }
            }
            Lead::UpTo(_) => {
                self.ask(Command::Mark)?;
                unfinished = loop {
                    if let Some(Special::Mark(unfinished)) = self.receive("what the rollout stage has under way")? {
                        break unfinished;
                    }
                };
            }
        }
        let whole = |(prompt, scored): (u64, &Scored)| Unfinished {
            prompt,
            finished: scored.sampled.rollouts.clone(),
            partials: Vec::new(),
        };
        let end = match self.lead {
            Lead::Exactly(n) => (updates + n) * self.batch,
            Lead::UpTo(_) => u64::MAX,
        };
        unfinished.extend(self.intake.held().map(whole).filter(|one| one.prompt < end));
        unfinished.sort_by_key(|one| one.prompt);
        Ok(unfinished)
    }

    /// The weights version that the rollout stage samples with.
    #[cfg(test)]
    pub fn taken(&self) -> u64 {
        self.shared.taken()
    }

    /// Prompts that are sampled and scored and wait for their update.
    pub fn waiting(&self) -> usize {
        self.intake.waiting()
    }

    /// Seconds that the rollout and the scoring stage have computed.
    pub fn busy_s(&self) -> (f64, f64) {
        let seconds = |ns: &AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed)).as_secs_f64();
        (seconds(&self.shared.busy_ns), seconds(&self.scoring_ns))
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        // Without a listener, and without anybody who asks, the stages end after the step that they are in.
        self.commands = None;
        self.from = None;
        self.to_score = None;
        for (_, thread) in self.threads.drain(..) {
            drop(thread.join()); // a panic has been reported by its own thread
        }
    }
}
