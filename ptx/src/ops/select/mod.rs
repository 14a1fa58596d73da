//! Some rows of a matrix, in any order and any of them several times: those whose logits are wanted. On the CPU whoever
//! wants them copies them.

mod conform;
pub mod cuda;

pub(crate) use conform::conform;
