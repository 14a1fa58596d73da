//! What the matrix instruction gives when nothing else is in its way: the limit that products are measured against.

mod conform;
pub mod cuda;

pub(crate) use conform::conform;
