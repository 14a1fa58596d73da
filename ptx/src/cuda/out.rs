//! Where an op's result goes, in the format that the next one reads.

use super::{Arg, View};

/// An output in f32, or rounded to bf16 on the way out.
#[derive(Clone, Copy, Debug)]
pub enum Out {
    /// As computed.
    F32(View<f32>),
    /// Rounded to nearest even.
    Bf16(View<u16>),
}

impl Out {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Out::F32(view) => view.len(),
            Out::Bf16(view) => view.len(),
        }
    }

    /// True without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it begins where four elements can be stored at once.
    pub(crate) fn aligned_4(&self) -> bool {
        match self {
            Out::F32(view) => view.address().is_multiple_of(16),
            Out::Bf16(view) => view.address().is_multiple_of(8),
        }
    }

    pub(crate) fn arg(&self) -> Arg {
        match self {
            Out::F32(view) => (*view).into(),
            Out::Bf16(view) => (*view).into(),
        }
    }
}
