//! How well one number orders others: by ranks alone, so that no scale has to be chosen.

/// The chance that a value of `worse` is above one of `fine`, ties counted half: the area under the curve of hits against
/// false alarms over all thresholds. None where either is empty.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts
pub fn auroc(worse: &[f64], fine: &[f64]) -> Option<f64> {
    if worse.is_empty() || fine.is_empty() {
        return None;
    }
    let above = |&w: &f64| -> f64 {
        fine.iter()
            .map(|&f| {
                if w > f {
                    1.0
                } else if w == f {
                    0.5
                } else {
                    0.0
                }
            })
            .sum::<f64>()
    };
    Some(worse.iter().map(above).sum::<f64>() / (worse.len() * fine.len()) as f64)
}

/// Spearman's correlation of ranks, equal values at the mean of their ranks. None with fewer than two pairs, or where one side
/// is all the same.
#[must_use]
pub fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (x, y) = (ranks(&x), ranks(&y));
    #[allow(clippy::cast_precision_loss)] // counts
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let (xy, xx, yy) = (sum(&x, &y), sum(&x, &x), sum(&y, &y));
    (pairs.len() >= 2 && xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

/// Ranks from 0.
#[allow(clippy::cast_precision_loss)] // counts
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |&v: &f64| {
        let below = values.iter().filter(|&&other| other < v).count() as f64;
        let same = values.iter().filter(|&&other| other == v).count() as f64;
        below + (same - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // Of six pairs four are in order and one is a tie.
        assert_eq!(auroc(&[3.0, 2.0], &[1.0, 2.0, 2.5]), Some((3.0 + 1.5) / 6.0));
        assert_eq!((auroc(&[], &[1.0]), auroc(&[2.0], &[1.0]), auroc(&[1.0], &[2.0])), (None, Some(1.0), Some(0.0)));
        // Ranks 0 1 2 3 against 1 0 3 2: 1 - 6 * 4 / (4 * 15).
        let pairs = [(1.0, 2.0), (2.0, 1.0), (3.0, 40.0), (4.0, 30.0)];
        assert!((rank_correlation(&pairs).unwrap() - 0.6).abs() < 1e-12);
        assert_eq!(ranks(&[5.0, 1.0, 5.0]), [1.5, 0.0, 1.5]);
        assert_eq!(rank_correlation(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(rank_correlation(&[(1.0, 1.0)]), None);
    }
}
