//! The scoring stage: the teacher's hidden rows of every sampled prompt, as it comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use engine::model::Model;
use ptx::Cpu;

use super::{Broken, Hidden, In, Out, Sampled, Scored};
use crate::clock::Stopwatch;
use crate::eval::row;
use crate::sequences::{Micro, Row, micro_batches};
use crate::side::Side;
use crate::teach::{Received, RingTeacher, TeachError};

/// Hidden rows of predicting tokens, `[predicting, hidden]`; or why the teacher has none of some of them.
pub(crate) type Answer = Result<Vec<f32>, String>;

/// Who scores, in the order asked.
pub(crate) trait Teacher: Send {
    /// Groups that are asked for before the first of them is waited for.
    fn window(&self) -> usize;

    /// Asks for the scores of a group that was sampled up to weights version `version`.
    fn ask(&mut self, rows: &[Row], version: u64) -> Result<(), TeachError>;

    /// Those of the oldest group that was asked for; none where they are not there yet. It is called again then, so it need
    /// not wait long: what is sampled meanwhile is asked for in between.
    fn answer(&mut self) -> Result<Option<Answer>, TeachError>;

    /// The run is over: nothing more is asked.
    fn finish(&mut self) {}
}

/// The teachers in this process, on the CPU; each row is scored by its own.
pub(crate) struct LocalTeacher {
    pub cpu: Arc<Cpu>,
    pub models: Vec<(Arc<Model>, Side)>,
    pub micro: Micro,
    pub answers: VecDeque<Vec<f32>>,
}

impl Teacher for LocalTeacher {
    fn window(&self) -> usize {
        1
    }

    fn ask(&mut self, rows: &[Row], _version: u64) -> Result<(), TeachError> {
        let mut hidden = Vec::new();
        for part in micro_batches(rows, self.micro) {
            let (model, side) = &mut self.models[rows[part.start].teacher];
            side.run(&self.cpu, model, &rows[part]);
            hidden.extend_from_slice(&side.hidden);
        }
        self.answers.push_back(hidden);
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<Answer>, TeachError> {
        Ok(Some(Ok(self.answers.pop_front().expect("it was asked"))))
    }
}

/// A teacher in another process.
#[derive(Debug)]
pub(crate) struct RemoteTeacher {
    /// Until it is let go.
    pub ring: Option<RingTeacher>,
    /// Seconds that a teacher which is late or gone is waited for: it may be started again.
    pub wait_s: f64,
    /// Since when nothing came.
    pub since: Option<Stopwatch>,
}

impl RemoteTeacher {
    /// What its hidden rows are multiplied with.
    ///
    /// # Panics
    /// When it was let go.
    pub fn head(&self) -> Arc<ptx::ops::linear::Packed> {
        self.ring.as_ref().expect("the run is not over").head()
    }
}

/// Groups under way to a teacher elsewhere: enough that it never waits for the learner's turn.
const REMOTE_WINDOW: usize = 256;
/// How long an answer is waited for before it is looked whether there is something new to ask.
const POLL: Duration = Duration::from_millis(2);

impl Teacher for RemoteTeacher {
    fn window(&self) -> usize {
        REMOTE_WINDOW
    }

    fn ask(&mut self, rows: &[Row], version: u64) -> Result<(), TeachError> {
        self.ring.as_mut().expect("the run is not over").send(rows, u32::try_from(version).unwrap_or(u32::MAX))
    }

    fn answer(&mut self) -> Result<Option<Answer>, TeachError> {
        let ring = self.ring.as_mut().expect("the run is not over");
        let waited_s = self.since.get_or_insert_with(Stopwatch::start).elapsed_s();
        let unanswered = ring.unanswered();
        let received = ring.receive_within(POLL);
        if ring.unanswered() < unanswered {
            self.since = None; // one of the group's rows is a sign of life
        }
        let answer = match received {
            Ok(Received::Hidden(hidden)) => Ok(hidden),
            Ok(other) => {
                let what = format!(
                    "{}, and a run takes hidden rows: start `leeway teach` with --payload hidden",
                    other.kind()
                );
                return Err(TeachError::Payload { what });
            }
            Err(TeachError::Missing { why, .. }) => Err(why),
            Err(TeachError::Deadline { .. }) if waited_s < self.wait_s => return Ok(None),
            // What was asked is kept in the ring, and a teacher that is started again answers it.
            Err(TeachError::Dead { .. }) if waited_s < self.wait_s => {
                std::thread::sleep(POLL);
                return Ok(None);
            }
            Err(TeachError::Deadline { what, peer, .. }) => {
                return Err(TeachError::Deadline { what, waited: Duration::from_secs_f64(waited_s), peer });
            }
            Err(error) => return Err(error),
        };
        self.since = None;
        Ok(Some(answer))
    }

    fn finish(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.finish();
        }
    }
}

/// What was asked and is not answered.
enum Pending {
    Group(Sampled),
    Rows,
}

/// Scores what comes until nobody listens or nothing more comes.
pub(crate) fn score_all(teacher: &mut dyn Teacher, from: &Receiver<Out>, to: &Sender<In>, busy_ns: &AtomicU64) {
    if let Err(error) = work(teacher, from, to, busy_ns) {
        drop(to.send(In::Failed(Broken::Teacher(Box::new(error))))); // without a listener there is nobody to tell
    }
}

fn work(
    teacher: &mut dyn Teacher,
    from: &Receiver<Out>,
    to: &Sender<In>,
    busy_ns: &AtomicU64,
) -> Result<(), TeachError> {
    let mut pending: VecDeque<Pending> = VecDeque::new();
    let timed = |watch: Stopwatch| {
        let ns = Duration::from_secs_f64(watch.elapsed_s()).as_nanos();
        busy_ns.fetch_add(u64::try_from(ns).unwrap_or(u64::MAX), Ordering::Relaxed);
    };
    loop {
        // The oldest answer is waited for when there is nothing new to ask, or enough is asked.
        let mut ended = false;
        let next = if pending.is_empty() {
            let next = from.recv().ok();
            ended = next.is_none();
            next
        } else if pending.len() < teacher.window() {
            match from.try_recv() {
                Ok(out) => Some(out),
                Err(TryRecvError::Empty) => None,
                // Nobody waits for what is still to be answered.
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        } else {
            None
        };
        let watch = Stopwatch::start();
        let passed = match next {
            Some(Out::Sampled(sampled)) => {
                let rows: Vec<Row> = sampled.rollouts.iter().map(|r| row(&sampled.asked, r)).collect();
                let versions = sampled.rollouts.iter().flat_map(|r| &r.versions).map(|&(_, version)| version);
                teacher.ask(&rows, versions.max().unwrap_or(0))?;
                pending.push_back(Pending::Group(sampled));
                timed(watch);
                continue;
            }
            Some(Out::Rows(rows)) => {
                teacher.ask(&rows, 0)?;
                pending.push_back(Pending::Rows);
                timed(watch);
                continue;
            }
            Some(Out::Finish) => {
                teacher.finish();
                return Ok(());
            }
            // Whatever was given out before goes before it.
            Some(Out::Mark(unfinished)) => Some(In::Mark(unfinished)),
            Some(Out::Failed(broken)) => Some(In::Failed(broken)),
            None => None,
        };
        // One answer, or all of them where something has to go after them.
        let all = passed.is_some();
        while !pending.is_empty() {
            let watch = Stopwatch::start();
            let answer = teacher.answer()?;
            timed(watch);
            let Some(answer) = answer else {
                if all {
                    continue;
                }
                break;
            };
            let scored = match pending.pop_front().expect("not empty") {
                Pending::Group(sampled) => {
                    let hidden = answer.map_or_else(Hidden::Missing, Hidden::Rows);
                    In::Scored(Scored { sampled, hidden })
                }
                Pending::Rows => In::Answer(answer),
            };
            if to.send(scored).is_err() {
                return Ok(());
            }
            if !all {
                break;
            }
        }
        let over = match passed {
            Some(message) => to.send(message).is_err(),
            None => ended,
        };
        if over {
            return Ok(());
        }
    }
}

/// Hands on what comes where the learner asks the teacher itself.
pub(crate) fn pass_on(from: &Receiver<Out>, to: &Sender<In>) {
    for out in from {
        let passed = match out {
            Out::Sampled(sampled) => In::Scored(Scored { sampled, hidden: Hidden::NotAsked }),
            Out::Mark(unfinished) => In::Mark(unfinished),
            Out::Failed(broken) => In::Failed(broken),
            Out::Finish => return,
            Out::Rows(_) => unreachable!("the learner has the teacher"),
        };
        if to.send(passed).is_err() {
            return;
        }
    }
}
