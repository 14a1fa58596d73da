//! Statements that become several instructions, or are not in the table: branches, barriers, moves of vectors, combined
//! comparisons, conversions into wider registers.

use crate::counters::Class as Counted;
use crate::decode::{Arg, Decoder, Extra, Result, unknown};
use crate::exec::{self, Row};
use crate::parse::{Operand, Statement};
use crate::types::{Class, Kind, Type};

impl Decoder<'_> {
    pub(super) fn branch(&mut self, s: &Statement) -> Result<()> {
        let uniform = match s.opcode.as_str() {
            "bra" => false,
            "bra.uni" => true,
            _ => return Err(unknown(&s.opcode)),
        };
        let [Operand::Symbol(label, 0)] = s.operands.as_slice() else {
            return Err("a branch goes to one label".to_string());
        };
        let target = *self.f.labels.get(label).ok_or_else(|| format!("the label {label} is not declared"))?;
        self.push(exec::BRANCH, Counted::Control, vec![], vec![], Extra::Branch { target, uniform });
        Ok(())
    }

    pub(super) fn barrier(&mut self, s: &Statement, parts: &[&str]) -> Result<()> {
        let known = match parts[0] {
            "bar" => matches!(parts[1..], ["sync"] | ["cta", "sync"]),
            _ => matches!(parts[1..], ["sync"] | ["cta", "sync"] | ["sync", "aligned"] | ["cta", "sync", "aligned"]),
        };
        if !known {
            return Err(unknown(&s.opcode));
        }
        let (number, threads) = match s.operands.as_slice() {
            [number] => (self.source(number, Kind::Word)?, Arg::Word(0)),
            [number, threads] => (self.source(number, Kind::Word)?, self.source(threads, Kind::Word)?),
            _ => return Err("a barrier has a number, and threads or none".to_string()),
        };
        self.push(exec::BAR_SYNC, Counted::Barrier, vec![], vec![number, threads], Extra::None);
        self.insts.last_mut().expect("just pushed").together = true;
        Ok(())
    }

    /// `mov.b32 r, {a, b}` and `mov.b32 {a, b}, r`.
    pub(super) fn vector_move(&mut self, s: &Statement) -> Result<()> {
        let bits = match s.opcode.as_str() {
            "mov.b16" => 16,
            "mov.b32" => 32,
            "mov.b64" => 64,
            _ => return Err(unknown(&s.opcode)),
        };
        let kind = |bits| match bits {
            8 | 16 => Kind::Half,
            32 => Kind::Word,
            _ => Kind::Wide,
        };
        match s.operands.as_slice() {
            [to, Operand::Vector(from)] => {
                let part = bits / from.len();
                let name = format!("mov.pack.{}.{part}", from.len());
                if part * from.len() != bits || exec::find(&name).is_none() {
                    return Err(format!("a vector of {} does not fill {bits} bits", from.len()));
                }
                let dst = self.destination(to, kind(bits))?;
                let src = from.iter().map(|o| self.source(o, kind(part))).collect::<Result<_>>()?;
                self.emit(&name, vec![dst], src);
                Ok(())
            }
            [Operand::Vector(to), from] => {
                let part = bits / to.len();
                let name = format!("mov.part.{part}.of.{}", bits.max(32));
                if part * to.len() != bits || exec::find(&name).is_none() {
                    return Err(format!("{bits} bits do not make a vector of {}", to.len()));
                }
                let src = self.source(from, kind(bits))?;
                for (i, o) in to.iter().enumerate().filter(|(_, o)| **o != Operand::Sink) {
                    let dst = self.destination(o, kind(part))?;
                    let at = u32::try_from(i * part).expect("within 64 bits");
                    self.emit(&name, vec![dst], vec![src, Arg::Word(at)]);
                }
                Ok(())
            }
            _ => Err("a move has a destination and a source".to_string()),
        }
    }

    /// `setp`, with a second destination, with a predicate to combine with, or neither.
    pub(super) fn compare(&mut self, s: &Statement, parts: &[&str]) -> Result<()> {
        let combine = parts.get(2).filter(|p| matches!(**p, "and" | "or" | "xor"));
        let plain: Vec<&str> =
            parts.iter().enumerate().filter(|&(i, _)| i != 2 || combine.is_none()).map(|(_, p)| *p).collect();
        let row = exec::find(&plain.join(".")).ok_or_else(|| unknown(&s.opcode))?;
        let (to, a, b, with) = match (s.operands.as_slice(), combine) {
            ([to, a, b], None) => (to, a, b, None),
            ([to, a, b, c], Some(_)) => (to, a, b, Some(c)),
            _ => return Err("a comparison has a destination and two sources, and a predicate with and, or, xor".into()),
        };
        let (p, q) = match to {
            Operand::Pair(p, q) => (&**p, Some(&**q)),
            p => (p, None),
        };
        let src = vec![self.source(a, row.src[0])?, self.source(b, row.src[1])?];
        let p = self.destination(p, Kind::Pred)?;
        if with.is_none() && q.is_none() {
            self.push(row.exec, row.count, vec![p], src, Extra::None);
            return Ok(());
        }
        let with = with.map(|c| self.source(c, Kind::Pred)).transpose()?;
        let holds = self.temporary(Class::Pred);
        self.push(row.exec, row.count, vec![holds], src, Extra::None);
        let fails = self.temporary(Class::Pred);
        self.emit("not.pred", vec![fails], vec![holds]);
        let q = q.map(|q| self.destination(q, Kind::Pred)).transpose()?;
        match (combine, with) {
            (Some(op), Some(with)) => {
                let name = format!("{op}.pred");
                // The predicate to combine with may be a destination as well.
                let kept = self.temporary(Class::Pred);
                self.emit("mov.pred", vec![kept], vec![with]);
                self.emit(&name, vec![p], vec![holds, kept]);
                if let Some(q) = q {
                    self.emit(&name, vec![q], vec![fails, kept]);
                }
            }
            _ => {
                self.emit("mov.pred", vec![p], vec![holds]);
                if let Some(q) = q {
                    self.emit("mov.pred", vec![q], vec![fails]);
                }
            }
        }
        Ok(())
    }

    /// `cvt`, whose registers may be wider than its types.
    pub(super) fn convert(&mut self, s: &Statement, row: &Row, parts: &[&str]) -> Result<()> {
        let (Some(Operand::Reg(to)), Some(from)) = (s.operands.first(), s.operands.get(1)) else {
            return self.row(s, row);
        };
        let wide_to = self.class(*to) == Class::Wide && row.dst[0].class() == Class::Word;
        let wide_from = matches!(from, Operand::Reg(r) if self.class(*r) == Class::Wide)
            && row.src.len() == 1
            && row.src[0].class() == Class::Word;
        if !wide_to && !wide_from {
            return self.row(s, row);
        }
        let mut operands = s.operands.clone();
        if wide_from {
            let narrow = self.temporary(Class::Word);
            let from = self.source(from, Kind::Wide)?;
            self.emit("narrow", vec![narrow], vec![from]);
            self.first = true;
            self.insts.last_mut().expect("just pushed").count = None;
            operands[1] = register(narrow);
        }
        let narrow = self.temporary(Class::Word);
        if wide_to {
            operands[0] = register(narrow);
        }
        self.row(&Statement { operands, ..s.clone() }, row)?;
        if wide_to {
            let signed = parts.get(parts.len() - 2).and_then(|t| Type::parse(t)).is_some_and(Type::is_signed);
            self.emit(if signed { "widen.s" } else { "widen.u" }, vec![Arg::Reg(*to)], vec![narrow]);
        }
        Ok(())
    }
}

fn register(arg: Arg) -> Operand {
    match arg {
        Arg::Reg(reg) => Operand::Reg(reg),
        _ => unreachable!("a temporary is a register"),
    }
}
