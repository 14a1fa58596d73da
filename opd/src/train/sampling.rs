//! Everything of a run that depends on the recipe and on how far rollouts are behind: the engine that samples, the one that
//! measures it, and the stages. Opened when the run begins, and again when one of the two is lowered.

use std::collections::VecDeque;
use std::sync::{Arc, RwLock};

use engine::config::ModelConfig;
use engine::engine::{Device, Engine, EngineError, PAGE_LEN, kv_shapes};
use engine::recipe::Recipe;
use engine::rollout::Limits;
use kv::Layout;
use ptx::Cpu;

use super::past::Past;
use super::teacher::{Local, Teacher};
use super::{Behaviour, Trainer, read};
use crate::config::Config;
use crate::flow::{LocalTeacher, RemoteTeacher, Settings, Stages, Start, Unfinished};
use crate::master::Master;
use crate::noise::Injected;
use crate::sequences::Micro;
use crate::side::{Beside, Side, pages};
use crate::source::Source;

/// What is opened.
pub(super) struct Sampling {
    pub rollout: Option<Engine>,
    pub is_identity: bool,
    pub stages: Option<Stages>,
    pub behaviour: Behaviour,
}

/// What it is opened from.
pub(super) struct Ground<'a> {
    /// Of rollouts and teacher.
    pub device: &'a Device,
    pub cpu: &'a Arc<Cpu>,
    /// Recipe and schedule as they are in force.
    pub config: &'a Config,
    pub recipe: &'a Recipe,
    pub master: &'a Arc<RwLock<Master>>,
    pub noise: Option<&'a Injected>,
    pub policy: &'a Engine,
    pub teacher: &'a Teacher,
    /// The teacher in another process, for the scoring stage.
    pub remote: Option<RemoteTeacher>,
    pub source: &'a Arc<Source>,
    pub stop_ids: &'a [u32],
    pub micro: Micro,
    /// Tokens of the longest sequence.
    pub longest: usize,
    pub in_flight: Vec<Unfinished>,
}

/// Whether there will be stages: a run with nothing left to do has none.
pub(super) fn has_stages(config: &Config, updates: u64) -> bool {
    config.lead().is_some() && updates < u64::from(config.updates)
}

/// Pages of the pool that completions of at most `longest` tokens are sampled in, prompt included: what all sequences of an
/// update need, or what fits in `rollout.kv_memory`.
pub(super) fn pool(config: &Config, model: &ModelConfig, recipe: &Recipe, longest: usize) -> usize {
    let all = config.sequences() * longest.div_ceil(PAGE_LEN);
    config.rollout.kv_memory.map_or(all, |bytes| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        all.min(Layout::new(kv_shapes(model, recipe, PAGE_LEN)).capacity(bytes).pages)
    })
}

impl Ground<'_> {
    pub fn open(self) -> Result<Sampling, EngineError> {
        let Ground { device, cpu, config, recipe, master, noise, policy, teacher, remote, .. } = self;
        let Micro { tokens, rows } = self.micro;
        let (model, valid, sequences) = (policy.config(), policy.valid(), config.sequences());
        let own = pool(config, model, recipe, self.longest);
        let open = |recipe: &Recipe, pages: usize| {
            let master = read(master);
            let (version, mut source) = (master.updates, master.version(cpu));
            Engine::open(device, model.clone(), recipe.clone(), version, &mut source, PAGE_LEN, pages, valid)
        };
        let disturbs = noise.is_some_and(Injected::disturbs);
        let is_identity = device.is_cpu() && recipe.hash() == policy.recipe().hash() && !disturbs;
        let lead = config.lead();
        let mut rollout = if let Some(noise) = noise {
            let master = read(master);
            let (version, mut source) = noise.source(&master, cpu);
            let mut engine =
                Engine::open(device, model.clone(), recipe.clone(), version, &mut *source, PAGE_LEN, own, valid)?;
            engine.set_logit_noise(noise.logits(version));
            Some(engine)
        } else if is_identity && lead.is_none() {
            None // the student samples itself
        } else {
            Some(open(recipe, own)?)
        };
        let behaviour = match lead {
            None => Behaviour::Present(Beside::new(rollout.as_ref().unwrap_or(policy), tokens, rows)),
            Some(lead) => {
                let pages = if device.is_cpu() { 0 } else { pages(tokens, rows) };
                let cap = usize::try_from(lead.cap()).expect("a few versions");
                Behaviour::Past(Box::new(Past::new(open(recipe, pages)?, cap, tokens, rows)))
            }
        };
        let updates = read(master).updates;
        let stages = lead.filter(|_| has_stages(config, updates)).map(|lead| {
            let limits = Limits { batch: sequences, in_flight: config.rollout.in_flight.into(), ..Limits::default() };
            let scores: Option<Box<dyn crate::flow::Teacher>> = match teacher {
                Teacher::Here(all) if device.is_cpu() => {
                    let with_side = |local: &Local| {
                        let engine = &local.engine;
                        (engine.shared_model(), Side::new(engine.model(), tokens, rows))
                    };
                    let models = all.iter().map(with_side).collect();
                    let (cpu, answers) = (Arc::clone(cpu), VecDeque::new());
                    Some(Box::new(LocalTeacher { cpu, models, micro: self.micro, answers }))
                }
                Teacher::Here(_) => None,
                Teacher::Remote(..) | Teacher::Staged(_) => {
                    Some(Box::new(remote.expect("stages have a teacher elsewhere for themselves")))
                }
            };
            Stages::start(Start {
                engine: rollout.take().expect("stages have an engine of their own"),
                teacher: scores,
                source: Arc::clone(self.source),
                master: Arc::clone(master),
                settings: Settings { request: Trainer::base_request(config, self.stop_ids), limits },
                lead,
                batch: u64::from(config.train.batch),
                end: u64::from(config.updates) * u64::from(config.train.batch),
                updates,
                in_flight: self.in_flight,
                wait_s: config.wait_s,
            })
        });
        Ok(Sampling { rollout, is_identity, stages, behaviour })
    }
}
