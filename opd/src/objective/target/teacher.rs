//! The teacher itself: t = q.

use super::Moved;

pub(super) fn row(lq: &[f64], lt: &mut Vec<f64>) -> Moved {
    lt.clear();
    lt.extend_from_slice(lq);
    Moved { cliff: f64::INFINITY, ..Moved::default() }
}

#[cfg(test)]
mod tests {
    use crate::objective::check::{S, T, ln};
    use crate::objective::{Divergence, Objective, Target};
    use ptx::ops::divergence::Kind;

    /// The teacher, and what reduces to it, stays on the kernel.
    #[test]
    fn it_is_the_teacher_and_its_kernel() {
        let mut lt = Vec::new();
        let moved = Target::Teacher.row(&ln(S), &ln(T), None, &mut lt);
        assert_eq!((lt, moved.kl, moved.step), (ln(T), 0.0, 0.0));
        let bounded = Target::Bounded { delta: 0.0, u_max: 2.0 };
        for target in [Target::Teacher, Target::Extrapolated { lambda: 1.0 }, bounded] {
            let kernel = |divergence| Objective { target, divergence }.dense_kernel();
            assert_eq!(kernel(Divergence::Reverse), Some(Kind::ReverseKl));
            assert_eq!(kernel(Divergence::Forward), Some(Kind::ForwardKl));
            assert_eq!(kernel(Divergence::Jsd { beta: 0.5 }), None);
        }
        let target = Target::Extrapolated { lambda: 1.25 };
        assert_eq!(Objective { target, divergence: Divergence::Reverse }.dense_kernel(), None);
    }
}
