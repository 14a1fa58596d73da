//! Sums of `mma.sync` as inexact as hardware may form them.
//!
//! All products of one instruction and c are aligned to the largest of them, each is cut off below the last place that is
//! kept of the largest, what is left is added exactly, and the result is cut off to as many bits of its own. So each of
//! K + 2 values may lose up to one last place, always towards zero: nothing averages out.

use crate::exec::mma::Product;

/// 2 to the power `e`, which is one of a normal number.
#[inline(always)]
fn power(e: i64) -> f64 {
    f64::from_bits((e + 1023).cast_unsigned() << 52)
}

/// The exponent of the first bit of a number that is finite and normal in f64; far below any other for zero.
#[inline(always)]
fn exponent(x: f64) -> i64 {
    (x.to_bits() >> 52 & 0x7ff).cast_signed() - 1023
}

/// `x` without what lies below the place of 2^`last`.
#[inline(always)]
fn cut(x: f64, last: i64) -> f64 {
    (x * power(-last)).trunc() * power(last)
}

/// The sums of all products with c, with `kept` bits; meaningless where any is not finite.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // what is left fits f32
pub(crate) fn truncate<const K: usize>(p: &Product<K>, kept: i64) -> [[f32; 8]; 16] {
    std::array::from_fn(|row| {
        // Products of values with at most 11 bits are exact in f64, and so are sums of what was cut off at one place.
        let c = p.c[row].map(f64::from);
        let products: [[f64; 8]; K] = std::array::from_fn(|k| p.b[k].map(|b| f64::from(p.a[k][row]) * f64::from(b)));
        let largest = products
            .iter()
            .fold(c.map(f64::abs), |largest, products| std::array::from_fn(|i| largest[i].max(products[i].abs())));
        // The least product of two bf16 is 2^-266: all places are of normal f64.
        let last = largest.map(|x| exponent(x).clamp(-300, 300) + 1 - kept);
        let mut sum: [f64; 8] = std::array::from_fn(|i| cut(c[i], last[i]));
        for products in &products {
            for i in 0..8 {
                sum[i] += cut(products[i], last[i]);
            }
        }
        sum.map(|sum| {
            let last = (exponent(sum).clamp(-300, 300) + 1 - kept).max(-149);
            // Addends that were cut off may together pass what f32 holds; rounded towards zero that is its largest number.
            cut(sum, last).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sum: a[0, k] b[k, 0] and c.
    fn sum<const K: usize>(products: &[(f32, f32)], c: f32, kept: i64) -> f32 {
        let mut p = Product { a: [[0.0; 16]; K], b: [[0.0; 8]; K], c: [[0.0; 8]; 16] };
        for (k, &(a, b)) in products.iter().enumerate() {
            (p.a[k][3], p.b[k][5]) = (a, b);
        }
        p.c[3][5] = c;
        truncate(&p, kept)[3][5]
    }

    fn two(e: i32) -> f32 {
        2.0_f32.powi(e)
    }

    #[test]
    fn every_addend_loses_what_is_below_the_largest_ones_last_place() {
        // Below 2^-23 of 1, with 24 bits: fifteen times 0.99 of a place are gone. With c as the largest, c as a small one.
        let small = (two(-12), 1.98 * two(-12));
        let mut products = vec![small; 16];
        assert_eq!(sum::<16>(&products, 1.0, 24), 1.0);
        assert_eq!(sum::<16>(&products, -1.0, 24), -1.0);
        products[4] = (1.0, -1.0);
        assert_eq!(sum::<16>(&products, 0.99 * two(-23), 24), -1.0);
        // At the last place itself nothing is lost.
        products[5] = (two(-12), two(-11));
        assert_eq!(sum::<16>(&products, 0.0, 24), -1.0 + two(-23));
        // 13 bits, 1 and 2^-12.
        let small = (two(-7), 1.875 * two(-6));
        assert_eq!(sum::<32>(&[small; 32], 1.0, 13), 1.0);
        let place = (two(-7), two(-5));
        assert_eq!(sum::<32>(&[place; 32], 1.0, 13), 1.0 + 32.0 * two(-12));
    }

    #[test]
    fn the_result_keeps_as_many_bits_of_its_own() {
        let ones = [(1.0, 1.0), (1.0, 1.0), (two(-6), two(-6))];
        assert_eq!(sum::<32>(&ones, 1.0, 13), 3.0);
        assert_eq!(sum::<32>(&ones, -1.0, 13), 1.0 + two(-12));
        let ones = [(1.0, 1.0), (1.0, 1.0), (two(-12), two(-11))];
        assert_eq!(sum::<16>(&ones, 1.0, 24), 3.0);
        assert_eq!(sum::<16>(&ones, -1.0, 24), 1.0 + two(-23));
    }

    #[test]
    fn small_and_large_numbers() {
        assert_eq!(sum::<16>(&[], 0.0, 24), 0.0);
        assert_eq!(sum::<16>(&[], f32::from_bits(1), 24), f32::from_bits(1));
        assert_eq!(sum::<16>(&[(two(-70), two(-79))], f32::from_bits(2), 24), f32::from_bits(3));
        assert_eq!(sum::<16>(&[(two(-126), f32::from_bits(1 << 16))], 0.0, 24), 0.0);
        assert_eq!(sum::<16>(&[(two(127), 1.0)], 1.5 * two(127), 24), f32::MAX);
    }
}
