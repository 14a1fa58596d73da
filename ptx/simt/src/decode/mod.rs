//! Statements to instructions: each opcode with its modifiers to what executes it, operands to registers and constants.
//!
//! Most spellings stand in the table of rows ([`crate::exec::find`]). Those with many independent modifiers (memory,
//! vector moves, combined comparisons) are read modifier by modifier here. What neither knows is refused, by name.

mod forms;
mod memory;

use std::collections::HashMap;

use crate::counters::Class as Counted;
use crate::exec::{self, Exec, Row};
use crate::parse::{Base, Function, Literal, LoadError, Operand, Place, Statement};
use crate::program::Mem;
use crate::types::{Class, Kind, Special};

/// An operand that a slot will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arg {
    Reg(u32),
    Word(u32),
    Wide(u64),
    Pred(bool),
    Special(Special),
    /// An address in the module's own global memory.
    Global(u64),
}

/// What an instruction is besides its operands.
#[derive(Clone)]
pub(crate) enum Extra {
    None,
    /// To the statement with this index.
    Branch {
        target: usize,
        uniform: bool,
    },
    /// `ret` and `exit`, and `trap`, after which nothing follows.
    Exit,
    /// Memory accesses with the operands that their slots hold: the address, then values.
    Mem(Vec<(Mem, Vec<Arg>)>),
}

/// One instruction, its registers still numbered as in the text.
#[derive(Clone)]
pub(crate) struct Inst {
    pub(crate) exec: Exec,
    /// Nothing for the later parts of a statement that became several.
    pub(crate) count: Option<Counted>,
    pub(crate) line: usize,
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) dst: Vec<Arg>,
    pub(crate) src: Vec<Arg>,
    pub(crate) imm: i64,
    pub(crate) extra: Extra,
    /// Lanes must be together here.
    pub(crate) together: bool,
}

/// An entry, decoded.
pub(crate) struct Decoded {
    pub(crate) insts: Vec<Inst>,
    /// Class of each register, with temporaries.
    pub(crate) regs: Vec<Class>,
    /// By statement: its first instruction.
    pub(crate) starts: Vec<usize>,
    /// There are fences, or accesses that acquire or release.
    pub(crate) fences: bool,
}

type Result<T, E = String> = std::result::Result<T, E>;

pub(crate) struct Decoder<'a> {
    f: &'a Function,
    params: HashMap<&'a str, usize>,
    dynamic_shared: usize,
    insts: Vec<Inst>,
    regs: Vec<Class>,
    sites: u32,
    line: usize,
    guard: Option<(u32, bool)>,
    /// No instruction of this statement has been counted yet.
    first: bool,
}

/// Decodes an entry whose dynamic shared memory begins at `dynamic_shared`.
pub(crate) fn decode(f: &Function, dynamic_shared: usize, lines: &[&str]) -> std::result::Result<Decoded, LoadError> {
    let mut d = Decoder {
        f,
        params: f.params.iter().map(|p| (p.name.as_str(), p.offset)).collect(),
        dynamic_shared,
        insts: Vec::new(),
        regs: f.regs.clone(),
        sites: 0,
        line: 0,
        guard: None,
        first: true,
    };
    let mut starts = Vec::with_capacity(f.body.len() + 1);
    for s in &f.body {
        starts.push(d.insts.len());
        d.line = s.line;
        d.guard = s.guard;
        d.first = true;
        d.statement(s).map_err(|what| LoadError {
            kernel: f.name.clone(),
            line: s.line,
            text: lines.get(s.line - 1).unwrap_or(&"").trim().to_string(),
            what,
        })?;
    }
    starts.push(d.insts.len());
    let fences = f.body.iter().any(|s| {
        let orders = |part| matches!(part, "membar" | "fence" | "acquire" | "release" | "acq_rel");
        s.opcode.split('.').any(orders)
    });
    // Running past the last statement ends a thread.
    d.guard = None;
    d.first = false;
    d.push(exec::EXIT, Counted::Control, vec![], vec![], Extra::Exit);
    Ok(Decoded { insts: d.insts, regs: d.regs, starts, fences })
}

impl Decoder<'_> {
    fn statement(&mut self, s: &Statement) -> Result<()> {
        let parts: Vec<&str> = s.opcode.split('.').collect();
        match parts[0] {
            "bra" => return self.branch(s),
            "ret" | "exit" if s.operands.is_empty() && matches!(parts[1..], [] | ["uni"]) => {
                self.push(exec::EXIT, Counted::Control, vec![], vec![], Extra::Exit);
                return Ok(());
            }
            "trap" if parts.len() == 1 => {
                self.push(exec::TRAP, Counted::Control, vec![], vec![], Extra::Exit);
                return Ok(());
            }
            "bar" | "barrier" if parts[1..] != ["warp", "sync"] => return self.barrier(s, &parts),
            "ld" | "st" => return self.load_or_store(s, &parts),
            "atom" | "red" => return self.atomic(s, &parts),
            "ldmatrix" => return self.matrix(s, &parts),
            "cp" if matches!(parts[1..], ["async", "ca" | "cg", ..]) => return self.copy(s, &parts),
            "mov" if s.operands.iter().any(|o| matches!(o, Operand::Vector(_))) => return self.vector_move(s),
            "setp" => return self.compare(s, &parts),
            "call" => return Err("calls are not supported, inline the function".to_string()),
            _ => {}
        }
        let Some(row) = exec::find(&s.opcode) else { return Err(unknown(&s.opcode)) };
        if parts[0] == "cvt" { self.convert(s, row, &parts) } else { self.row(s, row) }
    }

    /// An instruction of the table, its operands as they stand.
    fn row(&mut self, s: &Statement, row: &Row) -> Result<()> {
        let mut operands: Vec<&Operand> = Vec::new();
        for (i, operand) in s.operands.iter().enumerate() {
            match operand {
                Operand::Pair(a, b) if i == 0 && row.dst.len() == 2 => operands.extend([&**a, &**b]),
                Operand::Vector(v) => operands.extend(v),
                other if i == 0 && row.dst.len() == 2 => operands.extend([other, &Operand::Sink]),
                other => operands.push(other),
            }
        }
        let want = row.dst.len() + row.src.len();
        if operands.len() != want {
            return Err(format!("{} operands where {want} belong", operands.len()));
        }
        let (to, from) = operands.split_at(row.dst.len());
        let dst = to.iter().zip(&row.dst).map(|(o, &k)| self.destination(o, k)).collect::<Result<_>>()?;
        let src = from.iter().zip(&row.src).map(|(o, &k)| self.source(o, k)).collect::<Result<_>>()?;
        self.push(row.exec, row.count, dst, src, Extra::None);
        self.insts.last_mut().expect("just pushed").together = row.together;
        Ok(())
    }

    fn push(&mut self, exec: Exec, count: Counted, dst: Vec<Arg>, src: Vec<Arg>, extra: Extra) {
        let count = self.first.then_some(count);
        self.first = false;
        let (line, guard) = (self.line, self.guard);
        self.insts.push(Inst { exec, count, line, guard, dst, src, imm: 0, extra, together: false });
    }

    /// An instruction of the table by name, which must exist.
    fn emit(&mut self, name: &str, dst: Vec<Arg>, src: Vec<Arg>) {
        let row = exec::find(name).unwrap_or_else(|| panic!("the table has {name}"));
        self.push(row.exec, row.count, dst, src, Extra::None);
    }

    fn temporary(&mut self, class: Class) -> Arg {
        let reg = u32::try_from(self.regs.len()).expect("registers fit 32 bits");
        self.regs.push(class);
        Arg::Reg(reg)
    }

    fn site(&mut self) -> u32 {
        self.sites += 1;
        self.sites - 1
    }

    fn class(&self, reg: u32) -> Class {
        self.regs[reg as usize]
    }

    fn destination(&mut self, operand: &Operand, kind: Kind) -> Result<Arg> {
        match operand {
            Operand::Reg(reg) if self.class(*reg) == kind.class() => Ok(Arg::Reg(*reg)),
            Operand::Reg(_) => Err("a destination register of another size".to_string()),
            Operand::Sink => Ok(self.temporary(kind.class())),
            _ => Err("the destination is not a register".to_string()),
        }
    }

    fn source(&mut self, operand: &Operand, kind: Kind) -> Result<Arg> {
        match operand {
            Operand::Reg(reg) if self.class(*reg) == kind.class() => Ok(Arg::Reg(*reg)),
            Operand::Reg(_) => Err("a source register of another size".to_string()),
            Operand::Not(reg) if kind == Kind::Pred && self.class(*reg) == Class::Pred => {
                let to = self.temporary(Class::Pred);
                let counted = self.first;
                self.emit("not.pred", vec![to], vec![Arg::Reg(*reg)]);
                // The statement itself is counted, not the negation of its operand.
                self.insts.last_mut().expect("just pushed").count = None;
                self.first = counted;
                Ok(to)
            }
            Operand::Literal(literal) => constant(*literal, kind),
            Operand::Special(special) if kind == Kind::Word => Ok(Arg::Special(*special)),
            Operand::Symbol(name, offset) => self.symbol(name, *offset, kind),
            _ => Err("an operand that does not fit here".to_string()),
        }
    }

    /// A symbol's address: an offset in its own state space.
    fn symbol(&self, name: &str, offset: i64, kind: Kind) -> Result<Arg> {
        let add = |base: usize| (base as u64).wrapping_add_signed(offset);
        let address = match (self.params.get(name), self.f.variables.get(name)) {
            (Some(&param), _) => add(param),
            (None, Some(Place::Shared(at) | Place::Local(at))) => add(*at),
            (None, Some(Place::DynamicShared(_))) => add(self.dynamic_shared),
            (None, Some(Place::Global(at))) => {
                return match kind.class() {
                    Class::Wide => Ok(Arg::Global(add(*at))),
                    _ => Err("an address of global memory has 64 bits".to_string()),
                };
            }
            (None, None) => return Err(format!("{name} is not declared")),
        };
        match kind.class() {
            Class::Wide => Ok(Arg::Wide(address)),
            Class::Word => Ok(Arg::Word(exec::low_word(address))),
            Class::Pred => Err("an address is no predicate".to_string()),
        }
    }

    /// The address operand of an access: what its slot holds, whether that is 64 bits wide, and the offset.
    fn address(&self, operand: &Operand) -> Result<(Arg, bool, i64)> {
        match operand {
            Operand::Address(Base::Reg(reg), offset) => match self.class(*reg) {
                Class::Wide => Ok((Arg::Reg(*reg), true, *offset)),
                Class::Word => Ok((Arg::Reg(*reg), false, *offset)),
                Class::Pred => Err("a predicate is no address".to_string()),
            },
            Operand::Address(Base::Symbol(name), offset) => Ok((self.symbol(name, *offset, Kind::Wide)?, true, 0)),
            Operand::Address(Base::Absolute, offset) => Ok((Arg::Wide(offset.cast_unsigned()), true, 0)),
            _ => Err("an address in brackets is missing".to_string()),
        }
    }
}

/// What is said of a spelling that nothing here knows.
fn unknown(opcode: &str) -> String {
    format!("the instruction {opcode} is not supported")
}

/// A literal in the place of an operand of some kind.
fn constant(literal: Literal, kind: Kind) -> Result<Arg> {
    #[allow(clippy::cast_possible_truncation)]
    Ok(match (kind, literal) {
        (Kind::Pred, Literal::Int(x)) => Arg::Pred(x != 0),
        (Kind::Half, Literal::Int(x)) => Arg::Word(exec::low_word(x) & 0xffff),
        (Kind::Word, Literal::Int(x)) => Arg::Word(exec::low_word(x)),
        (Kind::Word | Kind::Float, Literal::F32(x)) => Arg::Word(x),
        (Kind::Word | Kind::Float, Literal::F64(x)) => Arg::Word((f64::from_bits(x) as f32).to_bits()),
        (Kind::Word | Kind::Float, Literal::Decimal(x)) => Arg::Word((x as f32).to_bits()),
        (Kind::Wide, Literal::Int(x)) => Arg::Wide(x),
        (Kind::Wide | Kind::Double, Literal::F64(x)) => Arg::Wide(x),
        (Kind::Wide | Kind::Double, Literal::Decimal(x)) => Arg::Wide(x.to_bits()),
        (Kind::Double, Literal::F32(x)) => Arg::Wide(f64::from(f32::from_bits(x)).to_bits()),
        _ => return Err("a literal of another type".to_string()),
    })
}
