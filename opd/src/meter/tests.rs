use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::engine::Engine;
use engine::init::{InitSpec, random};
use engine::recipe::{Precision, Proj, WeightFormat};
use engine::rollout::{Limits, ScoreRow, score};
use ptx::DType;
use ptx::rng::{Purpose, Stream};
use tempfile::TempDir;

use super::*;

pub(crate) const VOCAB: u32 = 61;

/// A folder with a random model whose distributions are far from uniform.
pub(crate) fn folder(arch: Arch, tied: bool, layers: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let spec = InitSpec {
        arch,
        hidden: 32,
        layers,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 48,
        vocab: VOCAB as usize,
        tied,
        seed: 5,
        dtype: DType::Bf16,
        max_positions: 128,
        rope_theta: 10_000.0,
        std: 0.2,
    };
    random(dir.path(), &spec, None).unwrap();
    dir
}

/// Rows of 3 to 40 ids, two a prompt.
pub(crate) fn rows(count: usize) -> (Vec<Row>, Vec<usize>) {
    let mut stream = Stream::new(1, Purpose::Test, 0);
    let row = |_| {
        let len = 3 + stream.below(38) as usize;
        let prompt = 1 + stream.below(u32::try_from(len - 1).unwrap()) as usize;
        Row::new((0..len).map(|_| stream.below(VOCAB)).collect(), prompt)
    };
    ((0..count).map(row).collect(), (0..count).map(|i| i / 2).collect())
}

fn settings(stream_bytes: usize) -> MeterSettings {
    MeterSettings { valid: VOCAB as usize - 1, temperature: 1.0, stream_bytes }
}

fn load(cpu: &Cpu, dir: &TempDir) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let recipe = Recipe::built_in("bf16", Precision::Bf16, checkpoint.config()).unwrap();
    let model = Model::load(cpu, &checkpoint, recipe).unwrap();
    (checkpoint, model)
}

fn bits(sums: &[Sum]) -> Vec<u64> {
    sums.iter().map(|sum| sum.nats.to_bits()).collect()
}

/// A layer with everything in 8 bits.
fn quantised(model: &Model, layer: usize) -> engine::recipe::LayerRecipe {
    let mut row = model.recipe.layers[layer];
    Proj::ALL.into_iter().for_each(|proj| row[proj].weights = WeightFormat::new(DType::E4m3));
    (row.k, row.v) = (DType::E4m3, DType::E4m3);
    row
}

#[test]
fn a_model_is_at_no_distance_from_itself() {
    let cpu = Cpu::new(1);
    let (_, model) = load(&cpu, &folder(Arch::Llama, true, 3));
    let (rows, prompts) = rows(7);
    let tokens: usize = rows.iter().map(|row| row.targets().len()).sum();
    let mut meter = Meter::new(&cpu, &model, rows, prompts, settings(1 << 20));
    for start in [Start::Embedding, Start::Layer(0), Start::Layer(2), Start::Head] {
        let sums = meter.measure(&cpu, &model, model.head(), start).unwrap();
        assert!(sums.iter().all(|sum| sum.nats.to_bits() == 0), "{start:?}: {sums:?}");
        assert_eq!((sums.len(), sums.iter().map(|sum| sum.tokens).sum::<u64>()), (4, tokens as u64));
    }
}

/// A pass that starts at the changed layer, or at the last kept one before it, has the bits of the whole pass; so has a
/// row alone, with another number of threads and in portable code. And a layer that was put back, or read again in its
/// old formats, has the bits that it had.
#[test]
fn late_starts_and_restored_layers_have_the_bits_of_the_whole() {
    let (cpu, other) = (Cpu::new(1), Cpu::with_isa(3, ptx::Isa::Portable));
    let (checkpoint, mut model) = load(&cpu, &folder(Arch::Qwen3, false, 4));
    let (rows, prompts) = rows(6);
    let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
    let layer_bytes = 4 * 32 * tokens;
    let mut meters = [0, 2, 4].map(|kept| {
        let meter = Meter::new(&cpu, &model, rows.clone(), prompts.clone(), settings(kept * layer_bytes));
        assert_eq!(meter.kept().len(), kept);
        meter
    });
    let mut alone = Meter::new(&other, &model, rows[3..4].to_vec(), vec![0], settings(1 << 20));
    let pair = Meter::new(&other, &model, rows[2..4].to_vec(), vec![0, 0], settings(1 << 20));
    let mut pair = pair;
    let first = meters[0].measure(&cpu, &model, model.head(), Start::Embedding).unwrap();
    for layer in 0..4 {
        let (base, changed) = (model.recipe.layers[layer], quantised(&model, layer));
        let aside = model.set_layer(&cpu, layer, changed, &mut &checkpoint).unwrap();
        let start = Start::of(meters[0].recipe(), &model.recipe);
        assert_eq!(start, Start::Layer(layer));
        let whole = meters[0].measure(&cpu, &model, model.head(), Start::Embedding).unwrap();
        assert!(whole.iter().all(|sum| sum.nats > 0.0), "layer {layer}: {whole:?}");
        for meter in &mut meters {
            let late = meter.measure(&cpu, &model, model.head(), start).unwrap();
            assert_eq!(bits(&late), bits(&whole), "layer {layer}, kept {:?}", meter.kept());
        }
        let together = pair.measure(&other, &model, model.head(), start).unwrap();
        assert_eq!(bits(&together), bits(&whole[1..2]), "layer {layer}, portable on three threads");
        let one = alone.measure(&cpu, &model, model.head(), start).unwrap();
        assert!(one[0].nats < together[0].nats, "one row of the prompt's two");
        if layer % 2 == 0 {
            drop(model.put_layer(layer, aside));
        } else {
            drop(model.set_layer(&cpu, layer, base, &mut &checkpoint).unwrap());
        }
        let again = meters[0].measure(&cpu, &model, model.head(), Start::Embedding).unwrap();
        assert_eq!((bits(&again), &model.recipe), (bits(&first), meters[0].recipe()), "layer {layer} restored");
    }
}

/// The head alone: no layer runs when it is untied, everything when it is the embedding too.
#[test]
fn a_head_is_measured_and_put_back() {
    let cpu = Cpu::new(1);
    for tied in [false, true] {
        let (checkpoint, mut model) = load(&cpu, &folder(Arch::Llama, tied, 2));
        let (rows, prompts) = rows(6);
        let mut meter = Meter::new(&cpu, &model, rows, prompts, settings(1 << 20));
        let base = model.recipe.head.weights;
        let head = model.set_head(&cpu, WeightFormat::new(DType::E4m3), &mut &checkpoint).unwrap();
        let start = Start::of(meter.recipe(), &model.recipe);
        assert_eq!(start, if tied { Start::Embedding } else { Start::Head });
        let sums = meter.measure(&cpu, &model, &head, start).unwrap();
        assert!(sums.iter().all(|sum| sum.nats > 0.0), "{sums:?}");
        let whole = meter.measure(&cpu, &model, &head, Start::Embedding).unwrap();
        assert_eq!(bits(&sums), bits(&whole), "tied: {tied}");
        drop(model.put_head(base, head));
        let again = meter.measure(&cpu, &model, model.head(), Start::Embedding).unwrap();
        assert!(again.iter().all(|sum| sum.nats == 0.0) && model.recipe == *meter.recipe(), "{again:?}");
    }
}

/// Against the definition, in f64, from the logprobs that scoring gives of every id in turn at one position.
#[test]
fn kl_is_that_of_the_definition() {
    let cpu = std::sync::Arc::new(Cpu::new(1));
    let dir = folder(Arch::Llama, true, 2);
    let ids: Vec<u32> = (0..9).map(|i| (i * 5 + 1) % VOCAB).collect();
    let row = |ids: &[u32]| Row::new(ids.to_vec(), ids.len() - 1);
    let (checkpoint, mut model) = load(&cpu, &dir);
    let mut meter = Meter::new(&cpu, &model, vec![row(&ids)], vec![0], settings(1 << 20));
    drop(model.set_layer(&cpu, 1, quantised(&model, 1), &mut &checkpoint).unwrap());
    let got = meter.measure(&cpu, &model, model.head(), Start::Layer(1)).unwrap();

    let distribution = |model: Model| -> Vec<f64> {
        let valid = VOCAB - 1;
        let mut engine = Engine::new(cpu.clone(), model, PAGE_LEN, 70, valid as usize);
        let texts: Vec<ScoreRow> = (0..valid).map(|id| ScoreRow::new([&ids[..8], &[id]].concat())).collect();
        let mut logprobs = vec![f64::NAN; texts.len()];
        score(&mut engine, &texts, Limits::default(), &mut |at, scores| {
            logprobs[at] = f64::from(scores.unwrap().logprobs[7]);
        });
        logprobs
    };
    let (p, q) = (distribution(model), distribution(load(&cpu, &dir).1));
    let want: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
    // Each logprob is right to some 1e-6, and they enter with weights that sum to one.
    assert!(want > 1e-4 && (got[0].nats - want).abs() < 4e-6, "{got:?}, want {want}");
    assert_eq!((got.len(), got[0].tokens), (1, 1));
}

#[test]
fn kept_layers_are_spread_and_end_at_the_last() {
    assert_eq!(kept_layers(4, 0), [0; 0]);
    assert_eq!(kept_layers(4, 1), [3]);
    assert_eq!(kept_layers(5, 2), [2, 4]);
    assert_eq!(kept_layers(3, 9), [0, 1, 2]);
}
