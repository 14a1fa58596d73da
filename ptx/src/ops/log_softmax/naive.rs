//! The slow truth, in f64.

/// z = logit / temperature of the valid columns of each row. The product is rounded to f32, as z is by definition.
#[must_use]
pub fn scaled(vocab: usize, valid: usize, inv_temp: f32, logits: &[f32]) -> Vec<Vec<f64>> {
    logits.chunks(vocab).map(|row| row[..valid].iter().map(|&x| f64::from(x * inv_temp)).collect()).collect()
}

/// ln sum e^z.
#[must_use]
pub fn lse(z: &[f64]) -> f64 {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln()
}

/// z - lse of every column.
#[must_use]
pub fn logprobs(z: &[f64]) -> Vec<f64> {
    let lse = lse(z);
    z.iter().map(|z| z - lse).collect()
}

/// Ids by descending z, equal z by ascending id.
#[must_use]
#[allow(clippy::missing_panics_doc)] // ids fit u32 and z is not NaN
pub fn order(z: &[f64]) -> Vec<u32> {
    let mut ids: Vec<usize> = (0..z.len()).collect();
    ids.sort_by(|&a, &b| z[b].partial_cmp(&z[a]).expect("no NaN").then(a.cmp(&b)));
    ids.into_iter().map(|id| u32::try_from(id).expect("ids fit u32")).collect()
}
