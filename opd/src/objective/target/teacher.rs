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
    use crate::objective::divergence::Direction;
    use crate::objective::{Divergence, Objective, Target};
    use ptx::ops::head_divergence::Kind;

    /// The teacher, and what reduces to it, stays on the kernel.
    #[test]
    fn it_is_the_teacher_and_its_kernel() {
        let mut lt = Vec::new();
        let moved = Target::Teacher.row(&ln(S), &ln(T), None, &mut lt);
        assert_eq!((lt, moved.kl, moved.step), (ln(T), 0.0, 0.0));
        let bounded = Target::Bounded { delta: 0.0, u_max: 2.0 };
        for target in [Target::Teacher, Target::Extrapolated { lambda: 1.0 }, bounded] {
            let kernel = |divergence| Objective { target, divergence }.kernel();
            assert_eq!(kernel(Divergence::Reverse), Some(Kind::Reverse));
            assert_eq!(kernel(Divergence::Forward), Some(Kind::Forward));
            assert_eq!(kernel(Divergence::Jsd { beta: 0.5 }), Some(Kind::Jsd { beta: 0.5 }));
            let skewed = |direction| kernel(Divergence::Skewed { direction, alpha: 0.25 });
            assert_eq!(skewed(Direction::Reverse), Some(Kind::SkewedReverse { alpha: 0.25 }));
            assert_eq!(skewed(Direction::Forward), Some(Kind::SkewedForward { alpha: 0.25 }));
            assert_eq!(kernel(Divergence::Score), None);
        }
        let target = Target::Extrapolated { lambda: 1.25 };
        assert_eq!(Objective { target, divergence: Divergence::Reverse }.kernel(), None);
    }
}
