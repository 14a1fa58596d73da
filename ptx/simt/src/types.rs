//! Register classes, element types and state spaces of PTX, as the decoder and the executor see them.

/// Which of a warp's three register files holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// One bit a lane.
    Pred,
    /// Up to 32 bits a lane, zero-extended.
    Word,
    /// 64 bits a lane.
    Wide,
}

/// What an operand of an instruction is: its register class, and how a literal in its place is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A predicate.
    Pred,
    /// 16 bits in the low half of a word.
    Half,
    /// 32 bits.
    Word,
    /// 32 bits, a float where a literal says so.
    Float,
    /// 64 bits.
    Wide,
    /// 64 bits, a float where a literal says so.
    Double,
}

impl Kind {
    pub(crate) fn class(self) -> Class {
        match self {
            Kind::Pred => Class::Pred,
            Kind::Half | Kind::Word | Kind::Float => Class::Word,
            Kind::Wide | Kind::Double => Class::Wide,
        }
    }
}

/// Element types that appear in declarations, conversions and memory accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    F16x2,
    Bf16x2,
    B64,
    U64,
    S64,
    F64,
}

impl Type {
    /// Reads `u32`, `b16` and so on, without the dot.
    pub(crate) fn parse(text: &str) -> Option<Type> {
        Some(match text {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "u8" => Type::U8,
            "s8" => Type::S8,
            "b16" => Type::B16,
            "u16" => Type::U16,
            "s16" => Type::S16,
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "b32" => Type::B32,
            "u32" => Type::U32,
            "s32" => Type::S32,
            "f32" => Type::F32,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "b64" => Type::B64,
            "u64" => Type::U64,
            "s64" => Type::S64,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Bytes in memory; predicates have none.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Type::Pred => 0,
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::Bf16x2 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// The register class of a register declared with this type.
    pub(crate) fn class(self) -> Class {
        match self.bytes() {
            0 => Class::Pred,
            8 => Class::Wide,
            _ => Class::Word,
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Type::Pred => Kind::Pred,
            Type::F32 => Kind::Float,
            Type::F64 => Kind::Double,
            _ => match self.bytes() {
                8 => Kind::Wide,
                4 => Kind::Word,
                _ => Kind::Half,
            },
        }
    }
}

/// Special registers, constant for a thread during a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Lane,
    Warp,
    Warps,
    WarpSize,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicSharedBytes,
    TotalSharedBytes,
}

impl Special {
    pub(crate) fn parse(name: &str) -> Option<Special> {
        let axis = |tail: &str| match tail {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        if let Some((head, tail)) = name.split_once('.') {
            let axis = axis(tail)?;
            return Some(match head {
                "%tid" => Special::Tid(axis),
                "%ntid" => Special::Ntid(axis),
                "%ctaid" => Special::Ctaid(axis),
                "%nctaid" => Special::Nctaid(axis),
                _ => return None,
            });
        }
        Some(match name {
            "%laneid" => Special::Lane,
            "%warpid" => Special::Warp,
            "%nwarpid" => Special::Warps,
            "WARP_SZ" => Special::WarpSize,
            "%lanemask_eq" => Special::LaneMaskEq,
            "%lanemask_le" => Special::LaneMaskLe,
            "%lanemask_lt" => Special::LaneMaskLt,
            "%lanemask_ge" => Special::LaneMaskGe,
            "%lanemask_gt" => Special::LaneMaskGt,
            "%dynamic_smem_size" => Special::DynamicSharedBytes,
            "%total_smem_size" => Special::TotalSharedBytes,
            _ => return None,
        })
    }
}

/// Where generic addresses of shared memory begin; `cvta.shared` adds it.
pub(crate) const SHARED_WINDOW: u64 = 1 << 32;
/// Where generic addresses of a thread's local memory begin.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 32;
/// The first address of global memory, which is the same in generic addresses.
pub(crate) const GLOBAL_BASE: u64 = 0x70_0000_0000;
