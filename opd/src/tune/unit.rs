//! What a recipe quantises or leaves: one matrix, the keys or the values of a layer, the head.

use engine::config::ModelConfig;
use engine::engine::{PAGE_LEN, kv_shapes};
use engine::recipe::{Activations, Proj, Recipe, WeightFormat};
use kv::Layout;
use ptx::DType;
use ptx::kv_tile::KvScale;
use ptx::ops::linear::Packed;

/// A part of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A matrix, to e4m3 with a scale by channel; its input is rounded as before.
    Matrix(Proj),
    /// The cached keys, to e4m3 with static scales.
    Keys,
    /// The cached values, likewise.
    Values,
}

/// What is quantised or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A part of a decoder layer.
    Layer {
        /// Which layer.
        layer: usize,
        /// Which part.
        kind: Kind,
    },
    /// The head's weights, to e4m3 with a scale by channel. A tied head is the embedding too, and both change.
    Head,
}

/// Which units are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Keys and values.
    Kv,
    /// Matrices and the head.
    Weights,
    /// All of them.
    All,
}

impl Kind {
    /// All, in the order of a layer.
    pub const ALL: [Kind; 9] = [
        Kind::Matrix(Proj::Q),
        Kind::Matrix(Proj::K),
        Kind::Matrix(Proj::V),
        Kind::Keys,
        Kind::Values,
        Kind::Matrix(Proj::O),
        Kind::Matrix(Proj::Gate),
        Kind::Matrix(Proj::Up),
        Kind::Matrix(Proj::Down),
    ];

    /// As in recipes: `q_proj`, ..., `k`, `v`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Matrix(proj) => proj.name(),
            Kind::Keys => "k",
            Kind::Values => "v",
        }
    }

    fn is_kv(self) -> bool {
        matches!(self, Kind::Keys | Kind::Values)
    }
}

impl Unit {
    /// The layer; none of the head.
    #[must_use]
    pub fn layer(self) -> Option<usize> {
        match self {
            Unit::Layer { layer, .. } => Some(layer),
            Unit::Head => None,
        }
    }

    /// The kind's name, or `head`.
    #[must_use]
    pub fn kind_name(self) -> &'static str {
        match self {
            Unit::Layer { kind, .. } => kind.name(),
            Unit::Head => "head",
        }
    }

    /// Whether it lies in the KV cache.
    #[must_use]
    pub fn is_kv(self) -> bool {
        matches!(self, Unit::Layer { kind, .. } if kind.is_kv())
    }

    /// Quantises it in `recipe`.
    pub fn quantise(self, recipe: &mut Recipe, tied: bool) {
        let weights = WeightFormat::new(DType::E4m3);
        match self {
            Unit::Layer { layer, kind } => {
                let row = &mut recipe.layers[layer];
                match kind {
                    Kind::Matrix(proj) => row[proj].weights = weights,
                    Kind::Keys => row.k = DType::E4m3,
                    Kind::Values => row.v = DType::E4m3,
                }
                if kind.is_kv() {
                    row.kv_scale = KvScale::Static;
                }
            }
            Unit::Head => {
                recipe.head.weights = weights;
                if tied {
                    recipe.embed = weights;
                }
            }
        }
    }
}

impl std::fmt::Display for Unit {
    /// As in the patterns of a recipe, with the key behind it for keys and values: `layers.3.mlp.down_proj`,
    /// `layers.3.k`, `lm_head`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unit::Layer { layer, kind: Kind::Matrix(proj) } => {
                write!(f, "layers.{layer}.{}.{}", proj.module(), proj.name())
            }
            Unit::Layer { layer, kind } => write!(f, "layers.{layer}.{}", kind.name()),
            Unit::Head => f.write_str("lm_head"),
        }
    }
}

/// The units of a model with `layers` layers, layer by layer, the head last.
#[must_use]
pub fn units(layers: usize, which: Which) -> Vec<Unit> {
    let wanted = |kind: &Kind| match which {
        Which::All => true,
        Which::Kv => kind.is_kv(),
        Which::Weights => !kind.is_kv(),
    };
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(wanted).collect();
    let of_layer = |layer| kinds.iter().map(move |&kind| Unit::Layer { layer, kind });
    (0..layers).flat_map(of_layer).chain((which != Which::Kv).then_some(Unit::Head)).collect()
}

/// `base` with some units quantised, under the name `name`.
#[must_use]
pub fn with_units(base: &Recipe, config: &ModelConfig, units: impl IntoIterator<Item = Unit>, name: &str) -> Recipe {
    let mut recipe = Recipe { name: name.to_owned(), ..base.clone() };
    units.into_iter().for_each(|unit| unit.quantise(&mut recipe, config.tied));
    recipe
}

/// `base` without the rounding of matmul inputs, keys and values to bf16: what single units are measured against.
///
/// Under that rounding a change however small, anywhere, turns over roundings in every layer after it. This costs about
/// the same whatever the change, once for a whole recipe, and would be charged to every unit anew: costs would not add
/// up, and the cheap units would look alike.
#[must_use]
pub fn unrounded(base: &Recipe) -> Recipe {
    let mut recipe = base.clone();
    recipe.head.activations = Activations::F32;
    for row in &mut recipe.layers {
        row.projections.iter_mut().for_each(|p| p.activations = Activations::F32);
        (row.k, row.v) = (DType::F32, DType::F32);
    }
    recipe
}

/// Bytes of a KV page over all layers, of [`PAGE_LEN`] tokens.
#[must_use]
pub fn page_bytes(config: &ModelConfig, recipe: &Recipe) -> u64 {
    Layout::new(kv_shapes(config, recipe, PAGE_LEN)).page_bytes() as u64
}

/// What quantising `unit` saves: bytes of weights, and bytes of a KV page of [`PAGE_LEN`] tokens.
#[must_use]
pub fn saved(config: &ModelConfig, base: &Recipe, unit: Unit) -> (u64, u64) {
    let recipe = with_units(base, config, [unit], "");
    let matrix = |r: &Recipe| match unit {
        Unit::Layer { layer, kind: Kind::Matrix(proj) } => r.layers[layer][proj].weights,
        _ => r.head.weights,
    };
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let (n, k) = match unit {
        Unit::Layer { kind: Kind::Matrix(proj), .. } => match proj {
            Proj::Q => (q, config.hidden),
            Proj::K | Proj::V => (kv, config.hidden),
            Proj::O => (config.hidden, q),
            Proj::Gate | Proj::Up => (config.ffn, config.hidden),
            Proj::Down => (config.hidden, config.ffn),
        },
        Unit::Head => (config.vocab, config.hidden),
        Unit::Layer { .. } => return (0, page_bytes(config, base).saturating_sub(page_bytes(config, &recipe))),
    };
    // Only what is written takes memory.
    let bytes = |r: &Recipe| Packed::new(matrix(r).dtype, matrix(r).scale, n, k).bytes() as u64;
    (bytes(base).saturating_sub(bytes(&recipe)), 0)
}
