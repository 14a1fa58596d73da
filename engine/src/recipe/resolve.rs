//! From what a file says to the table: defaults, then entries in order, then a check that every scale has an effect.

use ptx::DType;
use ptx::kv_tile::KvScale;

use super::file::{Entry, Formats, Given, Origin, Reader, Written};
use super::{Activations, LayerRecipe, Proj, Projection, Recipe, RecipeError, StaticScales, WeightFormat};

impl Reader<'_> {
    /// The table of a file, under a name.
    pub fn resolve(&self, written: &Written, name: &str) -> Result<Recipe, RecipeError> {
        let base = &written.default;
        let mut whole = LayerRecipe {
            projections: [Projection { weights: WeightFormat::new(DType::Bf16), activations: Activations::Bf16 }; 7],
            k: DType::Bf16,
            v: DType::Bf16,
            kv_scale: KvScale::Static,
        };
        let mut origin = Origin::Static;
        base.apply_to(&Proj::ALL, &mut whole, &mut origin);
        let matmuls = |p: &Projection| p.weights.dtype == DType::F32 && p.activations == Activations::F32;
        let f32_all = matmuls(&whole.projections[0]) && [whole.k, whole.v] == [DType::F32; 2];
        let plain = if f32_all { DType::F32 } else { DType::Bf16 };

        let mut rows = vec![(whole, origin); self.config.layers];
        for Entry { pattern, formats } in &written.entries {
            for (row, origin) in &mut rows[pattern.layers.clone()] {
                formats.apply_to(pattern.projections, row, origin);
            }
        }
        let mut head = Projection {
            weights: WeightFormat { dtype: plain, ..whole.projections[0].weights },
            ..whole.projections[0]
        };
        written.lm_head.apply_to_one(&mut head);
        self.check_scales_matter(written, &rows, head)?;
        let static_scales = self.static_scales(written, &rows)?;

        let tidy = |weights: &mut WeightFormat| {
            if weights.dtype != DType::E4m3 {
                *weights = WeightFormat::new(weights.dtype);
            }
        };
        tidy(&mut head.weights);
        for (row, origin) in &mut rows {
            row.projections.iter_mut().for_each(|p| tidy(&mut p.weights));
            let token = row.has_8bit_cache() && *origin == Origin::Token;
            row.kv_scale = if token { KvScale::Token } else { KvScale::Static };
        }
        let embed = if self.config.tied { head.weights } else { WeightFormat::new(plain) };
        let layers = rows.into_iter().map(|(row, _)| row).collect();
        Ok(Recipe { name: name.to_owned(), layers, embed, head, static_scales })
    }

    /// Refuses scales that were given where, in the end, nothing has one.
    fn check_scales_matter(
        &self,
        written: &Written,
        rows: &[(LayerRecipe, Origin)],
        head: Projection,
    ) -> Result<(), RecipeError> {
        let is_e4m3 = |p: &Projection| p.weights.dtype == DType::E4m3;
        let any = is_e4m3(&head) || rows.iter().any(|(row, _)| row.projections.iter().any(is_e4m3));
        if let Some(scale) = written.default.weights_scale.filter(|_| !any) {
            return Err(self.misplaced(
                "default.weights_scale",
                scale.byte,
                "only e4m3 weights have a scale, and none are",
            ));
        }
        if let Some(scale) = written.lm_head.weights_scale.filter(|_| !is_e4m3(&head)) {
            let reason = format!("only e4m3 weights have a scale, and the head's are {}", head.weights.dtype);
            return Err(self.misplaced("lm_head.weights_scale", scale.byte, &reason));
        }
        for Entry { pattern, formats } in &written.entries {
            let mut covered = rows[pattern.layers.clone()].iter().map(|(row, _)| row);
            let e4m3 = |row: &LayerRecipe| pattern.projections.iter().any(|&proj| is_e4m3(&row[proj]));
            if let Some(scale) = formats.weights_scale.filter(|_| !covered.clone().any(e4m3)) {
                let reason = "only e4m3 weights have a scale, and none that the entry covers are";
                return Err(self.misplaced("layer.weights_scale", scale.byte, reason));
            }
            if let Some(scale) = formats.kv_scale.filter(|_| !covered.any(LayerRecipe::has_8bit_cache)) {
                let reason = "only 8-bit keys and values have a scale, and none that the entry covers are";
                return Err(self.misplaced("layer.kv_scale", scale.byte, reason));
            }
        }
        Ok(())
    }

    /// Where static scales come from, if any layer has them.
    fn static_scales(&self, written: &Written, rows: &[(LayerRecipe, Origin)]) -> Result<StaticScales, RecipeError> {
        let first = |wanted: Origin| rows.iter().position(|(row, origin)| row.has_8bit_cache() && *origin == wanted);
        let file = || self.file.display().to_string();
        match (first(Origin::Static), first(Origin::Checkpoint), &written.calibration) {
            (Some(computed), Some(checkpoint), _) => Err(RecipeError::TwoOrigins { at: file(), checkpoint, computed }),
            (None, checkpoint, Some(calibration)) => {
                let reason = match checkpoint {
                    Some(_) => "the static scales are the checkpoint's; remove the table, or set kv_scale = \"static\"",
                    None => "no layer has 8-bit keys or values with kv_scale = \"static\"",
                };
                Err(self.misplaced("calibration", calibration.byte, reason))
            }
            (Some(_), None, Some(calibration)) => Ok(StaticScales::Calibrated(calibration.value.clone())),
            (None, Some(_), None) => Ok(StaticScales::Checkpoint),
            (_, None, None) => Ok(StaticScales::Bounds),
        }
    }
}

impl Formats {
    fn apply_to(&self, projections: &[Proj], row: &mut LayerRecipe, origin: &mut Origin) {
        for &proj in projections {
            self.apply_to_one(&mut row[proj]);
        }
        set(&mut row.k, self.k);
        set(&mut row.v, self.v);
        set(origin, self.kv_scale);
    }

    fn apply_to_one(&self, projection: &mut Projection) {
        set(&mut projection.weights.dtype, self.weights);
        set(&mut projection.weights.scale, self.weights_scale);
        set(&mut projection.activations, self.activations);
    }
}

fn set<T>(to: &mut T, given: Option<Given<T>>) {
    if let Some(given) = given {
        *to = given.value;
    }
}
