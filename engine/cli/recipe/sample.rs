//! The rollouts that `recipe tune` measures on: read, or sampled from the reference.

use std::path::Path;
use std::sync::Arc;

use engine::recipe::Recipe;
use engine::rollout::{Limits, Request};
use opd::tasks::{Split, TaskSpec};
use opd::tune::{RolloutSet, STATE, State, write_whole};
use ptx::Cpu;
use ptx::ops::sample::Params;
use serde_json::{Map, json};

use super::super::open::{Folder, InputArgs, Load, ModelArgs};
use super::super::{Failure, Global};
use super::tune::{Input, TuneArgs, precision_of};

/// What is sampled when nothing is said: enough to tell units apart within minutes.
const N_PROMPTS: usize = 32;
const MAX_TOKENS: usize = 64;
/// The rollouts measured on, where they were sampled here.
const ROLLOUTS: &str = "rollouts.jsonl";

/// The rollouts to measure on, and the state that knows what was measured on them.
pub fn rollouts(
    args: &TuneArgs,
    global: &Global,
    cpu: &Arc<Cpu>,
    folder: &Folder,
    base: &Recipe,
    model_hash: &str,
) -> Result<(RolloutSet, State), Failure> {
    let config = folder.checkpoint.config();
    let valid = folder.valid();
    let read = |file: &Path| RolloutSet::read(file, valid, config.max_positions);
    let mut header = Map::new();
    for (key, value) in [
        ("format", json!(1)),
        ("leeway", json!(env!("CARGO_PKG_VERSION"))),
        ("model", json!(model_hash)),
        ("reference", json!(base.hash())),
        ("ids", json!(valid)),
    ] {
        header.insert(key.into(), value);
    }
    if let Some(file) = &args.input.rollouts {
        let set = read(file)?;
        header.insert("rollouts".into(), json!(set.hash()));
        return Ok((set, State::open(&args.out, &header)?));
    }
    let n = args.n_prompts.unwrap_or(N_PROMPTS);
    let max_tokens = args.max_tokens.unwrap_or(MAX_TOKENS);
    let (prompts, stop_ids) = prompts(&args.input, folder, n, args.seed)?;
    for (key, value) in [
        ("n_prompts", json!(n)),
        ("prompts", json!(prompts_hash(&prompts))),
        ("max_tokens", json!(max_tokens)),
        ("seed", json!(args.seed)),
        ("stop_ids", json!(stop_ids)),
    ] {
        header.insert(key.into(), value);
    }
    let mut state = State::open(&args.out, &header)?;
    let file = args.out.join(ROLLOUTS);
    // Whoever measured here had sampled before, under the same header, and said what.
    if !state.is_empty() && file.exists() {
        let set = read(&file)?;
        if state.get(ROLLOUTS, &set.hash()).is_none() {
            return Err(format!(
                "{}: these are not the rollouts that {} was measured on; restore the file, or give another --out",
                file.display(),
                args.out.join(STATE).display()
            )
            .into());
        }
        return Ok((set, state));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let limits = Limits::default();
    let model = ModelArgs {
        model: args.model.clone(),
        recipe: precision_of(args, folder).name().into(),
        kv_memory: None,
        memory: None,
    };
    let (sequences, tokens) = (prompts.len().min(limits.batch), longest.saturating_add(max_tokens));
    let (mut engine, origin) =
        folder.load(&std::sync::Arc::clone(cpu).into(), &model, Load { sequences, tokens, limits })?;
    let request = |(prompt, first_sample): (&Vec<u32>, u64)| Request {
        prompt: prompt.clone(),
        samples: 1,
        first_sample,
        seed: args.seed,
        params: Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
        max_tokens,
        stop_ids: stop_ids.clone(),
        ..Request::default()
    };
    let requests: Vec<Request> = prompts.iter().zip(0..).map(request).collect();
    let bar = global.bar(requests.len() as u64, "rollouts");
    bar.set_message("sample");
    let sampled = opd::eval::collect(&mut engine, &requests, limits, &mut |_| bar.inc(1))?;
    bar.finish_and_clear();
    let row = |rollout: &engine::rollout::Rollout| opd::sequences::Row::of(&prompts[rollout.request], &rollout.ids);
    let rows = sampled.iter().map(row).collect();
    let set = RolloutSet::new(rows, 1.0, "sampled completions")?;
    let lines: String = sampled
        .iter()
        .map(|rollout| {
            let line = json!({
                "prompt_ids": prompts[rollout.request], "ids": rollout.ids, "logprobs_rollout": rollout.logprobs,
                "versions": rollout.versions, "seed": args.seed, "sample": rollout.sample, "temperature": 1.0,
                "top_p": 1.0, "recipe": origin.recipe_hash, "model": origin.model_hash(),
                "finish": rollout.finish.name(), "top_k": 0, "min_p": 0.0, "device": origin.device,
            });
            format!("{line}\n")
        })
        .collect();
    write_whole(&file, lines.as_bytes()).map_err(|e| format!("{}: {e}", file.display()))?;
    if state.get(ROLLOUTS, &set.hash()).is_none() {
        state.add(ROLLOUTS, ROLLOUTS, &set.hash(), Vec::new())?;
    }
    Ok((set, state))
}

/// The first `n` prompts asked for, and the ids that end their completions.
pub fn prompts(input: &Input, folder: &Folder, n: usize, seed: u64) -> Result<(Vec<Vec<u32>>, Vec<u32>), Failure> {
    let config = folder.checkpoint.config();
    let mut stop_ids = config.stop_ids.clone();
    let Input { prompts, ids, task, .. } = input;
    if prompts.is_some() || ids.is_some() {
        let input = InputArgs { prompts: prompts.clone(), ids: ids.clone(), prompt: None };
        let mut all = folder.read(&input)?;
        all.truncate(n);
        return Ok((all, stop_ids));
    }
    let own = std::fs::read_to_string(folder.dir.join("tokenizer.json"));
    let of_tasks = own.is_ok_and(|text| text == opd::tasks::tokenizer_json());
    let specs: Vec<TaskSpec> = match task {
        Some(_) if config.vocab < opd::tasks::VOCAB_LEN => {
            let (have, need) = (config.vocab, opd::tasks::VOCAB_LEN);
            return Err(format!("the model has a vocabulary of {have}; the tasks need {need} ids").into());
        }
        Some(spec) => vec![spec.clone()],
        None if of_tasks => TaskSpec::NAMES.into_iter().filter_map(TaskSpec::example).collect(),
        None => {
            return Err(
                "there are no built-in prompts for this model: give --prompts, --ids or --rollouts, from the text \
                        that its rollouts will be about"
                    .into(),
            );
        }
    };
    stop_ids.push(opd::tasks::EOS);
    let problem = |i: usize| specs[i % specs.len()].problem(seed, Split::Test, (i / specs.len()) as u64).prompt;
    Ok(((0..n).map(problem).collect(), stop_ids))
}

fn prompts_hash(prompts: &[Vec<u32>]) -> String {
    let rows = prompts.iter().map(|ids| opd::sequences::Row::new(ids.clone(), ids.len())).collect();
    // One hash for all lists of ids: that of rollouts without completions.
    RolloutSet { rows, prompts: Vec::new(), temperature: 1.0 }.hash()
}
