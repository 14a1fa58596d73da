//! Rollouts sampled by the configuration, and everything that can be measured on them.

use std::sync::Arc;

use budget::coherence::moments;
use budget::drift::paired_difference;
use budget::mismatch::RatioEstimate;
use engine::checkpoint::Checkpoint;
use engine::engine::{Engine, PAGE_LEN, kv_shapes};
use engine::model::Model;
use engine::recipe::Recipe;
use engine::rollout::{Limits, Request};
use kv::Layout;
use opd::loss::View;
use opd::measure::{Compare, alone, by_layer, by_prompt, hidden, parts};
use opd::tune::RolloutSet;
use ptx::ops::sample::Params;

use super::super::open::Folder;
use super::super::recipe::sample::prompts;
use super::super::{Failure, Global};
use super::numbers::{Layer, Loss, Measured, SourceCost, clusters, coherence, mean, measured};
use super::{MAX_TOKENS, MeasureArgs, N_PROMPTS, Opened, beside};

/// Most bytes of KV pool for the rollouts.
const KV_BYTES: usize = 4 << 30;

/// A model and its hidden rows on some rollouts.
pub struct Ran {
    pub model: Model,
    pub hidden: Vec<f32>,
}

impl Ran {
    pub fn new(opened: &Opened, model: Model, set: &RolloutSet) -> Ran {
        Ran { hidden: hidden(&opened.cpu, &model, &set.rows), model }
    }

    pub fn view(&self) -> View<'_> {
        View { head: self.model.head(), hidden: &self.hidden }
    }
}

/// Every token taken.
pub fn targets(set: &RolloutSet) -> Vec<u32> {
    set.rows.iter().flat_map(|row| row.targets()).copied().collect()
}

pub fn run(args: &MeasureArgs, global: &Global, opened: &Opened) -> Result<Measured, Failure> {
    let Opened { cpu, folder, trained, rollout, stale, valid } = opened;
    let rollout = rollout.as_ref().expect("live measuring has a recipe");
    let older = stale.as_ref().unwrap_or(&folder.checkpoint);
    let temperature = args.temperature.unwrap_or(1.0);
    let compare = Compare { cpu, valid: *valid, temperature };
    let bar = global.bar(0, "rollouts");

    bar.set_message("sample");
    let asked = Asked::new(args, opened)?;
    bar.set_length(asked.requests.len() as u64);
    let (mu, set, logged) = asked.sample(opened, older, rollout, &bar)?;
    bar.set_message("measure");
    let mu = Ran::new(opened, mu, &set);
    let pi = Ran::new(opened, Model::load(cpu, &folder.checkpoint, trained.clone())?, &set);
    let tokens = compare.tokens(&targets(&set), mu.view(), pi.view())?;
    // One forward function: what decoding said and what the whole rows give are the same bits.
    let gap = tokens.iter().zip(&logged).map(|(token, &own)| f64::from((token.logprob_rollout - own).abs()));
    let gap = gap.fold(0.0, f64::max);
    let log_ratio: Vec<f64> =
        tokens.iter().zip(&logged).map(|(token, &own)| f64::from(token.logprob_trained) - f64::from(own)).collect();
    let kl: Vec<f64> = tokens.iter().map(|token| token.kl).collect();
    let nll: Vec<f64> = tokens.iter().map(|token| -f64::from(token.logprob_trained)).collect();

    let teacher = args.teacher.as_deref().map(|dir| open_teacher(opened, dir)).transpose()?;
    let loss_on = |set: &RolloutSet, pi: &Ran| -> Result<Option<Vec<f64>>, Failure> {
        let Some((checkpoint, recipe)) = &teacher else { return Ok(None) };
        let teacher = Ran::new(opened, Model::load(cpu, checkpoint, recipe.clone())?, set);
        Ok(Some(compare.kl(set.tokens(), pi.view(), teacher.view())?))
    };
    let loss = loss_on(&set, &pi)?;
    let mut result = measured(&set, &log_ratio, Some(&kl), &nll, loss.as_deref(), args.seed)?;
    result.logged_gap = Some(gap);
    if let Some(loss) = loss {
        let (model, own, _) = asked.sample(opened, &folder.checkpoint, trained, &bar)?;
        let pi_own = Ran::new(opened, model, &own);
        let loss_own = loss_on(&own, &pi_own)?.expect("there is a teacher");
        let mu_own = Ran::new(opened, Model::load(cpu, older, rollout.clone())?, &own);
        let d_own = compare.kl(own.tokens(), mu_own.view(), pi_own.view())?;
        let [first, second] = [(&set, loss), (&own, loss_own)].map(|(set, loss)| clusters(&by_prompt(set, loss)));
        result.loss = Some(Loss {
            delta: paired_difference(&first, &second, args.seed)?,
            d_on_trained: mean(&own, d_own, args.seed)?,
        });
    }
    let d = result.d.expect("it was measured");
    result.sources = Some(sources(opened, rollout, &compare, &set, &pi, d, args.seed)?);
    if let Some(dir) = &args.replicate {
        let other = beside(folder, "--replicate", dir)?;
        // The recipe's error alone, here and there.
        let own = if stale.is_some() {
            Ran::new(opened, Model::load(cpu, &folder.checkpoint, rollout.clone())?, &set)
        } else {
            mu
        };
        let [theirs, base] = [rollout, trained].map(|recipe| Model::load(cpu, &other, recipe.clone()));
        let (theirs, base) = (Ran::new(opened, theirs?, &set), Ran::new(opened, base?, &set));
        let mut all = Vec::new();
        let both = [[own.view(), pi.view()], [theirs.view(), base.view()]];
        compare.replicates(set.tokens(), both, &mut |p, a, b| all.push(moments(p, a, b)))?;
        result.coherence = Some(coherence(&set, &all, args.seed)?);
    }
    if args.by_layer {
        bar.set_message("layers");
        result.layers = Some(layers(args, opened, rollout, &set)?);
    }
    bar.finish_and_clear();
    Ok(result)
}

/// Every source alone on the same rows.
pub fn sources(
    opened: &Opened,
    rollout: &Recipe,
    compare: &Compare<'_>,
    set: &RolloutSet,
    pi: &Ran,
    whole: RatioEstimate,
    seed: u64,
) -> Result<Vec<SourceCost>, Failure> {
    let Opened { cpu, folder, trained, stale, .. } = opened;
    let active = parts(trained, rollout);
    let several = active.len() + usize::from(stale.is_some()) > 1;
    let cost = |checkpoint: &Checkpoint, recipe: Recipe| -> Result<RatioEstimate, Failure> {
        if !several {
            return Ok(whole); // the only source is the whole of it
        }
        let variant = Ran::new(opened, Model::load(cpu, checkpoint, recipe)?, set);
        mean(set, compare.kl(set.tokens(), variant.view(), pi.view())?, seed)
    };
    let mut costs = Vec::new();
    for part in opd::measure::Part::ALL {
        let d = active.contains(&part).then(|| cost(&folder.checkpoint, alone(trained, rollout, part))).transpose()?;
        costs.push(SourceCost { name: part.name(), d });
    }
    let d = stale.as_ref().map(|older| cost(older, trained.clone())).transpose()?;
    costs.push(SourceCost { name: "staleness", d });
    Ok(costs)
}

/// Every layer alone, on as many rows as its tokens allow.
pub fn layers(
    args: &MeasureArgs,
    opened: &Opened,
    rollout: &Recipe,
    set: &RolloutSet,
) -> Result<(Vec<Layer>, usize), Failure> {
    let part = some_rows(set, args.layer_tokens)?;
    let (older, trained) = (opened.stale.as_ref(), &opened.trained);
    let costs =
        by_layer(&opened.cpu, &opened.folder.checkpoint, older, trained, rollout, &part, opened.valid, &mut || {})?;
    let layer = |cost: opd::measure::LayerCost| -> Result<Layer, Failure> {
        Ok(Layer { layer: cost.layer, d: RatioEstimate::new(&clusters(&cost.sums), args.seed)? })
    };
    Ok((costs.into_iter().map(layer).collect::<Result<_, _>>()?, part.tokens()))
}

/// Rows spread evenly over the set, with at most `most` completion tokens but of two prompts at least.
fn some_rows(set: &RolloutSet, most: usize) -> Result<RolloutSet, Failure> {
    if set.tokens() <= most {
        return Ok(set.clone());
    }
    let (mut rows, mut prompts, mut tokens) = (Vec::new(), std::collections::HashSet::new(), 0);
    let wanted = (set.rows.len() * most).div_ceil(set.tokens()).clamp(2, set.rows.len());
    let order = (0..wanted).map(|i| i * set.rows.len() / wanted).chain(0..set.rows.len());
    for at in order {
        if rows.contains(&at) {
            continue;
        }
        let count = set.rows[at].targets().len();
        if prompts.len() < 2 || tokens + count <= most {
            if prompts.len() < 2 && !prompts.insert(set.prompts[at]) {
                continue;
            }
            rows.push(at);
            tokens += count;
        }
        if rows.len() >= wanted {
            break;
        }
    }
    rows.sort_unstable();
    let rows = rows.into_iter().map(|at| set.rows[at].clone()).collect();
    Ok(RolloutSet::new(rows, set.temperature, "the rows that layers are measured on")?)
}

/// The teacher, in its own precision.
fn open_teacher(opened: &Opened, dir: &std::path::Path) -> Result<(Arc<Checkpoint>, Recipe), Failure> {
    let teacher = Folder::open(dir)?;
    if teacher.valid() != opened.valid {
        return Err(format!(
            "--teacher {}: its tokenizer has {} ids and the model's {}; a teacher has the same tokenizer",
            dir.display(),
            teacher.valid(),
            opened.valid
        )
        .into());
    }
    let recipe = Recipe::built_in("identity", teacher.precision(), teacher.checkpoint.config())?;
    Ok((teacher.checkpoint, recipe))
}

/// What is sampled, whoever samples it.
struct Asked {
    prompts: Vec<Vec<u32>>,
    requests: Vec<Request>,
    temperature: f32,
    longest: usize,
}

impl Asked {
    fn new(args: &MeasureArgs, opened: &Opened) -> Result<Asked, Failure> {
        let n = args.n_prompts.unwrap_or(N_PROMPTS);
        let (prompts, stop_ids) = prompts(&args.input, &opened.folder, n, args.seed)?;
        let (temperature, max_tokens) = (args.temperature.unwrap_or(1.0), args.max_tokens.unwrap_or(MAX_TOKENS));
        let samples = args.samples.unwrap_or(1);
        let request = |(prompt, number): (&Vec<u32>, u64)| Request {
            prompt: prompt.clone(),
            samples,
            first_sample: number * u64::from(samples),
            seed: args.seed,
            params: Params { temperature, top_k: 0, top_p: 1.0, min_p: 0.0 },
            max_tokens,
            stop_ids: stop_ids.clone(),
            ..Request::default()
        };
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0).saturating_add(max_tokens);
        let requests = prompts.iter().zip(0..).map(request).collect();
        Ok(Asked { prompts, requests, temperature, longest })
    }

    /// Rollouts of `checkpoint` under `recipe`, with the model and the logprobs that it reported.
    fn sample(
        &self,
        opened: &Opened,
        checkpoint: &Checkpoint,
        recipe: &Recipe,
        bar: &indicatif::ProgressBar,
    ) -> Result<(Model, RolloutSet, Vec<f32>), Failure> {
        let model = Model::load(&opened.cpu, checkpoint, recipe.clone())?;
        let layout = Layout::new(kv_shapes(&model.config, recipe, PAGE_LEN));
        let limits = Limits::default();
        let each = layout.pages_for(self.longest.min(model.config.max_positions));
        let sequences: usize = self.requests.iter().map(|r| r.samples as usize).sum::<usize>().min(limits.batch);
        let pages = (sequences * each).min(layout.capacity(KV_BYTES).pages.max(each));
        let mut engine = Engine::new(opened.cpu.clone(), model, PAGE_LEN, pages, opened.valid);
        bar.set_position(0);
        let sampled = opd::eval::collect(&mut engine, &self.requests, limits, &mut |_| bar.inc(1))?;
        drop(engine);
        let rows = sampled
            .iter()
            .map(|rollout| opd::sequences::Row::of(&self.prompts[rollout.request], &rollout.ids))
            .collect();
        let set = RolloutSet::new(rows, self.temperature, "sampled completions")?;
        let logged = sampled.iter().flat_map(|rollout| &rollout.logprobs).copied().collect();
        Ok((Model::load(&opened.cpu, checkpoint, recipe.clone())?, set, logged))
    }
}
