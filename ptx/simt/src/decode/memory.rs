//! Loads, stores, atomics, matrix loads and asynchronous copies, modifier by modifier.

use crate::counters::Class as Counted;
use crate::decode::{Arg, Decoder, Extra, Result, constant, unknown};
use crate::exec;
use crate::parse::{Literal, Operand, Statement};
use crate::program::{Mem, Space};
use crate::types::{Class, Kind, Type};

/// The state space that a modifier names.
fn space(modifier: &str) -> Option<Space> {
    Some(match modifier {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}

fn counted(space: Space) -> Counted {
    match space {
        Space::Generic | Space::Global => Counted::Global,
        Space::Shared => Counted::Shared,
        Space::Local => Counted::Local,
        Space::Param => Counted::Param,
    }
}

/// Hints that change where data is cached and nothing that it is.
fn is_hint(modifier: &str) -> bool {
    matches!(
        modifier,
        "ca" | "cg"
            | "cs"
            | "lu"
            | "cv"
            | "wb"
            | "wt"
            | "L1::evict_normal"
            | "L1::evict_unchanged"
            | "L1::evict_first"
            | "L1::evict_last"
            | "L1::no_allocate"
            | "L2::evict_first"
            | "L2::evict_last"
            | "L2::evict_normal"
            | "L2::64B"
            | "L2::128B"
            | "L2::256B"
    )
}

fn is_scope(modifier: &str) -> bool {
    matches!(modifier, "cta" | "cluster" | "gpu" | "sys")
}

impl Decoder<'_> {
    pub(super) fn load_or_store(&mut self, s: &Statement, parts: &[&str]) -> Result<()> {
        let loads = parts[0] == "ld";
        let (Some(ty), [_, modifiers @ .., _]) = (parts.last().and_then(|t| Type::parse(t)), parts) else {
            return Err(unknown(&s.opcode));
        };
        let mut m = Mem {
            space: Space::Generic,
            width: u8::try_from(ty.bytes()).expect("at most 8"),
            count: 1,
            signed: ty.is_signed(),
            wide: false,
            read_only: false,
            wide_address: false,
            offset: 0,
            args: 0,
            site: self.site(),
            variant: 0,
        };
        for modifier in modifiers {
            match *modifier {
                "v2" => m.count = 2,
                "v4" => m.count = 4,
                "nc" if loads => m.read_only = true,
                // Accesses that other threads may meet at any time are no races.
                "volatile" | "relaxed" | "mmio" => m.variant = 1,
                "acquire" if loads => m.variant = 1,
                "release" if !loads => m.variant = 1,
                "weak" => {}
                other if is_hint(other) || is_scope(other) => {}
                other => m.space = space(other).ok_or_else(|| unknown(&s.opcode))?,
            }
        }
        if ty == Type::Pred || usize::from(m.width) * usize::from(m.count) > 16 {
            return Err(unknown(&s.opcode));
        }
        let [first, second] = s.operands.as_slice() else {
            return Err("an access has an address and a value".to_string());
        };
        let (address, values) = if loads { (second, first) } else { (first, second) };
        let values = match values {
            Operand::Vector(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        if values.len() != usize::from(m.count) {
            return Err(format!("{} values where {} belong", values.len(), m.count));
        }
        let class = self.value_class(values, ty)?;
        m.wide = class == Class::Wide;
        let (base, wide_address, offset) = self.address(address)?;
        (m.wide_address, m.offset) = (wide_address, offset);
        let mut args = vec![base];
        for value in values {
            args.push(match value {
                Operand::Reg(reg) => Arg::Reg(*reg),
                Operand::Sink if loads => self.temporary(class),
                Operand::Literal(literal) if !loads => constant(*literal, ty.kind())?,
                Operand::Special(special) if !loads && class == Class::Word => Arg::Special(*special),
                other if !loads => self.source(other, ty.kind())?,
                _ => return Err("a load goes to registers".to_string()),
            });
        }
        let (dst, src) = if loads { (args[1..].to_vec(), vec![base]) } else { (vec![], args.clone()) };
        let exec = exec::executor(&m, !loads);
        self.push(exec, counted(m.space), dst, src, Extra::Mem(vec![(m, args)]));
        Ok(())
    }

    /// The class of the registers of an access: that of the type, or wider.
    fn value_class(&self, values: &[Operand], ty: Type) -> Result<Class> {
        let mut class = None;
        for value in values {
            if let Operand::Reg(reg) = value {
                let this = self.class(*reg);
                if this == Class::Pred || class.is_some_and(|c| c != this) {
                    return Err("registers of unlike sizes".to_string());
                }
                class = Some(this);
            }
        }
        let class = class.unwrap_or_else(|| ty.class());
        if ty.class() == Class::Wide && class == Class::Word {
            return Err("a register narrower than the access".to_string());
        }
        Ok(class)
    }

    pub(super) fn atomic(&mut self, s: &Statement, parts: &[&str]) -> Result<()> {
        let returns = parts[0] == "atom";
        let (Some(ty), [_, modifiers @ .., _]) = (parts.last().and_then(|t| Type::parse(t)), parts) else {
            return Err(unknown(&s.opcode));
        };
        let (mut at, mut operation) = (Space::Generic, None);
        for modifier in modifiers {
            match *modifier {
                "relaxed" | "acquire" | "release" | "acq_rel" => {}
                other if is_scope(other) => {}
                "global" => at = Space::Global,
                "shared" | "shared::cta" => at = Space::Shared,
                "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec" => {
                    operation = Some(*modifier);
                }
                _ => return Err(unknown(&s.opcode)),
            }
        }
        let operation = operation.ok_or_else(|| unknown(&s.opcode))?;
        let allowed = match ty {
            Type::U32 | Type::S32 | Type::U64 | Type::S64 => true,
            Type::B32 | Type::B64 => matches!(operation, "and" | "or" | "xor" | "exch" | "cas"),
            Type::F16 | Type::Bf16 | Type::F32 | Type::F64 | Type::F16x2 | Type::Bf16x2 => {
                return Err("atomics on floats are not supported: the order of lanes would decide the bits".to_string());
            }
            _ => false,
        };
        let name = match operation {
            "min" | "max" => format!("{operation}.{}", if ty.is_signed() { 's' } else { 'u' }),
            other => other.to_string(),
        };
        let (Some(variant), true) = (exec::OPERATIONS.iter().position(|o| *o == name), allowed) else {
            return Err(unknown(&s.opcode));
        };
        let (to, rest) = match s.operands.split_first() {
            Some((to, rest)) if returns => (to, rest),
            _ => (&Operand::Sink, s.operands.as_slice()),
        };
        let kind = ty.kind();
        let (address, b, c) = match (rest, operation) {
            ([address, b, c], "cas") => (address, self.source(b, kind)?, self.source(c, kind)?),
            ([address, b], _) if operation != "cas" => {
                let b = self.source(b, kind)?;
                (address, b, b)
            }
            _ => return Err("another number of operands belongs here".to_string()),
        };
        let dst = self.destination(to, kind)?;
        let (base, wide_address, offset) = self.address(address)?;
        let m = Mem {
            space: at,
            width: u8::try_from(ty.bytes()).expect("at most 8"),
            count: 1,
            signed: false,
            wide: kind.class() == Class::Wide,
            read_only: false,
            wide_address,
            offset,
            args: 0,
            site: self.site(),
            variant: u8::try_from(variant).expect("few operations"),
        };
        let args = vec![base, dst, b, c];
        self.push(exec::ATOMIC, Counted::Atomic, vec![dst], vec![base, b, c], Extra::Mem(vec![(m, args)]));
        Ok(())
    }

    pub(super) fn matrix(&mut self, s: &Statement, parts: &[&str]) -> Result<()> {
        let ["ldmatrix", "sync", "aligned", "m8n8", number, rest @ ..] = parts else {
            return Err(unknown(&s.opcode));
        };
        let variant = match rest {
            ["shared" | "shared::cta", "b16"] => 0,
            ["trans", "shared" | "shared::cta", "b16"] => 1,
            _ => return Err(unknown(&s.opcode)),
        };
        let count = match *number {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return Err(unknown(&s.opcode)),
        };
        let [to, address] = s.operands.as_slice() else {
            return Err("a matrix load has registers and an address".to_string());
        };
        let to = match to {
            Operand::Vector(to) => to.as_slice(),
            one => std::slice::from_ref(one),
        };
        if to.len() != usize::from(count) {
            return Err(format!("{} registers where {count} belong", to.len()));
        }
        let dst = to.iter().map(|o| self.destination(o, Kind::Word)).collect::<Result<Vec<_>>>()?;
        let (base, wide_address, offset) = self.address(address)?;
        let m = Mem {
            space: Space::Shared,
            width: 16,
            count,
            signed: false,
            wide: false,
            read_only: false,
            wide_address,
            offset,
            args: 0,
            site: self.site(),
            variant,
        };
        let args = std::iter::once(base).chain(dst.iter().copied()).collect();
        self.push(exec::LDMATRIX, Counted::Shared, dst, vec![base], Extra::Mem(vec![(m, args)]));
        self.insts.last_mut().expect("just pushed").together = true;
        Ok(())
    }

    pub(super) fn copy(&mut self, s: &Statement, parts: &[&str]) -> Result<()> {
        let ["cp", "async", level, "shared" | "shared::cta", "global", hints @ ..] = parts else {
            return Err(unknown(&s.opcode));
        };
        if !matches!(hints, [] | ["L2::64B" | "L2::128B" | "L2::256B"]) {
            return Err(unknown(&s.opcode));
        }
        let (to, from, bytes, size) = match s.operands.as_slice() {
            [to, from, Operand::Literal(Literal::Int(bytes))] => (to, from, *bytes, Arg::Word(exec::low_word(*bytes))),
            [to, from, Operand::Literal(Literal::Int(bytes)), size] => {
                if matches!(size, Operand::Reg(r) if self.class(*r) == Class::Pred) {
                    return Err("cp.async that ignores its source by a predicate is not supported".to_string());
                }
                (to, from, *bytes, self.source(size, Kind::Word)?)
            }
            _ => return Err("a copy has two addresses, its bytes and perhaps those of the source".to_string()),
        };
        if !matches!((*level, bytes), ("ca", 4 | 8 | 16) | ("cg", 16)) {
            return Err(format!("cp.async.{level} of {bytes} bytes does not exist"));
        }
        let (to, wide_to, to_offset) = self.address(to)?;
        let (from, wide_from, from_offset) = self.address(from)?;
        let target = Mem {
            space: Space::Shared,
            width: 16,
            count: 1,
            signed: false,
            wide: false,
            read_only: false,
            wide_address: wide_to,
            offset: to_offset,
            args: 0,
            site: self.site(),
            variant: 0,
        };
        let source =
            Mem { space: Space::Global, wide_address: wide_from, offset: from_offset, site: self.site(), ..target };
        let accesses = vec![(target, vec![to]), (source, vec![from, size])];
        self.push(exec::CP_ASYNC, Counted::Async, vec![], vec![to, from, size], Extra::Mem(accesses));
        self.insts.last_mut().expect("just pushed").imm = bytes.cast_signed();
        Ok(())
    }
}
