//! How an op's checks report their cases.

use super::Outcome;

/// One case under way: the first thing found wrong is its failure.
pub(crate) struct Case<'a> {
    op: &'static str,
    case: String,
    worst: f64,
    failure: Option<String>,
    each: &'a mut dyn FnMut(Outcome),
}

impl<'a> Case<'a> {
    /// Begins a case.
    pub(crate) fn new(op: &'static str, case: String, each: &'a mut dyn FnMut(Outcome)) -> Case<'a> {
        Case { op, case, worst: 0.0, failure: None, each }
    }

    /// Fails it, if there is something wrong and nothing was before.
    pub(crate) fn fail(&mut self, what: &str, wrong: Option<String>) {
        if let (None, Some(wrong)) = (&self.failure, wrong) {
            self.failure = Some(format!("{what}: {wrong}"));
        }
    }

    /// Elements must be equal.
    pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: &[T], want: &[T]) {
        assert_eq!(got.len(), want.len(), "{what}: lengths");
        let wrong = got.iter().zip(want).position(|(got, want)| got != want);
        self.fail(what, wrong.map(|i| format!("element {i} is {:?}, want {:?}", got[i], want[i])));
    }

    /// Bits must be equal; NaN, whose bits no device promises, must be NaN.
    pub(crate) fn same_bits(&mut self, what: &str, got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len(), "{what}: lengths");
        let differ = |i: &usize| got[*i].to_bits() != want[*i].to_bits() && !(got[*i].is_nan() && want[*i].is_nan());
        let wrong = (0..got.len()).find(differ);
        self.fail(
            what,
            wrong.map(|i| {
                format!(
                    "element {i} is {:e} ({:#x}), want {:e} ({:#x})",
                    got[i],
                    got[i].to_bits(),
                    want[i],
                    want[i].to_bits()
                )
            }),
        );
    }

    /// Errors must be within `tolerance(i)`, which is absolute.
    pub(crate) fn close(&mut self, what: &str, got: &[f32], want: &[f64], tolerance: impl Fn(usize) -> f64) {
        assert_eq!(got.len(), want.len(), "{what}: lengths");
        let share = |i: usize| match (f64::from(got[i]) - want[i]).abs() {
            0.0 => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error / tolerance(i),
        };
        if let Some(i) = (0..got.len()).max_by(|&a, &b| share(a).total_cmp(&share(b))) {
            self.worst = self.worst.max(share(i));
            let wrong = format!("element {i} is {:e}, want {:e}, {:.2} of tolerance", got[i], want[i], share(i));
            self.fail(what, (share(i) > 1.0).then_some(wrong));
        }
    }

    /// Reports it.
    pub(crate) fn end(self) {
        let Case { op, case, worst, failure, each } = self;
        each(Outcome { op, case, worst, failure });
    }
}
