//! One PTX instruction as text: guard, opcode, operands, with parts of it replaced.

/// An instruction that stands alone on its line.
#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    /// `@%p1` or `@!%p1`.
    pub guard: Option<&'a str>,
    /// With its modifiers and types: `setp.lt.u32`.
    pub opcode: &'a str,
    /// Split at the commas outside of braces and brackets.
    pub operands: Vec<&'a str>,
}

/// The same with parts replaced.
#[derive(Clone, Debug)]
pub struct Changed {
    guard: Option<String>,
    opcode: String,
    operands: Vec<String>,
}

impl<'a> Instruction<'a> {
    /// `None` for directives, labels, braces and lines with several statements.
    pub fn parse(line: &'a str) -> Option<Instruction<'a>> {
        let statement = line.strip_suffix(';')?;
        if statement.contains(';') || statement.starts_with(['.', '{', '}']) {
            return None;
        }
        let (guard, rest) = match statement.split_once(char::is_whitespace) {
            Some((guard, rest)) if guard.starts_with('@') => (Some(guard), rest.trim_start()),
            _ => (None, statement),
        };
        let (opcode, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        Some(Instruction { guard, opcode, operands: split(rest) })
    }

    /// Whether the opcode has this part: `rn` in `add.rn.f32`.
    pub fn has(&self, part: &str) -> bool {
        self.opcode.split('.').any(|own| own == part)
    }

    /// Whether it computes with floats.
    pub fn is_float(&self) -> bool {
        ["f16", "f16x2", "bf16", "bf16x2", "f32", "f64"].iter().any(|part| self.has(part))
    }

    /// An operand that is a decimal number.
    pub fn immediate(&self, at: usize) -> Option<i64> {
        self.operands.get(at)?.parse().ok()
    }

    /// Everything as it is.
    fn same(&self) -> Changed {
        Changed {
            guard: self.guard.map(str::to_owned),
            opcode: self.opcode.to_owned(),
            operands: self.operands.iter().map(|operand| (*operand).to_owned()).collect(),
        }
    }

    /// With another operand.
    pub fn with_operand(&self, at: usize, operand: &str) -> Changed {
        self.same().with_operand(at, operand)
    }

    /// With the first part of the opcode of this name replaced.
    pub fn with_part(&self, from: &str, to: &str) -> Changed {
        let at = self.opcode.split('.').position(|part| part == from);
        let parts: Vec<&str> =
            self.opcode.split('.').enumerate().map(|(i, part)| if Some(i) == at { to } else { part }).collect();
        Changed { opcode: parts.join("."), ..self.same() }
    }

    /// With another guard or none.
    pub fn with_guard(&self, guard: Option<&str>) -> Changed {
        Changed { guard: guard.map(str::to_owned), ..self.same() }
    }
}

impl Changed {
    /// With one more operand replaced.
    pub fn with_operand(mut self, at: usize, operand: &str) -> Changed {
        operand.clone_into(&mut self.operands[at]);
        self
    }

    /// As a line.
    pub fn text(&self) -> String {
        let guard = self.guard.as_ref().map_or(String::new(), |guard| format!("{guard} "));
        let space = if self.operands.is_empty() { "" } else { " " };
        format!("{guard}{}{space}{};", self.opcode, self.operands.join(", "))
    }
}

fn split(operands: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_usize, 0, Vec::new());
    for (i, c) in operands.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(operands[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    if !operands[from..].trim().is_empty() {
        parts.push(operands[from..].trim());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_come_apart_and_together() {
        for (line, guard, opcode, operands) in [
            ("ret;", None, "ret", vec![]),
            ("@%p1 bra \t$L__BB0_2;", Some("@%p1"), "bra", vec!["$L__BB0_2"]),
            ("st.global.v2.f32 \t[%rd1+-8], {%f1, %f2};", None, "st.global.v2.f32", vec!["[%rd1+-8]", "{%f1, %f2}"]),
            ("@!%p3 ld.global.f32 %f1, [%rd1];", Some("@!%p3"), "ld.global.f32", vec!["%f1", "[%rd1]"]),
        ] {
            let parsed = Instruction::parse(line).expect("an instruction");
            assert_eq!((parsed.guard, parsed.opcode, parsed.operands.clone()), (guard, opcode, operands), "{line}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&parsed.same().text()), words(line));
        }
    }

    #[test]
    fn other_lines_are_left_alone() {
        for line in
            ["$L__BB0_2:", ".reg .b32 %r<5>;", "{ .reg .pred p; setp.ne.u32 p, %r1, 0; }", "}", "", ".maxntid 1, 1, 1"]
        {
            assert!(Instruction::parse(line).is_none(), "{line}");
        }
    }
}
