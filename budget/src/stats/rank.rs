//! How well one number orders others: by ranks alone, so that no scale has to be chosen.

use super::{Interval, Random};

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

/// 95% interval of [`auroc`]: percentiles over 2,000 resamples, of either side among its own, so that none is empty. With a few
/// values on a side it is too narrow, and where nothing overlaps it has no width at all.
#[must_use]
pub fn auroc_interval(worse: &[f64], fine: &[f64], seed: u64) -> Option<Interval> {
    const RESAMPLES: u64 = 2000;
    auroc(worse, fine)?;
    let (random, mut counter) = (Random::new(seed), 0);
    let mut resampled = |values: &[f64]| -> Vec<f64> {
        let draw = |_| {
            counter += 1;
            values[random.index(counter, values.len())]
        };
        (0..values.len()).map(draw).collect()
    };
    let mut areas: Vec<f64> = (0..RESAMPLES).filter_map(|_| auroc(&resampled(worse), &resampled(fine))).collect();
    areas.sort_by(f64::total_cmp);
    Some(Interval { low: areas[areas.len() / 40], high: areas[areas.len() - 1 - areas.len() / 40] })
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

    #[test]
    fn an_interval_holds_the_area_and_narrows_with_more() {
        let side = |n: u32, shift: f64| -> Vec<f64> {
            (0..n).map(|i| f64::from(i * 7919 % n) / f64::from(n) + shift).collect()
        };
        let of = |n: u32| {
            let (worse, fine) = (side(n, 0.4), side(n, 0.0));
            let (area, interval) = (auroc(&worse, &fine).unwrap(), auroc_interval(&worse, &fine, 1).unwrap());
            assert!(interval.low < area && area < interval.high, "{area} {interval:?}");
            interval.width()
        };
        let (few, many) = (of(10), of(160));
        assert!(many < few / 3.0 && many > few / 5.0, "by the root of sixteen: {few} {many}");
        let apart = auroc_interval(&[2.0, 3.0], &[0.0, 1.0], 1).unwrap();
        assert_eq!((apart.low, apart.high), (1.0, 1.0));
        assert_eq!(auroc_interval(&[], &[1.0], 1), None);
    }
}
