//! The threads themselves, on a small model: what is broken off goes on to the same bits, and a teacher that is late or
//! gone is waited for as long as it was agreed.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::engine::{Device, Engine};
use engine::recipe::{Precision, Recipe};
use engine::rollout::{Limits, Request, Rollout};
use ptx::Cpu;
use tempfile::TempDir;

use super::rollouts::{Command, Shared};
use super::scores::{Answer, Teacher};
use super::*;
use crate::master::Master;
use crate::meter::tests::{VOCAB, folder};
use crate::sequences::Row;
use crate::source::Source;
use crate::teach::TeachError;

const PAGE: usize = 16;
const SAMPLES: u32 = 3;

struct Setup {
    dir: TempDir,
    cpu: Arc<Cpu>,
    source: Arc<Source>,
    master: Arc<RwLock<Master>>,
}

impl Setup {
    fn new() -> Setup {
        let dir = folder(Arch::Qwen3, true, 2);
        let cpu = Arc::new(Cpu::new(1));
        let path = dir.path().join("prompts.jsonl");
        let text: String = (0..9).map(|i| format!("{{\"ids\": [{i}, 7, {}]}}\n", i + 11)).collect();
        std::fs::write(&path, text).unwrap();
        let source = Arc::new(Source::open_file(&path, None, None, &[], 3).unwrap());
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let master = Arc::new(RwLock::new(Master::load(&checkpoint, Precision::Bf16).unwrap()));
        Setup { dir, cpu, source, master }
    }

    fn engine(&self) -> Engine {
        let checkpoint = Checkpoint::open(self.dir.path()).unwrap();
        let recipe = Recipe::built_in("kv8", Precision::Bf16, checkpoint.config()).unwrap();
        let (config, device) = (checkpoint.config().clone(), Device::Cpu(Arc::clone(&self.cpu)));
        Engine::open(&device, config, recipe, 0, &mut &checkpoint, PAGE, 200, VOCAB as usize).unwrap()
    }

    fn settings(max_tokens: usize) -> Settings {
        let request = Request { samples: SAMPLES, seed: 3, max_tokens, ..Request::default() };
        Settings { request, limits: Limits { batch: 12, ..Limits::default() } }
    }

    fn stage(&self, next: u64, shared: &Arc<Shared>) -> RolloutStage {
        let lead = Lead::UpTo(2);
        shared.hold_from(u64::MAX);
        RolloutStage {
            engine: self.engine(),
            admission: Admission::new(lead, 2, 0, next, 4),
            lead,
            source: Arc::clone(&self.source),
            master: Arc::clone(&self.master),
            settings: Setup::settings(100),
            shared: Arc::clone(shared),
        }
    }
}

/// All completions of four prompts, by sample.
fn all(out: &Receiver<Out>) -> Vec<Rollout> {
    let mut rollouts: Vec<Rollout> = Vec::new();
    while rollouts.len() < 4 * SAMPLES as usize {
        match out.recv_timeout(Duration::from_secs(60)).unwrap() {
            Out::Sampled(sampled) => rollouts.extend(sampled.rollouts),
            other => panic!("{other:?}"),
        }
    }
    rollouts.sort_by_key(|rollout| rollout.sample);
    rollouts
}

fn bits(rollout: &Rollout) -> (Vec<u32>, Vec<u32>) {
    (rollout.ids.clone(), rollout.logprobs.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn what_is_broken_off_goes_on_to_the_same_bits() {
    let setup = Setup::new();
    let run = |next: u64, unfinished: Vec<Unfinished>| {
        let shared = Arc::new(Shared::default());
        let (stage, (commands, asked), (out, from)) = (setup.stage(next, &shared), bounded(8), bounded(64));
        let thread = std::thread::spawn(move || stage.run(unfinished, &asked, &out));
        (shared, commands, from, thread)
    };
    let (_, commands, from, thread) = run(0, Vec::new());
    let undisturbed = all(&from);
    drop(commands);
    thread.join().unwrap();

    // Twice broken off on the way, each time after some tokens more. On a busy machine the stage may be through before this
    // thread gets its turn: then it is tried again.
    let tokens = |unfinished: &[Unfinished]| -> usize {
        unfinished.iter().flat_map(|one| &one.partials).map(|partial| partial.ids.len()).sum()
    };
    let broken_off = |before: &[Unfinished]| {
        let next = if before.is_empty() { 0 } else { 4 };
        let (shared, commands, from, thread) = run(next, before.to_vec());
        while shared.steps.load(Ordering::Relaxed) < 8 {
            std::thread::yield_now();
        }
        commands.send(Command::Mark).unwrap();
        let marked = match from.recv_timeout(Duration::from_secs(60)).unwrap() {
            Out::Mark(unfinished) => Some(unfinished),
            Out::Sampled(_) => None,
            other => panic!("{other:?}"),
        };
        drop((commands, from));
        thread.join().unwrap();
        marked.filter(|unfinished| unfinished.len() == 4 && tokens(unfinished) > tokens(before))
    };
    let mut unfinished = Vec::new();
    for _ in 0..2 {
        unfinished = (0..100).find_map(|_| broken_off(&unfinished)).expect("in a hundred tries it is met on the way");
    }
    let (_, commands, from, thread) = run(4, unfinished);
    let rollouts = all(&from);
    drop(commands);
    thread.join().unwrap();
    for (rollout, undisturbed) in rollouts.iter().zip(&undisturbed) {
        assert_eq!(bits(rollout), bits(undisturbed), "sample {}", undisturbed.sample);
        assert_eq!(
            (rollout.sample, rollout.finish, &rollout.versions),
            (undisturbed.sample, undisturbed.finish, &vec![(0, 0)])
        );
        assert_eq!(rollout.rebuilt.len(), 2, "it says where its keys and values were computed anew");
    }
}

/// A teacher that takes its time, and from a row on for ever, until nobody waits for it any more.
struct Late {
    delay: Duration,
    dead_from: usize,
    asked: VecDeque<usize>,
    scored: usize,
    width: usize,
}

impl Teacher for Late {
    fn window(&self) -> usize {
        2
    }

    fn ask(&mut self, rows: &[Row], _version: u64) -> Result<(), TeachError> {
        self.asked.push_back(rows.iter().map(|row| row.targets().len()).sum());
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<Answer>, TeachError> {
        self.scored += 1;
        let forever = self.scored > self.dead_from;
        std::thread::sleep(if forever { Duration::from_secs(3) } else { self.delay });
        Ok(Some(Ok(vec![0.0; self.asked.pop_front().expect("it was asked") * self.width])))
    }
}

/// With an exact lead a version is not replaced before the rollout stage has it, however late it comes.
#[test]
fn a_version_is_held_until_the_rollouts_have_it() {
    let setup = Setup::new();
    let asked = VecDeque::new();
    let teacher = Late { delay: Duration::ZERO, dead_from: usize::MAX, asked, scored: 0, width: 32 };
    let mut stages = Stages::start(Start {
        engine: setup.engine(),
        teacher: Some(Box::new(teacher)),
        source: Arc::clone(&setup.source),
        master: Arc::clone(&setup.master),
        settings: Setup::settings(5),
        lead: Lead::Exactly(1),
        batch: 2,
        end: 8,
        updates: 0,
        in_flight: Vec::new(),
        wait_s: 60.0,
    });
    for version in 0..3_u64 {
        let (_, group) = stages.gather(&mut |_| {}).unwrap().swap_remove(0);
        assert_eq!(group.oldest(), version.saturating_sub(1));
        // The stage cannot take its weights for a while.
        let held = Arc::clone(&setup.master);
        let (ready, is_ready) = bounded(1);
        let holder = std::thread::spawn(move || {
            let _master = held.write().unwrap();
            ready.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(150));
        });
        is_ready.recv().unwrap();
        stages.before_replacing(version).unwrap();
        assert!(version > 2 || stages.taken() >= version, "version {version}");
        holder.join().unwrap();
        setup.master.write().unwrap().updates = version + 1;
        stages.published();
    }
}

#[test]
fn a_late_teacher_is_waited_for_and_a_dead_one_is_not() {
    let setup = Setup::new();
    let start = |dead_from: usize, wait_s: f64| {
        let delay = Duration::from_millis(30);
        let teacher: Box<dyn Teacher> =
            Box::new(Late { delay, dead_from, asked: VecDeque::new(), scored: 0, width: 32 });
        Stages::start(Start {
            engine: setup.engine(),
            teacher: Some(teacher),
            source: Arc::clone(&setup.source),
            master: Arc::clone(&setup.master),
            settings: Setup::settings(5),
            lead: Lead::UpTo(2),
            batch: 2,
            end: 6,
            updates: 0,
            in_flight: Vec::new(),
            wait_s,
        })
    };
    let mut stages = start(usize::MAX, 60.0);
    for update in 0..3 {
        let batch = stages.gather(&mut |_| {}).unwrap();
        assert_eq!(batch.iter().map(|(prompt, _)| *prompt).collect::<Vec<_>>(), [2 * update, 2 * update + 1]);
        setup.master.write().unwrap().updates = update + 1;
        stages.published();
    }
    drop(stages);
    setup.master.write().unwrap().updates = 0;

    let mut stages = start(2, 1.0);
    assert_eq!(stages.gather(&mut |_| {}).unwrap().len(), 2, "those that were scored before");
    setup.master.write().unwrap().updates = 1;
    stages.published();
    let error = stages.gather(&mut |_| {}).unwrap_err().to_string();
    assert!(
        error.starts_with("waited 1 s for the rollouts of prompt 2, and nothing came; the rollout stage"),
        "{error}"
    );
}
