//! What the tests of row and element ops share: seeded data, devices to compare, and comparisons that name the element.

pub(crate) use crate::conformance::data::normals;
use crate::{Cpu, Isa};

/// Every instruction set of this machine with 1, 2 and 3 threads; the first is the portable one on one thread.
pub(crate) fn devices() -> Vec<Cpu> {
    Isa::available().into_iter().flat_map(|isa| [1, 2, 3].map(|threads| Cpu::with_isa(threads, isa))).collect()
}

/// `x` in f64.
pub(crate) fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// Panics at the first element whose bits differ.
pub(crate) fn assert_same_bits(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    if let Some(i) = (0..got.len()).find(|&i| got[i].to_bits() != want[i].to_bits()) {
        panic!("{what}: element {i} is {:e}, want {:e}", got[i], want[i]);
    }
}

/// Panics with the worst element when some element is off by more than `tolerance(i)`, an absolute error.
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let excess = |i: usize| (f64::from(got[i]) - want[i]).abs() / tolerance(i);
    if let Some(i) = (0..got.len()).max_by(|&a, &b| excess(a).total_cmp(&excess(b))) {
        let (got, want) = (got[i], want[i]);
        assert!(excess(i) <= 1.0, "{what}: element {i} is {got:e}, want {want:e}, {} of tolerance", excess(i));
    }
}

/// Central differences of the scalar `f` at `x`, all components.
pub(crate) fn central_differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let (at, h) = (x[i], 1e-5);
            x[i] = at + h;
            let up = f(&x);
            x[i] = at - h;
            let down = f(&x);
            x[i] = at;
            (up - down) / (2.0 * h)
        })
        .collect()
}

/// Panics with the worst component when `got`, an analytic gradient, is not what central differences say. With steps
/// of 1e-5 on functions of order one the truncation and rounding errors stay below 1e-8.
pub(crate) fn assert_gradient(what: &str, got: &[f64], x: &[f64], f: impl Fn(&[f64]) -> f64) {
    for (i, (got, want)) in got.iter().zip(central_differences(x, f)).enumerate() {
        assert!((got - want).abs() <= 1e-8 * want.abs().max(1.0), "{what}: component {i} is {got}, differences {want}");
    }
}
