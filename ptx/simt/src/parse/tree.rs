//! What the parser makes: functions, statements, operands.

use std::collections::HashMap;

use crate::types::{Class, Special};

/// A literal as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Literal {
    Int(u64),
    /// Bits of an f32, from `0f`.
    F32(u32),
    /// Bits of an f64, from `0d`.
    F64(u64),
    Decimal(f64),
}

/// The base of an address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Base {
    Reg(u32),
    Symbol(String),
    Absolute,
}

/// An operand as written, its registers numbered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Reg(u32),
    /// `!%p1`
    Not(u32),
    Literal(Literal),
    Special(Special),
    /// A variable, parameter or label, and bytes behind it.
    Symbol(String, i64),
    Address(Base, i64),
    Vector(Vec<Operand>),
    /// `%r1|%p1`
    Pair(Box<Operand>, Box<Operand>),
    /// `_`
    Sink,
}

/// One instruction as written.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) line: usize,
    /// Predicate register, and whether it is negated.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the PTX text.
    pub name: String,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Bytes from the beginning of the parameter buffer.
    pub offset: usize,
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bytes from the beginning of the block's shared memory.
    Shared(usize),
    /// Behind all static shared memory, with this alignment.
    DynamicShared(usize),
    /// Bytes from the beginning of a thread's local memory.
    Local(usize),
    /// Bytes from the beginning of the module's own global memory.
    Global(usize),
}

/// One entry, parsed.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: usize,
    pub(crate) max_threads: Option<u32>,
    /// Class of each numbered register.
    pub(crate) regs: Vec<Class>,
    pub(crate) body: Vec<Statement>,
    /// Label to index in `body`.
    pub(crate) labels: HashMap<String, usize>,
    pub(crate) variables: HashMap<String, Place>,
    pub(crate) shared_bytes: usize,
    pub(crate) local_bytes: usize,
}

/// A module, parsed.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) functions: Vec<Function>,
    /// The module's `.global` and `.const` variables, initialised.
    pub(crate) image: Vec<u8>,
}
