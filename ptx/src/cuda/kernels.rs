//! The kernels in this binary: PTX of every op for two targets, embedded.

/// The PTX of one op.
#[derive(Debug)]
pub struct Module {
    /// The op's folder.
    pub op: &'static str,
    /// For compute capability 8.0 to 8.8.
    pub sm80: &'static str,
    /// For 8.9 and later.
    pub sm89: &'static str,
}

/// A kernel's name: the op's folder and the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The op's folder.
    pub op: &'static str,
    /// The entry in its PTX.
    pub entry: &'static str,
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}::{}", self.op, self.entry)
    }
}

/// The module of an op from the files in its folder.
macro_rules! module {
    ($op:literal) => {
        Module {
            op: $op,
            sm80: include_str!(concat!("../ops/", $op, "/", $op, ".sm80.ptx")),
            sm89: include_str!(concat!("../ops/", $op, "/", $op, ".sm89.ptx")),
        }
    };
}

/// Every op with kernels.
pub const MODULES: &[Module] = &[
    module!("attention"),
    module!("embedding"),
    module!("kv_append"),
    module!("kv_copy"),
    module!("linear"),
    module!("log_softmax"),
    module!("peak"),
    module!("residual"),
    module!("rmsnorm"),
    module!("rope"),
    module!("round"),
    module!("sample"),
    module!("select"),
    module!("swiglu"),
];
