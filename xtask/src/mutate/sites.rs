//! Mutants of a PTX text: each changes one line as a mistake of a programmer would. Pure: text in, mutants out.

use super::instruction::Instruction;
use crate::ptx::text::code;

/// What kind of mistake a mutant imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A barrier or a wait for copies is gone, or waits for fewer.
    Barrier,
    /// An address or the number it is made of is off.
    Index,
    /// The bound of a comparison is off by one.
    Bound,
    /// Two registers of a vector or of a matrix fragment are swapped.
    Fragment,
    /// Two operands are swapped where order matters.
    Order,
    /// Another rounding.
    Rounding,
    /// Another comparison.
    Compare,
    /// Another operation: add for sub, min for max, and for or.
    Operation,
    /// A guard predicate is gone, or the other way round.
    Guard,
}

/// Every kind, in the order of reports.
pub const KINDS: [Kind; 9] = [
    Kind::Barrier,
    Kind::Index,
    Kind::Bound,
    Kind::Fragment,
    Kind::Order,
    Kind::Rounding,
    Kind::Compare,
    Kind::Operation,
    Kind::Guard,
];

/// One changed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The kernel it is in.
    pub entry: String,
    /// Line number, from 1.
    pub line: usize,
    pub kind: Kind,
    /// The line as it is, trimmed.
    pub before: String,
    /// The line as the mutant has it; empty where it is gone.
    pub after: String,
}

impl Mutant {
    /// The text with this line changed. No line moves, so that faults name lines of the original.
    pub fn apply(&self, ptx: &str) -> String {
        let mut out = String::with_capacity(ptx.len() + self.after.len());
        for (i, line) in ptx.split_inclusive('\n').enumerate() {
            if i + 1 == self.line {
                out.push('\t');
                out.push_str(&self.after);
                out.push('\n');
            } else {
                out.push_str(line);
            }
        }
        out
    }
}

/// Every mutant of a text.
pub fn all(ptx: &str) -> Vec<Mutant> {
    let mut found = Vec::new();
    let mut entry = String::new();
    for (i, line) in ptx.lines().enumerate() {
        let text = code(line);
        if let Some(rest) = text.strip_prefix(".visible .entry ") {
            entry = rest.trim_end_matches('(').to_owned();
        }
        let Some(instruction) = Instruction::parse(text) else { continue };
        for (kind, after) in changes(&instruction) {
            let mutant = Mutant { entry: entry.clone(), line: i + 1, kind, before: text.to_owned(), after };
            found.push(mutant);
        }
    }
    found
}

/// The ways to get one instruction wrong.
fn changes(at: &Instruction) -> Vec<(Kind, String)> {
    let mut found = Vec::new();
    barrier(at, &mut found);
    addresses(at, &mut found);
    immediates(at, &mut found);
    fragments(at, &mut found);
    order(at, &mut found);
    rounding(at, &mut found);
    compare(at, &mut found);
    operation(at, &mut found);
    guard(at, &mut found);
    found
}

type Found = Vec<(Kind, String)>;

fn barrier(at: &Instruction, found: &mut Found) {
    let waits = ["bar.sync", "bar.warp.sync", "barrier.sync", "cp.async.wait_group", "cp.async.wait_all"];
    if waits.contains(&at.opcode) {
        found.push((Kind::Barrier, String::new()));
    }
    if let ("cp.async.wait_group", Some(left)) = (at.opcode, at.immediate(0)) {
        found.push((Kind::Barrier, at.with_operand(0, &(left + 1).to_string()).text()));
    }
}

/// Bytes of the access that an instruction makes, and so the least shift that stays aligned.
fn access_bytes(at: &Instruction) -> Option<i64> {
    let parts = || at.opcode.split('.');
    match parts().next()? {
        "ldmatrix" => Some(16),
        "cp" if at.opcode.contains("async.c") && !at.operands.is_empty() => at.immediate(2),
        "ld" | "st" | "atom" | "red" if !at.opcode.contains(".param") => {
            let element =
                parts().next_back()?.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse::<i64>().ok()? / 8;
            let elements = parts().find_map(|part| part.strip_prefix('v')?.parse::<i64>().ok()).unwrap_or(1);
            Some(element * elements)
        }
        _ => None,
    }
}

fn addresses(at: &Instruction, found: &mut Found) {
    let Some(bytes) = access_bytes(at) else { return };
    for (i, operand) in at.operands.iter().enumerate() {
        let Some(address) = operand.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else { continue };
        let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
        let Ok(offset) = offset.parse::<i64>() else { continue };
        for shift in [bytes, -bytes] {
            found.push((Kind::Index, at.with_operand(i, &format!("[{base}+{}]", offset + shift)).text()));
        }
    }
}

/// Numbers above this are masks, magic factors and bits of floats rather than counts.
const COUNT_MAX: i64 = 1 << 20;

fn immediates(at: &Instruction, found: &mut Found) {
    let Some(last) = at.operands.len().checked_sub(1) else { return };
    let Some(number) = at.immediate(last).filter(|number| number.abs() <= COUNT_MAX) else { return };
    let stem = at.opcode.split('.').next().unwrap_or_default();
    let is_integer = !at.is_float();
    let (kind, others) = match stem {
        // What is compared with a multiple of 32 is one too, as a rule, so that one less would be the same.
        "setp" if is_integer => {
            let unit = if number == 0 { 1 } else { 1 << number.trailing_zeros() };
            (Kind::Bound, vec![number + unit, number - unit])
        }
        // Bytes: one element of four bytes more or less.
        "add" | "sub" if at.opcode.ends_with("64") => (Kind::Index, vec![number + 4, number - 4]),
        "add" | "sub" if is_integer => (Kind::Index, vec![number + 1, number - 1]),
        "mul" if is_integer => (Kind::Index, vec![number * 2]),
        "mad" if is_integer => (Kind::Index, vec![number + 1]),
        "shl" | "shr" => (Kind::Index, vec![number + 1, (number - 1).max(0)]),
        "and" | "xor" | "or" => (Kind::Index, vec![number ^ 1, number >> 1]),
        "mov" if is_integer => (Kind::Index, vec![number + 1]),
        _ => return,
    };
    // A negative bound of an unsigned comparison is another text for a huge one; it is left out as too easy.
    let signed = at.opcode.split('.').any(|part| matches!(part, "s16" | "s32" | "s64"));
    for other in others.into_iter().filter(|other| *other != number && (signed || *other >= 0)) {
        found.push((kind, at.with_operand(last, &other.to_string()).text()));
    }
}

fn fragments(at: &Instruction, found: &mut Found) {
    if !["mma", "ldmatrix", "ld", "st"].contains(&at.opcode.split('.').next().unwrap_or_default()) {
        return;
    }
    for (i, operand) in at.operands.iter().enumerate() {
        let Some(inner) = operand.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else { continue };
        let registers: Vec<&str> = inner.split(',').map(str::trim).collect();
        for first in 0..registers.len() - 1 {
            if registers[first] != registers[first + 1] {
                let mut swapped = registers.clone();
                swapped.swap(first, first + 1);
                found.push((Kind::Fragment, at.with_operand(i, &format!("{{{}}}", swapped.join(", "))).text()));
            }
        }
    }
}

fn order(at: &Instruction, found: &mut Found) {
    let ordered = ["sub", "selp", "div", "rem", "shl", "shr", "prmt"];
    if ordered.contains(&at.opcode.split('.').next().unwrap_or_default())
        && at.operands.len() >= 3
        && at.operands[1] != at.operands[2]
        // A shift by a constant is no place where operands are confused.
        && !(at.opcode.starts_with("sh") && at.immediate(2).is_some())
    {
        let swapped = at.with_operand(1, at.operands[2]).with_operand(2, at.operands[1]);
        found.push((Kind::Order, swapped.text()));
    }
}

fn rounding(at: &Instruction, found: &mut Found) {
    // Conversions to 8 bits and arithmetic on halves know nearest alone; so does the simulator in f64.
    let fixed = ["e4m3x2", "e5m2x2", "f16x2", "f16", "bf16x2", "f64"].iter().any(|part| at.has(part));
    let packs = at.opcode.starts_with("cvt.rn.bf16x2");
    // Exact whatever the rounding: counts as floats, and products with powers of two.
    let counts = at.opcode.starts_with("cvt") && ["u16", "u32", "s32"].iter().any(|part| at.opcode.ends_with(part));
    let power = |operand: &&str| {
        // A float without a mantissa.
        let bits = operand.strip_prefix("0f").and_then(|bits| u32::from_str_radix(bits, 16).ok());
        bits.is_some_and(|bits| bits & 0x007f_ffff == 0)
    };
    let exact = counts || at.opcode.starts_with("mul") && at.operands.iter().any(power);
    if at.opcode.starts_with("mma") || fixed && !packs || exact {
        return;
    }
    for (from, to) in [("rn", "rz"), ("rni", "rzi"), ("rzi", "rni"), ("rmi", "rpi"), ("rpi", "rmi")] {
        if at.has(from) {
            found.push((Kind::Rounding, at.with_part(from, to).text()));
        }
    }
}

fn compare(at: &Instruction, found: &mut Found) {
    if !at.opcode.starts_with("setp.") {
        return;
    }
    // Of whole numbers the border moves; of floats, where equality is rare, the direction turns.
    let pairs: &[(&str, &str)] = if at.is_float() {
        &[("lt", "gt"), ("le", "ge"), ("ltu", "gtu"), ("leu", "geu"), ("eq", "neu"), ("equ", "ne"), ("num", "nan")]
    } else {
        &[("lt", "le"), ("gt", "ge"), ("eq", "ne"), ("lo", "ls"), ("hi", "hs")]
    };
    for (a, b) in pairs {
        for (from, to) in [(a, b), (b, a)] {
            if at.opcode.split('.').nth(1) == Some(from) {
                found.push((Kind::Compare, at.with_part(from, to).text()));
            }
        }
    }
}

fn operation(at: &Instruction, found: &mut Found) {
    let stem = at.opcode.split('.').next().unwrap_or_default();
    let to = match stem {
        "add" => "sub",
        "sub" => "add",
        "min" => "max",
        "max" => "min",
        "and" => "or",
        "or" => "and",
        "mul" if at.is_float() => "add",
        _ => return,
    };
    found.push((Kind::Operation, at.with_part(stem, to).text()));
}

fn guard(at: &Instruction, found: &mut Found) {
    let Some(guard) = at.guard else { return };
    let turned = guard.strip_prefix("@!").map_or_else(|| guard.replacen('@', "@!", 1), |rest| format!("@{rest}"));
    found.push((Kind::Guard, at.with_guard(None).text()));
    found.push((Kind::Guard, at.with_guard(Some(&turned)).text()));
}

#[cfg(test)]
#[path = "sites_tests.rs"]
mod tests;
