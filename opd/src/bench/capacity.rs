//! What a KV pool holds: a plan, from the configuration alone.

use engine::config::ModelConfig;
use engine::plan::{Memory, Plan, PlanError, Settings};
use engine::recipe::Recipe;
use serde_json::{Value, json};

/// What a KV pool holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// The plan.
    pub plan: Plan,
    /// Sequences of the planned length that it holds at a time; 0 where not one fits.
    pub sequences: usize,
    /// Tokens over those of keys and values in bf16 in the same bytes; none where those have no page.
    pub ratio_kv: Option<f64>,
}

impl Capacity {
    /// What `memory` holds.
    ///
    /// # Errors
    /// When the memory does not even hold the weights, or a length is beyond the model's context.
    pub fn new(
        config: &ModelConfig,
        recipe: &Recipe,
        settings: Settings,
        memory: Memory,
    ) -> Result<Capacity, PlanError> {
        let plan = Plan::new(config, recipe, settings, memory)?;
        let sequences = plan.layout.sequences(plan.capacity.pages, settings.length.max(1));
        Ok(Capacity { sequences, ratio_kv: plan.layout.ratio_to_bf16(plan.pool), plan })
    }

    /// As results have it.
    #[must_use]
    pub fn json(&self) -> Value {
        let Capacity { plan, sequences, ratio_kv } = self;
        json!({
            "kv_bytes": plan.pool, "weights_bytes": plan.weights.total(), "workspace_bytes": plan.workspace.total(),
            "memory_bytes": plan.total(), "page_len": plan.layout.page_len(), "page_bytes": plan.layout.page_bytes(),
            "bytes_per_token": plan.layout.token_bytes_total(), "pages": plan.capacity.pages,
            "tokens": plan.capacity.tokens, "ratio_kv": ratio_kv, "length": plan.settings.length, "max_batch": sequences,
        })
    }
}
