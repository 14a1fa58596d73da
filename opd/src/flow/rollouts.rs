//! The rollout stage: one engine and one session that never stop, fed by [`Admission`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use engine::engine::Engine;
use engine::rollout::{Answer, Limits, Partial, Request, Rollout, Session};

use super::{Admission, Broken, Lead, Out, Sampled, Unfinished};
use crate::clock::Stopwatch;
use crate::master::Master;
use crate::source::{Asked, Source};
use crate::tasks::Split;

/// How long an idle stage sleeps before it looks whether it is still wanted.
const IDLE: Duration = Duration::from_millis(100);

/// What the learner asks of the stage. Leaving, that is dropping the sender, ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// There is a new version.
    Weights,
    /// A prompt is to be sampled once more.
    Again(u64),
    /// Give out what is unfinished, and go on.
    Mark,
}

/// What both sides see of the stage.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The weights version it samples with.
    taken: Mutex<u64>,
    took: Condvar,
    /// Nanoseconds that it was computing.
    pub busy_ns: AtomicU64,
    pub steps: AtomicU64,
    /// Prompts that the learner has not taken yet and will take next; all where it waits for them.
    until: AtomicU64,
    /// Samples under way.
    pub live: AtomicU64,
    pub over: AtomicBool,
    /// Whether it ended by a panic, which its own thread reports, and nobody else.
    pub panicked: AtomicBool,
}

/// Says that the stage is over however it ends.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.panicked.store(std::thread::panicking(), Ordering::Release);
        self.0.over.store(true, Ordering::Release);
    }
}

impl Shared {
    pub fn taken(&self) -> u64 {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it begins with.
    pub fn begin(&self, version: u64) {
        self.take(version);
    }

    fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// Prompts from here on are not to begin yet.
    pub fn hold_from(&self, prompt: u64) {
        self.until.store(prompt, Ordering::Relaxed);
    }

    fn take(&self, version: u64) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = version;
        self.took.notify_all();
    }

    /// Waits until the stage samples with `version` or a later one, for at most `patience`; false when it does not.
    pub fn wait_taken(&self, version: u64, patience: Duration) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = |taken: &mut u64| *taken < version;
        let waited = self.took.wait_timeout_while(taken, patience, earlier).unwrap_or_else(PoisonError::into_inner);
        *waited.0 >= version
    }
}

/// How prompts are sampled.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// A request without its prompt and first sample.
    pub request: Request,
    pub limits: Limits,
}

/// The stage's own state.
pub(crate) struct RolloutStage {
    pub engine: Engine,
    pub admission: Admission,
    pub lead: Lead,
    pub source: Arc<Source>,
    pub master: Arc<RwLock<Master>>,
    pub settings: Settings,
    pub shared: Arc<Shared>,
}

/// A prompt under way.
struct Open {
    asked: Asked,
    done: Vec<Rollout>,
    /// What samples had before they came here.
    carried: BTreeMap<u64, Partial>,
}

impl RolloutStage {
    /// Runs until nobody listens, or something fails, which is the last that is said.
    pub fn run(mut self, unfinished: Vec<Unfinished>, commands: &Receiver<Command>, out: &Sender<Out>) {
        let _over = Over(Arc::clone(&self.shared));
        let mut session = Session::new(&mut self.engine, self.settings.limits);
        if let Err(broken) = self.work(&mut session, unfinished, commands, out) {
            drop(out.send(Out::Failed(broken))); // without a listener there is nobody to tell
        }
        session.close(&mut self.engine);
    }

    fn work(
        &mut self,
        session: &mut Session,
        unfinished: Vec<Unfinished>,
        commands: &Receiver<Command>,
        out: &Sender<Out>,
    ) -> Result<(), Broken> {
        let mut open: BTreeMap<u64, Open> = BTreeMap::new();
        for one in unfinished {
            if let Some(whole) = self.go_on(session, one, &mut open)?
                && out.send(Out::Sampled(whole)).is_err()
            {
                return Ok(());
            }
        }
        let mut answers = Vec::new();
        loop {
            let mut command = commands.try_recv();
            loop {
                match command {
                    Ok(Command::Weights) => {}
                    Ok(Command::Again(prompt)) => self.admission.again(prompt),
                    Ok(Command::Mark) => {
                        if out.send(Out::Mark(unfinished_of(session, &open))).is_err() {
                            return Ok(());
                        }
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
                command = commands.try_recv();
            }
            let mut watch = Stopwatch::start();
            self.take_weights(session, open.is_empty())?;
            // A prompt begins when it can run: in a queue it would only get older.
            while under_way(&open, self.settings.request.samples) < self.settings.limits.batch
                && let Some(prompt) = self.admission.begin(self.engine.version(), self.shared.until())
            {
                let begun = self.go_on(session, Unfinished { prompt, ..Unfinished::default() }, &mut open)?;
                assert!(begun.is_none(), "a prompt that begins is not whole");
            }
            let worked = session.step(&mut self.engine, &mut |answer| answers.push(answer));
            let busy = Duration::from_secs_f64(watch.lap_s());
            let busy = u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX);
            self.shared.busy_ns.fetch_add(busy, Ordering::Relaxed);
            self.shared.steps.fetch_add(u64::from(worked), Ordering::Relaxed);
            self.shared.live.store(session.scheduler().live() as u64, Ordering::Relaxed);
            for answer in answers.drain(..) {
                let Some(sampled) = self.gather(answer, &mut open)? else { continue };
                if out.send(Out::Sampled(sampled)).is_err() {
                    return Ok(());
                }
            }
            if !worked && !self.has_news() {
                match commands.recv_timeout(IDLE) {
                    Ok(Command::Again(prompt)) => self.admission.again(prompt),
                    Ok(Command::Mark) => {
                        if out.send(Out::Mark(unfinished_of(session, &open))).is_err() {
                            return Ok(());
                        }
                    }
                    Ok(Command::Weights) | Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        }
    }

    fn published(&self) -> u64 {
        self.master.read().unwrap_or_else(PoisonError::into_inner).updates
    }

    /// Whether there are weights that would be taken now.
    fn has_news(&self) -> bool {
        let (own, published) = (self.engine.version(), self.published());
        match self.lead {
            Lead::UpTo(_) => published > own,
            Lead::Exactly(_) => self.admission.wants().is_some_and(|want| own < want && want <= published),
        }
    }

    /// Takes the newest weights, if they are to be had and wanted. With an exact lead that is only between two updates'
    /// prompts, when none is under way.
    fn take_weights(&mut self, session: &mut Session, idle: bool) -> Result<(), Broken> {
        if !self.has_news() || (matches!(self.lead, Lead::Exactly(_)) && !idle) {
            return Ok(());
        }
        session.request_update();
        if !session.may_update() {
            return Ok(());
        }
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(want) = self.admission.wants() {
            let there = master.updates;
            assert_eq!(there, want, "the learner holds a version until the rollout stage has it");
        }
        let cpu = Arc::clone(self.engine.cpu());
        session.update(&mut self.engine, master.updates, &mut master.version(&cpu)).map_err(Broken::Weights)?;
        drop(master);
        self.shared.take(self.engine.version());
        Ok(())
    }

    /// Submits a prompt's samples: those that have begun go on, the others begin. A prompt that is whole comes back.
    fn go_on(
        &self,
        session: &mut Session,
        unfinished: Unfinished,
        open: &mut BTreeMap<u64, Open>,
    ) -> Result<Option<Sampled>, Broken> {
        let Unfinished { prompt, finished, partials } = unfinished;
        let asked = self.source.ask(Split::Train, prompt);
        let base = &self.settings.request;
        if finished.len() == base.samples as usize {
            return Ok(Some(Sampled { prompt, asked, rollouts: finished }));
        }
        let first = prompt * u64::from(base.samples);
        let number = usize::try_from(prompt).expect("prompts are counted in memory");
        let mut submit = |request: Request| {
            let submitted = session.submit(&self.engine, number, request);
            submitted.map(drop).map_err(|source| Broken::Rollout { prompt, source })
        };
        if finished.is_empty() && partials.is_empty() {
            submit(Request { prompt: asked.prompt.clone(), first_sample: first, ..base.clone() })?;
        } else {
            for sample in first..first + u64::from(base.samples) {
                if finished.iter().any(|rollout| rollout.sample == sample) {
                    continue;
                }
                let begun = partials.iter().find(|partial| partial.sample == sample).map_or(&[][..], |p| &p.ids);
                submit(Request {
                    prompt: [&asked.prompt[..], begun].concat(),
                    samples: 1,
                    first_sample: sample,
                    max_tokens: base.max_tokens - begun.len(),
                    ..base.clone()
                })?;
            }
        }
        let carried = partials.into_iter().map(|partial| (partial.sample, partial)).collect();
        open.insert(prompt, Open { asked, done: finished, carried });
        Ok(None)
    }

    /// Takes a completion; gives out its prompt when it was the last.
    fn gather(&self, answer: Answer, open: &mut BTreeMap<u64, Open>) -> Result<Option<Sampled>, Broken> {
        let rollout = match answer {
            Answer::Rollout(rollout) => rollout,
            Answer::Failed { request, error, .. } => {
                return Err(Broken::Rollout { prompt: request as u64, source: error });
            }
            Answer::Scores { .. } => unreachable!("nothing was to be scored"),
        };
        let prompt = rollout.request as u64;
        let of = open.get_mut(&prompt).expect("a prompt under way");
        let rollout = match of.carried.remove(&rollout.sample) {
            Some(partial) => partial.join(rollout),
            None => rollout,
        };
        of.done.push(rollout);
        if of.done.len() < self.settings.request.samples as usize {
            return Ok(None);
        }
        let Open { asked, done: mut rollouts, .. } = open.remove(&prompt).expect("it is there");
        rollouts.sort_by_key(|rollout| rollout.sample);
        Ok(Some(Sampled { prompt, asked, rollouts }))
    }
}

/// Samples that are not finished.
fn under_way(open: &BTreeMap<u64, Open>, samples: u32) -> usize {
    open.values().map(|open| samples as usize - open.done.len()).sum()
}

/// Everything that is under way.
fn unfinished_of(session: &Session, open: &BTreeMap<u64, Open>) -> Vec<Unfinished> {
    let partials = session.partials();
    let of = |(&prompt, open): (&u64, &Open)| {
        let mut own: BTreeMap<u64, Partial> = open.carried.clone();
        for partial in partials.iter().filter(|partial| partial.request as u64 == prompt) {
            let whole = match own.remove(&partial.sample) {
                Some(before) => before.extended(partial.clone()),
                None => partial.clone(),
            };
            own.insert(partial.sample, whole);
        }
        Unfinished { prompt, finished: open.done.clone(), partials: own.into_values().collect() }
    };
    open.iter().map(of).collect()
}
