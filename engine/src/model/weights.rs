//! The weights of one version, packed for the kernels in the recipe's formats. One copy: a new version is written over
//! the old one in place.

use ptx::Cpu;
use ptx::ops::linear::Packed;

use crate::checkpoint::{Checkpoint, CheckpointError, EMBEDDING, HEAD};
use crate::config::ModelConfig;
use crate::model::calibrate;
use crate::model::read::{Reader, block_len};
use crate::recipe::{Activations, LayerRecipe, Proj, Recipe, StaticScales, WeightFormat};

/// Where the values of a weights version come from: a checkpoint, or the trainer's master weights.
pub trait WeightSource {
    /// Rows `first ..` of the parameter `name` into `out` (`[rows, row length]`; the rows of a vector are its elements).
    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError>;

    /// The same rows in place, where the source has them as they would be read: nothing is copied then.
    ///
    /// # Errors
    /// As of [`WeightSource::rows`].
    fn stored(&mut self, _name: &str, _first: usize, _rows: usize) -> Result<Option<Stored<'_>>, CheckpointError> {
        Ok(None)
    }

    /// The parameter was read for the last time: its source pages may go.
    fn finished(&mut self, _name: &str) {}

    /// The scales of a layer's keys and values in an e4m3 cache that come with these weights, if any do.
    fn kv_scales(&self, _layer: usize) -> Option<(f32, f32)> {
        None
    }
}

/// Rows of a parameter where their source has them.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// Values.
    F32(&'a [f32]),
    /// Bits of bf16 values.
    Bf16(&'a [u16]),
}

impl WeightSource for &Checkpoint {
    fn stored(&mut self, name: &str, first: usize, rows: usize) -> Result<Option<Stored<'_>>, CheckpointError> {
        Ok(self.finite_bf16_rows(name, first, rows)?.map(Stored::Bf16))
    }

    fn rows(&mut self, name: &str, first: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        self.read_rows(name, first, rows, out)
    }

    fn finished(&mut self, name: &str) {
        self.release(name);
    }

    fn kv_scales(&self, layer: usize) -> Option<(f32, f32)> {
        Checkpoint::kv_scales(self)[layer]
    }
}

/// One decoder layer. Projections are `[outputs, inputs]`.
#[derive(Debug)]
pub struct Layer {
    /// Gain of the norm before attention, `[hidden]`.
    pub attn_norm: Vec<f32>,
    /// Query projection.
    pub q: Packed,
    /// Key projection.
    pub k: Packed,
    /// Value projection.
    pub v: Packed,
    /// Output projection.
    pub o: Packed,
    /// Biases of q, k, v, where the architecture has them.
    pub qkv_bias: Option<[Vec<f32>; 3]>,
    /// Bias of o.
    pub o_bias: Option<Vec<f32>>,
    /// Gains of the norms on each query and key head, `[head_dim]`.
    pub qk_norm: Option<[Vec<f32>; 2]>,
    /// Gain of the norm before the MLP, `[hidden]`.
    pub mlp_norm: Vec<f32>,
    /// Gate projection.
    pub gate: Packed,
    /// Up projection.
    pub up: Packed,
    /// Down projection.
    pub down: Packed,
    /// Biases of gate, up, down.
    pub mlp_bias: Option<[Vec<f32>; 3]>,
    /// Its row of the recipe.
    pub formats: LayerRecipe,
    /// Static scale of the keys, by kv head; 1 where keys are not quantised.
    pub k_scales: Vec<f32>,
    /// Static scale of the values, by kv head.
    pub v_scales: Vec<f32>,
}

/// A model in memory.
#[derive(Debug)]
pub struct Model {
    /// Its architecture.
    pub config: ModelConfig,
    /// The formats of its tensors.
    pub recipe: Recipe,
    /// Embedding table `[vocab, hidden]`; the head too when tied.
    pub embed: Packed,
    /// Decoder layers.
    pub layers: Vec<Layer>,
    /// Gain of the last norm.
    pub norm: Vec<f32>,
    /// Untied head.
    head: Option<Packed>,
    /// Rotary frequencies, `[head_dim / 2]`.
    pub inv_freq: Vec<f32>,
    version: u64,
    /// False while a version is being written, and for good if that failed.
    complete: bool,
}

impl Model {
    /// Loads weights version 0 from a checkpoint; its mapped pages are given back as they are packed.
    pub fn load(cpu: &Cpu, checkpoint: &Checkpoint, recipe: Recipe) -> Result<Model, CheckpointError> {
        let mut model = Model::empty(checkpoint.config().clone(), recipe);
        model.update(cpu, 0, &mut &*checkpoint)?;
        Ok(model)
    }

    /// A model without weights; [`Model::update`] must follow.
    ///
    /// # Panics
    /// When the recipe has another number of layers than the model, or its calibration ids are none of the model's.
    #[must_use]
    pub fn empty(config: ModelConfig, recipe: Recipe) -> Model {
        assert_eq!(config.layers, recipe.layers.len(), "the recipe was resolved for another model");
        if let StaticScales::Calibrated(calibration) = &recipe.static_scales {
            let good = |row: &Vec<u32>| {
                row.len() <= config.max_positions && row.iter().all(|&id| (id as usize) < config.vocab)
            };
            assert!(calibration.rows.iter().all(good), "the recipe's calibration ids are another model's");
        }
        let c = &config;
        let layers = recipe.layers.iter().map(|row| Layer::empty(c, *row));
        Model {
            layers: layers.collect(),
            embed: packed(recipe.embed, c.vocab, c.hidden),
            norm: vec![0.0; c.hidden],
            head: (!c.tied).then(|| packed(recipe.head.weights, c.vocab, c.hidden)),
            inv_freq: c.rope.inv_freq(c.head_dim),
            version: 0,
            complete: false,
            recipe,
            config,
        }
    }

    /// Writes weights version `version` over the present one. A matrix whose input the recipe rounds is itself rounded
    /// to bf16 before it takes its own format, and so are the biases and norm gains beside it: so a folder under such a
    /// recipe and version 0 of a bf16 run have the same bits, in whatever format the folder is.
    ///
    /// The static scales of the KV cache are part of the version and are set here, as the recipe says: from the weights,
    /// from `source`, or by running the model over the recipe's calibration ids.
    ///
    /// # Errors
    /// When a parameter cannot be read, or the KV cache can have no scales. The model then refuses to run until an
    /// update succeeds.
    pub fn update(&mut self, cpu: &Cpu, version: u64, source: &mut dyn WeightSource) -> Result<(), CheckpointError> {
        self.complete = false;
        let mut block = vec![0.0; block_len(&self.config)];
        let mut read = Reader { cpu, source, block: &mut block, version };
        let head = self.recipe.head.activations;
        read.matrix(EMBEDDING, head, &mut self.embed)?;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            read.layer(&self.config, &self.recipe.static_scales, index, layer)?;
        }
        read.vector("model.norm.weight", &[head], &mut self.norm)?;
        if let Some(matrix) = &mut self.head {
            read.matrix(HEAD, head, matrix)?;
        }
        self.calibrate(cpu, version)?;
        self.version = version;
        self.complete = true;
        Ok(())
    }

    /// Gives one layer other formats, read anew from the source of the version it holds, and returns the former layer.
    /// For measuring what a format costs: everything else stays as it is, but for calibrated scales, which depend on every
    /// layer and are set anew.
    ///
    /// # Errors
    /// As [`Model::update`]. If the layer cannot be read it stays as it was.
    pub fn set_layer(
        &mut self,
        cpu: &Cpu,
        index: usize,
        formats: LayerRecipe,
        source: &mut dyn WeightSource,
    ) -> Result<Layer, CheckpointError> {
        self.assert_complete();
        let mut layer = Layer::empty(&self.config, formats);
        let mut block = vec![0.0; block_len(&self.config)];
        let mut read = Reader { cpu, source, block: &mut block, version: self.version };
        read.layer(&self.config, &self.recipe.static_scales, index, &mut layer)?;
        let former = self.replace_layer(index, layer);
        self.calibrate_anew(cpu)?;
        Ok(former)
    }

    /// Puts a layer of this version in the place of another, and returns that one.
    ///
    /// # Panics
    /// When scales are calibrated, since they would have to be anew: use [`Model::set_layer`].
    pub fn put_layer(&mut self, index: usize, layer: Layer) -> Layer {
        self.assert_not_calibrated();
        self.replace_layer(index, layer)
    }

    fn replace_layer(&mut self, index: usize, layer: Layer) -> Layer {
        self.recipe.layers[index] = layer.formats;
        std::mem::replace(&mut self.layers[index], layer)
    }

    /// As [`Model::set_layer`] for the weights of the head, and returns the former ones. A tied head is the embedding too,
    /// so both change. The head's input is rounded as before.
    ///
    /// # Errors
    /// As [`Model::set_layer`].
    pub fn set_head(
        &mut self,
        cpu: &Cpu,
        weights: WeightFormat,
        source: &mut dyn WeightSource,
    ) -> Result<Packed, CheckpointError> {
        self.assert_complete();
        let c = &self.config;
        let mut head = packed(weights, c.vocab, c.hidden);
        let mut block = vec![0.0; block_len(c)];
        let mut read = Reader { cpu, source, block: &mut block, version: self.version };
        read.matrix(if c.tied { EMBEDDING } else { HEAD }, self.recipe.head.activations, &mut head)?;
        let former = self.replace_head(weights, head);
        self.calibrate_anew(cpu)?;
        Ok(former)
    }

    /// Puts a head of this version, in the format `weights`, in the place of another, and returns that one.
    ///
    /// # Panics
    /// When scales are calibrated, since they would have to be anew: use [`Model::set_head`].
    pub fn put_head(&mut self, weights: WeightFormat, head: Packed) -> Packed {
        self.assert_not_calibrated();
        self.replace_head(weights, head)
    }

    fn replace_head(&mut self, weights: WeightFormat, head: Packed) -> Packed {
        self.recipe.head.weights = weights;
        if self.config.tied {
            self.recipe.embed = weights;
        }
        std::mem::replace(self.head.as_mut().unwrap_or(&mut self.embed), head)
    }

    fn assert_not_calibrated(&self) {
        let calibrated = matches!(self.recipe.static_scales, StaticScales::Calibrated(_));
        assert!(!calibrated, "calibrated scales depend on every part of the model");
    }

    /// Sets calibrated scales of the version it holds.
    fn calibrate_anew(&mut self, cpu: &Cpu) -> Result<(), CheckpointError> {
        self.complete = false;
        self.calibrate(cpu, self.version)?;
        self.complete = true;
        Ok(())
    }

    /// Sets calibrated scales, where the recipe has them.
    fn calibrate(&mut self, cpu: &Cpu, version: u64) -> Result<(), CheckpointError> {
        // Out of the model while it runs; what runs looks at the scales alone.
        let scales = std::mem::take(&mut self.recipe.static_scales);
        let set = match &scales {
            StaticScales::Calibrated(calibration) => calibrate::set(cpu, self, calibration),
            StaticScales::Bounds | StaticScales::Checkpoint => Ok(()),
        };
        self.recipe.static_scales = scales;
        set.map_err(|calibrate::NotFinite { layer }| CheckpointError::KvCalibration { layer, version })
    }

    /// The head `[vocab, hidden]`.
    #[must_use]
    pub fn head(&self) -> &Packed {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// The weights version it holds; 0 is the checkpoint as loaded.
    ///
    /// # Panics
    /// When the last update failed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.assert_complete();
        self.version
    }

    /// Bytes of all weights as stored.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down]);
        layers.chain([&self.embed]).chain(&self.head).map(Packed::bytes).sum()
    }

    /// Bytes of all it holds: the matrices, and the vectors in f32. What `crate::plan` promises.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let floats: usize = self.layers.iter().flat_map(Layer::vectors).map(Vec::len).sum();
        self.bytes() + (floats + self.norm.len() + self.inv_freq.len()) * size_of::<f32>()
    }

    /// Gradients are of products whose input is one f32 tensor, as the formats that weights are trained in have it.
    pub(super) fn assert_has_gradients(&self) {
        for (index, layer) in self.layers.iter().enumerate() {
            let kind = layer.formats[Proj::Q].activations;
            let good = layer.formats.projections.iter().all(|p| p.activations == kind) && kind != Activations::E4m3;
            assert!(good, "layer {index}: no gradients with matmul inputs in e4m3 or in several formats");
        }
        assert!(self.recipe.head.activations != Activations::E4m3, "no gradients with e4m3 inputs of the head");
    }

    pub(crate) fn assert_complete(&self) {
        assert!(self.complete, "the last weights update failed: these weights may not be used");
    }
}

/// The head `[vocab, hidden]` alone, with the bits that [`Model::load`] gives it: for whoever gets hidden rows from another
/// process.
///
/// # Errors
/// It cannot be read.
pub fn load_head(cpu: &Cpu, checkpoint: &Checkpoint, recipe: &Recipe) -> Result<Packed, CheckpointError> {
    let c = checkpoint.config();
    let format = if c.tied { recipe.embed } else { recipe.head.weights };
    let mut head = packed(format, c.vocab, c.hidden);
    let mut block = vec![0.0; block_len(c)];
    let mut read = Reader { cpu, source: &mut &*checkpoint, block: &mut block, version: 0 };
    read.matrix(if c.tied { EMBEDDING } else { HEAD }, recipe.head.activations, &mut head)?;
    Ok(head)
}

pub(super) fn packed(format: WeightFormat, n: usize, k: usize) -> Packed {
    Packed::new(format.dtype, format.scale, n, k)
}

impl Layer {
    /// A layer of zeros in these formats.
    pub(super) fn empty(c: &ModelConfig, formats: LayerRecipe) -> Layer {
        let (hidden, ffn) = (c.hidden, c.ffn);
        let (q_len, kv_len) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let matrix = |proj: Proj, n, k| packed(formats[proj].weights, n, k);
        Layer {
            attn_norm: vec![0.0; hidden],
            q: matrix(Proj::Q, q_len, hidden),
            k: matrix(Proj::K, kv_len, hidden),
            v: matrix(Proj::V, kv_len, hidden),
            o: matrix(Proj::O, hidden, q_len),
            qkv_bias: c.qkv_bias.then(|| [vec![0.0; q_len], vec![0.0; kv_len], vec![0.0; kv_len]]),
            o_bias: c.o_bias.then(|| vec![0.0; hidden]),
            qk_norm: c.qk_norm.then(|| [vec![0.0; c.head_dim], vec![0.0; c.head_dim]]),
            mlp_norm: vec![0.0; hidden],
            gate: matrix(Proj::Gate, ffn, hidden),
            up: matrix(Proj::Up, ffn, hidden),
            down: matrix(Proj::Down, hidden, ffn),
            mlp_bias: c.mlp_bias.then(|| [vec![0.0; ffn], vec![0.0; ffn], vec![0.0; hidden]]),
            formats,
            k_scales: vec![1.0; c.kv_heads],
            v_scales: vec![1.0; c.kv_heads],
        }
    }
}

impl Layer {
    /// All that is no matrix.
    fn vectors(&self) -> impl Iterator<Item = &Vec<f32>> {
        let norms = [&self.attn_norm, &self.mlp_norm, &self.k_scales, &self.v_scales];
        let biases = self.qkv_bias.iter().flatten().chain(self.mlp_bias.iter().flatten()).chain(&self.o_bias);
        norms.into_iter().chain(self.qk_norm.iter().flatten()).chain(biases)
    }
}
