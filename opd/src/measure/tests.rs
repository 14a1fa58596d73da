use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::model::Model;
use engine::recipe::{Activations, Precision, Recipe};
use ptx::{Cpu, DType};

use super::*;
use crate::loss::View;
use crate::meter::tests::{VOCAB, folder, rows};
use crate::meter::{Meter, MeterSettings, Start};

fn set(count: usize) -> RolloutSet {
    let (rows, prompts) = rows(count);
    RolloutSet { rows, prompts, temperature: 1.0 }
}

fn targets(set: &RolloutSet) -> Vec<u32> {
    set.rows.iter().flat_map(|row| row.targets()).copied().collect()
}

struct Run {
    model: Model,
    hidden: Vec<f32>,
}

impl Run {
    fn new(cpu: &Cpu, checkpoint: &Checkpoint, recipe: Recipe, set: &RolloutSet) -> Run {
        let model = Model::load(cpu, checkpoint, recipe).unwrap();
        let hidden = hidden(cpu, &model, &set.rows);
        Run { model, hidden }
    }

    fn view(&self) -> View<'_> {
        View { head: self.model.head(), hidden: &self.hidden }
    }
}

/// The same sums as the meter's, zero for a model against itself, and k3 of a model's own draws is near D.
#[test]
fn comparing_is_metering() {
    let cpu = Cpu::new(1);
    let dir = folder(Arch::Qwen3, false, 2);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let recipe = |name| Recipe::built_in(name, Precision::Bf16, checkpoint.config()).unwrap();
    let set = set(8);
    let [trained, rollout] = ["bf16", "fp8"].map(|name| Run::new(&cpu, &checkpoint, recipe(name), &set));
    let compare = Compare { cpu: &cpu, valid: VOCAB as usize - 1, temperature: 1.0 };
    let targets: Vec<u32> = targets(&set).into_iter().map(|id| id.min(VOCAB - 2)).collect();
    let tokens = compare.tokens(&targets, rollout.view(), trained.view()).unwrap();
    let kl = compare.kl(targets.len(), rollout.view(), trained.view()).unwrap();
    assert_eq!(tokens.iter().map(|token| token.kl).collect::<Vec<_>>(), kl);

    let settings = MeterSettings { valid: compare.valid, temperature: 1.0, stream_bytes: 1 << 20 };
    let mut meter = Meter::new(&cpu, &trained.model, set.rows.clone(), set.prompts.clone(), settings);
    let sums = meter.measure(&cpu, &rollout.model, trained.model.head(), Start::Embedding).unwrap();
    for (ours, sum) in by_prompt(&set, kl).iter().zip(&sums) {
        assert!(
            (ours.nats - sum.nats).abs() < 1e-12 && ours.tokens == sum.tokens && ours.nats > 0.0,
            "{ours:?}, {sum:?}"
        );
    }
    for token in compare.tokens(&targets, trained.view(), trained.view()).unwrap() {
        assert_eq!((token.kl.to_bits(), token.logprob_rollout.to_bits()), (0, token.logprob_trained.to_bits()));
    }
    let mut at = 0;
    let replicates = [[rollout.view(), trained.view()]; 2];
    let each = &mut |p: &[f64], first: &[f64], second: &[f64]| {
        assert_eq!(first, second, "a replicate of itself");
        let mean = |x: &dyn Fn(usize) -> f64| (0..p.len()).map(|i| p[i] * x(i)).sum::<f64>();
        let variance = mean(&|i| first[i] * first[i]) - mean(&|i| first[i]).powi(2);
        // Half the variance is the KL to second order.
        assert!(
            (mean(&|_| 1.0) - 1.0).abs() < 1e-12 && (0.5 * variance / tokens[at].kl - 1.0).abs() < 0.5,
            "token {at}"
        );
        at += 1;
    };
    compare.replicates(targets.len(), replicates, each).unwrap();
    assert_eq!(at, targets.len());
}

#[test]
fn parts_of_a_recipe_and_what_layers_change() {
    let dir = folder(Arch::Llama, true, 3);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let recipe = |name| Recipe::built_in(name, Precision::Bf16, checkpoint.config()).unwrap();
    let (trained, mut fp8) = (recipe("bf16"), recipe("fp8"));
    assert_eq!(parts(&trained, &trained), []);
    assert_eq!(parts(&trained, &recipe("kv8")), [Part::Kv]);
    assert_eq!(parts(&trained, &fp8), [Part::Weights, Part::Kv]);
    fp8.layers[1].projections.iter_mut().for_each(|p| p.activations = Activations::E4m3);
    assert_eq!(parts(&trained, &fp8), Part::ALL);
    assert_eq!(alone(&trained, &fp8, Part::Kv).hash(), recipe("kv8").hash());
    // All three together are the recipe.
    let together = Part::ALL.into_iter().fold(trained.clone(), |so_far, part| alone(&so_far, &fp8, part));
    assert_eq!(together.hash(), fp8.hash());

    let (base, changed) = apart(&trained, &fp8);
    assert!(base.layers.iter().all(|row| row.is_f32() && row.k == DType::F32));
    assert_eq!(changed.layers[1].projections[0].activations, Activations::E4m3);
    assert_eq!(changed.layers[0].projections[0].activations, Activations::F32);
    assert_eq!(apart(&trained, &trained).1.layers, base.layers);
}

/// A layer alone is what a model with that layer alone changed has, also with weights of another checkpoint; layers that
/// are the same are not there.
#[test]
fn layers_alone() {
    let cpu = Cpu::new(1);
    let (dir, other) = (folder(Arch::Qwen3, true, 3), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let config = checkpoint.config().clone();
    let trained = Recipe::built_in("bf16", Precision::Bf16, &config).unwrap();
    let mut rollout = trained.clone();
    rollout.layers[2].k = DType::E4m3;
    let set = set(6);
    let valid = VOCAB as usize;
    let mut steps = 0;
    let costs = by_layer(&cpu, &checkpoint, None, &trained, &rollout, &set, valid, &mut || steps += 1).unwrap();
    assert_eq!((steps, costs.iter().map(|cost| cost.layer).collect::<Vec<_>>()), (4, vec![Some(2)]));
    let (base, changed) = apart(&trained, &rollout);
    let [a, b] = [changed, base].map(|recipe| Run::new(&cpu, &checkpoint, recipe, &set));
    let compare = Compare { cpu: &cpu, valid, temperature: 1.0 };
    let want = by_prompt(&set, compare.kl(set.tokens(), a.view(), b.view()).unwrap());
    for (sum, want) in costs[0].sums.iter().zip(want) {
        assert!((sum.nats - want.nats).abs() < 1e-12 && sum.nats > 0.0, "{sum:?}, {want:?}");
    }

    // Weights of another checkpoint: every layer, and the ends; equal weights cost nothing.
    let spec = engine::init::InitSpec {
        arch: Arch::Qwen3,
        hidden: 32,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 48,
        vocab: valid,
        tied: true,
        seed: 6,
        dtype: DType::Bf16,
        max_positions: 128,
        rope_theta: 10_000.0,
        std: 0.2,
    };
    engine::init::random(other.path(), &spec, None).unwrap();
    let older = Checkpoint::open(other.path()).unwrap();
    for (older, zero) in [(&older, false), (&checkpoint, true)] {
        let costs = by_layer(&cpu, &checkpoint, Some(older), &trained, &trained, &set, valid, &mut || {}).unwrap();
        assert_eq!(costs.iter().map(|cost| cost.layer).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), None]);
        for cost in costs {
            assert!(cost.sums.iter().all(|sum| (sum.nats == 0.0) == zero && sum.nats >= 0.0), "{cost:?}");
        }
    }
}

/// Each mistake, made on purpose, is the one that is named; rounding is none.
#[test]
fn mistakes_are_named() {
    let cpu = Cpu::new(1);
    let dir = folder(Arch::Qwen3, true, 2);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let recipe = |name| Recipe::built_in(name, Precision::Bf16, checkpoint.config()).unwrap();
    let mut set = set(24);
    set.rows.iter_mut().for_each(|row| row.ids.iter_mut().for_each(|id| *id = (*id).min(VOCAB - 2)));
    let targets = targets(&set);
    let [trained, rollout] = ["bf16", "fp8"].map(|name| Run::new(&cpu, &checkpoint, recipe(name), &set));
    let compare = Compare { cpu: &cpu, valid: VOCAB as usize - 1, temperature: 1.0 };
    let of = |run: &Run, temperature| compare.logprobs(&targets, run.view(), &[temperature]).unwrap().remove(0);
    let found = |logged: &[f32]| diagnose(&compare, &set, logged, trained.view(), false).unwrap().cause;
    assert_eq!(found(&of(&rollout, 1.0)), None, "rounding is no mistake");
    match found(&of(&rollout, 0.7)) {
        Some(Cause::Temperature { of, given: 1.0 }) => assert!((of - 0.7).abs() < 0.05, "{of}"),
        other => panic!("{other:?}"),
    }
    let honest = of(&rollout, 1.0);
    let mut shifted = honest.clone();
    shifted.rotate_left(1);
    assert_eq!(found(&shifted), Some(Cause::Shifted(1)));
    shifted.rotate_right(2);
    assert_eq!(found(&shifted), Some(Cause::Shifted(-1)));

    // A constant offset within the head of the distribution is a truncation; the draws must be from it.
    let mut nucleus = set.clone();
    let mut logged = Vec::new();
    compare
        .blocks(&[trained.view()], targets.len(), &mut |_, rows, logits| {
            let vocab = logits[0].len() / rows;
            for row in 0..rows {
                let p = compare.distribution(&logits[0][row * vocab..][..compare.valid]);
                let mut order: Vec<usize> = (0..p.len()).collect();
                order.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
                let kept: f64 = order[..10].iter().map(|&id| p[id].exp()).sum();
                let id = order[row % 10];
                #[allow(clippy::cast_possible_truncation)] // as a sampler logs it
                logged.push((id, (p[id] - kept.ln()) as f32));
            }
            Ok(())
        })
        .unwrap();
    // The same prefixes, with other tokens judged there.
    let drawn: Vec<u32> = logged.iter().map(|&(id, _)| u32::try_from(id).unwrap()).collect();
    let logprobs: Vec<f32> = logged.iter().map(|&(_, logprob)| logprob).collect();
    let mut at = 0;
    for row in &mut nucleus.rows {
        let (prompt, len) = (row.prompt, row.targets().len());
        row.ids[prompt..].copy_from_slice(&drawn[at..at + len]);
        at += len;
    }
    let diagnosis = diagnose(&compare, &nucleus, &logprobs, trained.view(), true).unwrap();
    assert_eq!(diagnosis.cause, Some(Cause::TopK(10)), "{diagnosis:?}");
}

#[test]
fn lines_name_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.jsonl");
    let good = r#"{"prompt_ids": [1], "ids": [2, 3], "logprobs_rollout": [-1, -0.5], "versions": [[0, 3], [1, 4]], "recipe": "x", "temperature": 0.5}"#;
    let other = good.replace("[1]", "[4]").replace("\"x\"", "\"y\"");
    std::fs::write(&file, format!("{good}\n{other}\n")).unwrap();
    let lines = Lines::read(&file, 10, 8).unwrap();
    assert_eq!(
        (lines.logprobs.len(), lines.versions, lines.recipes),
        (4, vec![3, 4, 3, 4], vec!["x".into(), "y".to_owned()])
    );
    assert_eq!((lines.set.temperature, lines.models.len()), (0.5, 0));
    for (from, to, want) in [
        (r#""recipe": "y", "#, "", "there is no `recipe`"),
        (r#""versions": [[0, 3], [1, 4]], "#, "", "there is no `versions`"),
        (r#""logprobs_rollout": [-1, -0.5], "#, "", "there is no `logprobs_rollout`"),
        ("[-1, -0.5]", "[-1]", "`logprobs_rollout` has 1 entries and `ids` has 2"),
        ("[-1, -0.5]", "[-1, 0.5]", "[1] is 0.5; ln p is"),
        ("[-1, -0.5]", "[-1, null]", "[1] is null; ln p is"),
        ("[[0, 3], [1, 4]]", "[[1, 3]]", "first tokens begin at 0"),
        ("[[0, 3], [1, 4]]", "7", "it must be [[first_token, version], ...]"),
        ("[2, 3]", "[2, 10]", "`ids[1]` is 10; the model has ids 0..10"),
        (r#""temperature""#, r#""top_p": 0.9, "temperature""#, "`top_p` is 0.9: the sampler left tokens out"),
    ] {
        let bad = other.replace(from, to);
        assert_ne!(bad, other, "{from}");
        std::fs::write(&file, format!("{good}\n{bad}\n")).unwrap();
        let error = Lines::read(&file, 10, 8).unwrap_err().to_string();
        assert!(error.contains("r.jsonl:2: ") && error.contains(want), "{error}");
    }
}
