//! What each kind of noise does to D, on rows of a small random model in f32.

use engine::checkpoint::Checkpoint;
use engine::config::Arch;
use engine::model::Model;
use engine::recipe::{Precision, Recipe};
use ptx::Cpu;
use ptx::ops::linear::{self, Job};
use tempfile::TempDir;

use super::*;
use crate::learner::{Learner, Views};
use crate::loss::{Logits, Objective};
use crate::meter::tests::{VOCAB, folder, rows};
use crate::meter::{Meter, MeterSettings, Start};
use crate::sequences::Row;
use crate::side::Side;

const VALID: usize = VOCAB as usize - 1;

struct Bench {
    cpu: Cpu,
    _dir: TempDir,
    checkpoint: Checkpoint,
    master: Master,
    plain: Model,
    rows: Vec<Row>,
    meter: Meter,
}

impl Bench {
    fn new() -> Bench {
        let (cpu, dir) = (Cpu::new(2), folder(Arch::Qwen3, false, 2));
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let master = Master::load(&checkpoint, Precision::F32).unwrap();
        let plain = Model::load(&cpu, &checkpoint, recipe(&checkpoint, "f32")).unwrap();
        let (mut rows, prompts) = rows(12);
        let ids = rows.iter_mut().flat_map(|row| &mut row.ids);
        ids.filter(|id| **id as usize >= VALID).for_each(|id| *id = 0);
        let settings = MeterSettings { valid: VALID, temperature: 1.0, stream_bytes: 0 };
        let meter = Meter::new(&cpu, &plain, rows.clone(), prompts, settings);
        Bench { cpu, _dir: dir, checkpoint, master, plain, rows, meter }
    }

    /// The rollout's model at a version under some noises, one on the other.
    fn model(&self, name: &str, version: u64, noises: &[&Injected]) -> Model {
        let mut model = Model::empty(self.checkpoint.config().clone(), recipe(&self.checkpoint, name));
        let plain: Box<dyn WeightSource> = Box::new(self.master.version(&self.cpu));
        let mut source = noises.iter().fold(plain, |inner, noise| {
            let how = noise.disturbance(version).expect("noise on weights");
            Box::new(Disturbed::new(Inner(inner), &self.master.weights, how))
        });
        model.update(&self.cpu, version, &mut *source).unwrap();
        model
    }

    fn d(&mut self, variant: &Model) -> f64 {
        let sums = self.meter.measure(&self.cpu, variant, self.plain.head(), Start::Embedding).unwrap();
        sums.iter().map(|sum| sum.nats).sum::<f64>() / sums.iter().map(|sum| sum.tokens as f64).sum::<f64>()
    }

    /// D under noise on logits, as `train` measures it, and the rollout's logprobs of the rows' own tokens.
    fn d_logits(&self, noise: LogitNoise, temperature: f32) -> (f64, Vec<f32>) {
        let tokens: usize = self.rows.iter().map(|row| row.ids.len()).sum();
        let mut side = Side::new(&self.plain, tokens, self.rows.len());
        side.run(&self.cpu, &self.plain, &self.rows);
        let keys: Vec<u64> = self.rows.iter().flat_map(|row| noise.keys(&row.ids, row.prompt)).collect();
        let inv_temp = 1.0 / temperature;
        let behaviour = Some(Logits::Noised { view: side.view(&self.plain), noise, keys: &keys, inv_temp });
        let mut learner = Learner::new(&self.plain, tokens, self.rows.len());
        let views = Views { behaviour, ..Views::default() };
        let objective = Objective::Logprobs { inv_temp };
        learner.micro_batch(&self.cpu, &self.plain, objective, &self.rows, views, VALID, 0.0, false).unwrap();
        let by_row = learner.by_row;
        (by_row.mismatch.iter().sum::<f64>() / by_row.mismatch.len() as f64, by_row.behaviour)
    }

    /// ln p `[predicting, valid]` of a model at the completions' places, in f64.
    fn logprobs(&self, model: &Model) -> Vec<Vec<f64>> {
        let tokens: usize = self.rows.iter().map(|row| row.ids.len()).sum();
        let mut side = Side::new(model, tokens, self.rows.len());
        side.run(&self.cpu, model, &self.rows);
        let (head, vocab) = (model.head(), VOCAB as usize);
        let count = side.hidden.len() / head.k();
        let mut logits = vec![0.0; count * vocab];
        linear::forward(&self.cpu, count, &side.hidden, &mut [Job { w: head, bias: None, y: &mut logits }]);
        let row = |logits: &[f32]| {
            let z: Vec<f64> = logits[..VALID].iter().map(|&z| f64::from(z)).collect();
            let lse = z.iter().map(|z| z.exp()).sum::<f64>().ln();
            z.iter().map(|z| z - lse).collect()
        };
        logits.chunks_exact(vocab).map(row).collect()
    }
}

/// A source in a box is a source.
struct Inner<'a>(Box<dyn WeightSource + 'a>);

impl WeightSource for Inner<'_> {
    fn rows(
        &mut self,
        name: &str,
        first: usize,
        rows: usize,
        out: &mut [f32],
    ) -> Result<(), engine::checkpoint::CheckpointError> {
        self.0.rows(name, first, rows, out)
    }
}

fn recipe(checkpoint: &Checkpoint, name: &str) -> Recipe {
    Recipe::built_in(name, Precision::F32, checkpoint.config()).unwrap()
}

fn noise(kind: NoiseKind, draw: NoiseDraw, sigma: f64) -> Injected {
    Injected::new(Noise { kind, draw: Some(draw), sigma: Some(sigma), ..Noise::default() }, 7)
}

/// The slope of ln D over ln sigma by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let logs: Vec<(f64, f64)> = points.iter().map(|&(sigma, d)| (sigma.ln(), d.ln())).collect();
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let xy: f64 = logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    xy / logs.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>()
}

#[test]
fn d_grows_with_the_square_of_sigma() {
    let mut bench = Bench::new();
    for kind in [NoiseKind::Weights, NoiseKind::NormGains] {
        let points = [0.002, 0.004, 0.008, 0.016].map(|sigma| {
            let model = bench.model("f32", 3, &[&noise(kind, NoiseDraw::Fresh, sigma)]);
            (sigma, bench.d(&model))
        });
        println!("{kind:?}: {points:?}");
        assert!((slope(&points) - 2.0).abs() < 0.1 && points[3].1 > 1e-4, "{kind:?}: {points:?}");
    }
    let points = [0.01, 0.03, 0.1, 0.2].map(|sigma| {
        let noise = noise(NoiseKind::Logits, NoiseDraw::Fresh, sigma).logits(3).unwrap();
        (sigma, bench.d_logits(noise, 1.0).0)
    });
    println!("Logits: {points:?}");
    assert!((slope(&points) - 2.0).abs() < 0.1, "{points:?}");
    // Half the variance of ln p under p: less than half of sigma squared, since one token's noise is partly normalised away.
    assert!((0.25..=0.5).contains(&(points[1].1 / points[1].0.powi(2))), "{points:?}");
    // At another temperature the deviation of ln p is the same.
    let noise = noise(NoiseKind::Logits, NoiseDraw::Fresh, 0.03).logits(3).unwrap();
    let warm = bench.d_logits(noise, 2.0).0;
    assert!((0.25..=0.5).contains(&(warm / 0.03_f64.powi(2))), "{warm}");
}

/// Independent sources add: their cross term vanishes in the mean over draws, whatever it is in one of them.
#[test]
fn two_sources_add_up() {
    let mut bench = Bench::new();
    let (a, b) =
        (noise(NoiseKind::Weights, NoiseDraw::Fresh, 0.01), noise(NoiseKind::NormGains, NoiseDraw::Fresh, 0.04));
    let (mut alone, mut together, mut quantised, mut both) = ([0.0; 2], 0.0, 0.0, 0.0);
    let draws = 12;
    for version in 0..draws {
        let models = [bench.model("f32", version, &[&a]), bench.model("f32", version, &[&b])];
        for (sum, model) in alone.iter_mut().zip(&models) {
            *sum += bench.d(model) / f64::from(u32::try_from(draws).unwrap());
        }
        let n = f64::from(u32::try_from(draws).unwrap());
        let model = bench.model("f32", version, &[&a, &b]);
        together += bench.d(&model) / n;
        let model = bench.model("fp8", version, &[&a]);
        both += bench.d(&model) / n;
        if version == 0 {
            let model = bench.model("fp8", version, &[]);
            quantised = bench.d(&model);
        }
    }
    let cases = [("weights and gains", alone[0], alone[1], together), ("weights and fp8", alone[0], quantised, both)];
    for (what, one, other, sum) in cases {
        let cross = sum - one - other;
        println!("{what}: {one:.3e} + {other:.3e} = {sum:.3e}, cross term {cross:+.1e}, {:+.1} %", 100.0 * cross / sum);
        assert!(one > 0.05 * other && other > 0.05 * one, "{what}: {one} and {other} are too unequal to say anything");
        assert!(cross.abs() < 0.2 * (one + other), "{what}: {one} + {other} against {sum}");
    }
}

/// The coherence share: what two versions' errors have in common, over all of it.
#[test]
fn frozen_noise_is_coherent_and_fresh_noise_is_not() {
    let bench = Bench::new();
    let plain = bench.logprobs(&bench.plain);
    let share = |draw: NoiseDraw| {
        let noise = noise(NoiseKind::Weights, draw, 0.01);
        let [one, other] = [4, 9].map(|version| bench.logprobs(&bench.model("f32", version, &[&noise])));
        let (mut common, mut all) = (0.0, 0.0);
        for ((p, a), b) in plain.iter().zip(&one).zip(&other) {
            let mean = |x: &[f64]| p.iter().zip(x).map(|(p, x)| p.exp() * (x - p)).sum::<f64>();
            let (ma, mb) = (mean(a), mean(b));
            for ((p, a), b) in p.iter().zip(a).zip(b) {
                let (da, db) = (a - p - ma, b - p - mb);
                common += p.exp() * da * db;
                all += p.exp() * (da * da + db * db) / 2.0;
            }
        }
        common / all
    };
    let (frozen, fresh) = (share(NoiseDraw::Frozen), share(NoiseDraw::Fresh));
    println!("coherence share: frozen {frozen}, fresh {fresh}");
    assert!(frozen > 0.999 && fresh.abs() < 0.2, "frozen {frozen}, fresh {fresh}");
}

/// Noise is where it belongs, whichever rows are read, and nowhere else.
#[test]
fn only_what_is_named_is_disturbed() {
    let bench = Bench::new();
    let weights = &bench.master.weights;
    for (gains, kind) in [(false, NoiseKind::Weights), (true, NoiseKind::NormGains)] {
        let noise = noise(kind, NoiseDraw::Frozen, 0.1);
        let how = noise.disturbance(0).unwrap();
        assert_eq!((how.gains, how), (gains, noise.disturbance(5).unwrap()), "frozen");
        let mut source = Disturbed::new(bench.master.version(&bench.cpu), weights, how);
        for (index, param) in weights.params().iter().enumerate() {
            let before = weights.tensor(index);
            let (rows, mut whole) = (param.shape[0], before.to_vec());
            let width = before.len() / rows;
            source.rows(&param.name, 0, rows, &mut whole).unwrap();
            let is_gain = param.name.ends_with("norm.weight");
            let touched = if gains { is_gain } else { param.shape.len() > 1 };
            assert_eq!(before != whole, touched, "{kind:?}: {}", param.name);
            if touched {
                let rms = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                let share = rms(&mut before.iter().zip(&whole).map(|(a, b)| a - b)) / rms(&mut before.iter().copied());
                // Relative standard error of a root mean square: 1 / sqrt(2 n); four and a half of it.
                let allowed = 4.5 / (2.0 * before.len() as f64).sqrt();
                assert!((share / 0.1 - 1.0).abs() < allowed, "{}: {share}", param.name);
            }
            for first in 0..rows.min(5) {
                let mut part = vec![0.0; (rows - first) * width];
                source.rows(&param.name, first, rows - first, &mut part).unwrap();
                assert_eq!(part, whole[first * width..], "{} from row {first} on", param.name);
            }
        }
    }
}

#[test]
fn stale_versions_are_kept_as_long_as_they_are_needed() {
    let bench = Bench::new();
    let mut master = bench.master.clone();
    let spec = Noise { kind: NoiseKind::Staleness, staleness: Some(2), ..Noise::default() };
    let mut noise = Injected::new(spec, 0);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (version, mut source) = noise.source(&master, &bench.cpu);
        let mut gain = [0.0];
        source.rows("model.norm.weight", 0, 1, &mut gain).unwrap();
        seen.push((master.updates, version, gain[0]));
        let kept: Vec<u64> = noise.past().map(|(version, _)| *version).collect();
        assert_eq!(kept, noise.past_versions(master.updates).collect::<Vec<_>>());
        drop(source);
        noise.retain(&master);
        master.updates += 1;
        let at = master.weights.params().iter().position(|p| p.name == "model.norm.weight").unwrap();
        master.weights.tensor_mut(at)[0] = 10.0 * master.updates as f32;
    }
    let first = seen[0].2;
    assert_eq!(seen, [(0, 0, first), (1, 0, first), (2, 0, first), (3, 1, 10.0), (4, 2, 20.0)]);
}
