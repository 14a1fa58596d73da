//! One weights version on the device. It is made part by part, so that the host never holds the whole of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ptx::cuda::{CudaError, Gpu, Mem, View};
use ptx::ops::linear::cuda::Weights as Matrices;
use ptx::ops::linear::{Packed, WeightScale};
use ptx::{Cpu, DType};

use crate::config::ModelConfig;
use crate::engine::EngineError;
use crate::model::parts::{Part, for_each_empty_part, for_each_part};
use crate::model::{Layer, WeightSource};
use crate::recipe::{Activations, LayerRecipe, Proj, Recipe, WeightFormat};
use crate::versions::{Weights, static_scales};

/// Outputs that matrices with scales by block must be a multiple of to lie behind each other.
const BLOCK_STEP: usize = 16;

/// A model's weights of one version.
#[derive(Debug)]
pub(crate) struct DeviceModel {
    config: Arc<ModelConfig>,
    recipe: Arc<Recipe>,
    /// Which copy it is: versions come and go, memory and what was captured with its addresses stay.
    pub(super) copy: usize,
    pub(super) embed: Matrices,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) norm: Mem<f32>,
    head: Option<Matrices>,
    static_scales: Vec<u32>,
    version: u64,
    complete: bool,
}

/// Weights of one decoder layer.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    pub qkv: Products,
    pub o: Products,
    pub gate_up: Products,
    pub down: Products,
    /// All that is no matrix, in the order of [`Vectors`].
    vectors: Mem<f32>,
    at: Vectors,
}

/// Where in a layer's vectors each begins and how long it is.
#[derive(Clone, Copy, Debug)]
struct Vectors {
    hidden: usize,
    head_dim: usize,
    kv_heads: usize,
    qk_norm: bool,
}

impl Vectors {
    /// What of a vector the device has, each on a multiple of four elements: norms, gains of q and k, scales.
    fn places(&self) -> [(usize, usize); 6] {
        let gain = if self.qk_norm { self.head_dim } else { 0 };
        let mut at = 0;
        [self.hidden, self.hidden, gain, gain, self.kv_heads, self.kv_heads].map(|len| {
            let first = at;
            at += len.next_multiple_of(4);
            (first, len)
        })
    }

    fn len(&self) -> usize {
        let (first, len) = self.places()[5];
        first + len
    }
}

impl DeviceLayer {
    fn vector(&self, index: usize) -> View<f32> {
        let (first, len) = self.at.places()[index];
        self.vectors.view().part(first, len)
    }

    /// Gain of the norm before attention.
    pub fn attn_norm(&self) -> View<f32> {
        self.vector(0)
    }

    /// Gain of the norm before the MLP.
    pub fn mlp_norm(&self) -> View<f32> {
        self.vector(1)
    }

    /// Gains of the norms on each query and key head.
    pub fn qk_norm(&self) -> Option<(View<f32>, View<f32>)> {
        self.at.qk_norm.then(|| (self.vector(2), self.vector(3)))
    }

    /// Static scales of keys, by kv head.
    pub fn k_scales(&self) -> View<f32> {
        self.vector(4)
    }

    /// Static scales of values.
    pub fn v_scales(&self) -> View<f32> {
        self.vector(5)
    }
}

/// The products that share an input: one launch for consecutive ones whose formats agree.
#[derive(Debug)]
pub(super) struct Products {
    pub groups: Vec<Product>,
}

/// Matrices of one format behind each other.
#[derive(Debug)]
pub(super) struct Product {
    pub matrices: Matrices,
    /// What its input is rounded to.
    pub activations: Activations,
    /// Where its outputs begin among those of all the products.
    pub column: usize,
    /// Which of the products it begins with, and how many it has.
    first: usize,
    count: usize,
}

impl Products {
    fn new(
        gpu: &Gpu,
        formats: &LayerRecipe,
        projs: &[Proj],
        matrices: &[&Packed],
        biases: Option<&[&[f32]]>,
    ) -> Result<Products, CudaError> {
        let (mut groups, mut column) = (Vec::new(), 0);
        let outputs: Vec<usize> = matrices.iter().map(|matrix| matrix.n()).collect();
        for run in runs(formats, projs, &outputs) {
            let activations = formats[projs[run.start]].activations;
            let own = &matrices[run.clone()];
            let device = Matrices::new(gpu, own, biases.map(|all| &all[run.clone()]))?;
            let n = device.n();
            groups.push(Product { matrices: device, activations, column, first: run.start, count: run.len() });
            column += n;
        }
        Ok(Products { groups })
    }

    fn update(&self, gpu: &Gpu, matrices: &[&Packed], biases: Option<&[&[f32]]>) -> Result<(), CudaError> {
        for group in &self.groups {
            let own = group.first..group.first + group.count;
            group.matrices.update(gpu, &matrices[own.clone()], biases.map(|all| &all[own]))?;
        }
        Ok(())
    }

    /// Whether one of them takes its input in this format.
    pub fn takes(&self, activations: Activations) -> bool {
        self.groups.iter().any(|group| group.activations == activations)
    }
}

/// Consecutive products that one launch can do.
fn runs(formats: &LayerRecipe, projs: &[Proj], outputs: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for at in 0..projs.len() {
        let joins = at > 0 && {
            let (before, own) = (formats[projs[at - 1]], formats[projs[at]]);
            let by_block = own.weights.dtype == DType::E4m3 && own.weights.scale == WeightScale::Block128;
            // The scale of anything but e4m3 means nothing.
            let same = before.weights.dtype == own.weights.dtype
                && (own.weights.dtype != DType::E4m3 || before.weights.scale == own.weights.scale);
            same && before.activations == own.activations && (!by_block || outputs[at - 1].is_multiple_of(BLOCK_STEP))
        };
        match runs.last_mut().filter(|_| joins) {
            Some(run) => run.end = at + 1,
            None => runs.push(at..at + 1),
        }
    }
    runs
}

/// What a device's weights are written with.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub gpu: Gpu,
    pub cpu: Arc<Cpu>,
    /// Copies made so far.
    pub copies: Arc<AtomicUsize>,
}

/// The parts of a model that is being made.
#[derive(Default)]
struct Parts {
    embed: Option<Matrices>,
    layers: Vec<DeviceLayer>,
    norm: Option<Mem<f32>>,
    head: Option<Matrices>,
    scales: Vec<u32>,
}

impl Parts {
    fn add(&mut self, gpu: &Gpu, config: &ModelConfig, part: Part<'_>) -> Result<(), EngineError> {
        match part {
            Part::Embedding(matrix) => self.embed = Some(Matrices::new(gpu, &[matrix], None)?),
            Part::Layer(_, layer) => {
                self.layers.push(DeviceLayer::new(gpu, config, layer)?);
                self.scales.extend(static_scales(layer));
            }
            Part::Norm(gain) => self.norm = Some(gpu.upload(gain)?),
            Part::Head(matrix) => self.head = Some(Matrices::new(gpu, &[matrix], None)?),
        }
        Ok(())
    }

    /// All of them, not yet any version.
    fn model(self, to: &Writer, config: Arc<ModelConfig>, recipe: Arc<Recipe>) -> DeviceModel {
        let Parts { embed, layers, norm, head, scales } = self;
        DeviceModel {
            config,
            recipe,
            copy: to.copies.fetch_add(1, Ordering::Relaxed),
            embed: embed.expect("a model has an embedding"),
            layers,
            norm: norm.expect("a model has a last norm"),
            head,
            static_scales: scales,
            version: 0,
            complete: false,
        }
    }
}

impl DeviceModel {
    /// Weights version `version` from `source`.
    pub fn new(
        to: &Writer,
        config: Arc<ModelConfig>,
        recipe: Arc<Recipe>,
        version: u64,
        source: &mut dyn WeightSource,
    ) -> Result<DeviceModel, EngineError> {
        let mut parts = Parts::default();
        for_each_part(&to.cpu, &config, &recipe, version, source, &mut |part| parts.add(&to.gpu, &config, part))?;
        Ok(DeviceModel { version, complete: true, ..parts.model(to, config, recipe) })
    }

    /// The head `[vocab, hidden]`.
    pub fn head(&self) -> &Matrices {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    pub fn assert_complete(&self) {
        assert!(self.complete, "the last weights update failed: these weights may not be used");
    }
}

impl Weights for DeviceModel {
    type Device = Writer;

    fn version(&self) -> u64 {
        self.assert_complete();
        self.version
    }

    fn room(&self, to: &Writer) -> Result<DeviceModel, EngineError> {
        let (config, recipe) = (Arc::clone(&self.config), Arc::clone(&self.recipe));
        let mut parts = Parts::default();
        for_each_empty_part(&config, &recipe, &mut |part| parts.add(&to.gpu, &config, part))?;
        Ok(parts.model(to, config, recipe))
    }

    fn write(&mut self, to: &Writer, version: u64, source: &mut dyn WeightSource) -> Result<(), EngineError> {
        self.complete = false;
        let Writer { gpu, cpu, .. } = to;
        let mut scales = Vec::with_capacity(self.static_scales.len());
        let DeviceModel { config, recipe, embed, layers, norm, head, .. } = self;
        for_each_part(cpu, config, recipe, version, source, &mut |part| {
            match part {
                Part::Embedding(matrix) => embed.update(gpu, &[matrix], None)?,
                Part::Layer(index, layer) => {
                    layers[index].update(gpu, layer)?;
                    scales.extend(static_scales(layer));
                }
                Part::Norm(gain) => gpu.write(norm.view(), gain)?,
                Part::Head(matrix) => {
                    head.as_ref().expect("it has a head of its own").update(gpu, &[matrix], None)?;
                }
            }
            Ok(())
        })?;
        self.static_scales = scales;
        self.version = version;
        self.complete = true;
        Ok(())
    }

    fn static_scales(&self) -> Vec<u32> {
        self.static_scales.clone()
    }
}

impl DeviceModel {
    /// Bytes of each allocation of a version.
    pub fn sizes(c: &ModelConfig, recipe: &Recipe) -> Vec<usize> {
        let table = |format: WeightFormat| Matrices::sizes_for(format.dtype, format.scale, &[c.vocab], c.hidden, false);
        let mut sizes = table(recipe.embed).to_vec();
        for formats in &recipe.layers {
            sizes.extend(DeviceLayer::sizes(c, formats));
        }
        sizes.push(c.hidden * size_of::<f32>());
        sizes.extend(if c.tied { [0; 3] } else { table(recipe.head.weights) });
        sizes
    }
}

impl Vectors {
    fn of(c: &ModelConfig) -> Vectors {
        Vectors { hidden: c.hidden, head_dim: c.head_dim, kv_heads: c.kv_heads, qk_norm: c.qk_norm }
    }
}

impl DeviceLayer {
    fn sizes(c: &ModelConfig, formats: &LayerRecipe) -> Vec<usize> {
        let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut sizes = Vec::new();
        for (projs, outputs, k, bias) in [
            (&QKV[..], &[q_len, kv_len, kv_len][..], c.hidden, c.qkv_bias),
            (&[Proj::O], &[c.hidden], q_len, c.o_bias),
            (&GATE_UP, &[c.ffn, c.ffn], c.hidden, c.mlp_bias),
            (&[Proj::Down], &[c.hidden], c.ffn, c.mlp_bias),
        ] {
            for run in runs(formats, projs, outputs) {
                let format = formats[projs[run.start]].weights;
                sizes.extend(Matrices::sizes_for(format.dtype, format.scale, &outputs[run], k, bias));
            }
        }
        sizes.push(Vectors::of(c).len() * size_of::<f32>());
        sizes
    }

    fn new(gpu: &Gpu, c: &ModelConfig, l: &Layer) -> Result<DeviceLayer, CudaError> {
        let at = Vectors::of(c);
        let f = &l.formats;
        let qkv_bias = l.qkv_bias.as_ref().map(|b| b.each_ref().map(|b| &b[..]));
        let mlp_bias = l.mlp_bias.as_ref().map(|b| b.each_ref().map(|b| &b[..]));
        let o_bias = l.o_bias.as_ref().map(|b| [&b[..]]);
        let layer = DeviceLayer {
            qkv: Products::new(gpu, f, &QKV, &[&l.q, &l.k, &l.v], qkv_bias.as_ref().map(|b| &b[..]))?,
            o: Products::new(gpu, f, &[Proj::O], &[&l.o], o_bias.as_ref().map(|b| &b[..]))?,
            gate_up: Products::new(gpu, f, &GATE_UP, &[&l.gate, &l.up], mlp_bias.as_ref().map(|b| &b[..2]))?,
            down: Products::new(gpu, f, &[Proj::Down], &[&l.down], mlp_bias.as_ref().map(|b| &b[2..]))?,
            vectors: gpu.alloc(at.len())?,
            at,
        };
        layer.write_vectors(gpu, l)?;
        Ok(layer)
    }

    fn update(&self, gpu: &Gpu, l: &Layer) -> Result<(), CudaError> {
        let qkv_bias = l.qkv_bias.as_ref().map(|b| b.each_ref().map(|b| &b[..]));
        let mlp_bias = l.mlp_bias.as_ref().map(|b| b.each_ref().map(|b| &b[..]));
        let o_bias = l.o_bias.as_ref().map(|b| [&b[..]]);
        self.qkv.update(gpu, &[&l.q, &l.k, &l.v], qkv_bias.as_ref().map(|b| &b[..]))?;
        self.o.update(gpu, &[&l.o], o_bias.as_ref().map(|b| &b[..]))?;
        self.gate_up.update(gpu, &[&l.gate, &l.up], mlp_bias.as_ref().map(|b| &b[..2]))?;
        self.down.update(gpu, &[&l.down], mlp_bias.as_ref().map(|b| &b[2..]))?;
        self.write_vectors(gpu, l)
    }

    fn write_vectors(&self, gpu: &Gpu, l: &Layer) -> Result<(), CudaError> {
        let [q, k] = l.qk_norm.as_ref().map_or([&[][..], &[][..]], |gains| gains.each_ref().map(|gain| &gain[..]));
        let mut all = vec![0.0; self.at.len()];
        let vectors = [&l.attn_norm[..], &l.mlp_norm, q, k, &l.k_scales, &l.v_scales];
        for ((first, len), vector) in self.at.places().into_iter().zip(vectors) {
            all[first..first + len].copy_from_slice(vector);
        }
        gpu.write(self.vectors.view(), &all)
    }
}

const QKV: [Proj; 3] = [Proj::Q, Proj::K, Proj::V];
const GATE_UP: [Proj; 2] = [Proj::Gate, Proj::Up];
