//! Reading tokens one by one: names, numbers, marks, and what is said when another was expected.

use crate::lex::Lexeme;
use crate::parse::{Literal, LoadError, Parser, Result};

impl<'a> Parser<'a> {
    /// `+8`, `+-8`, `-8` or nothing.
    pub(super) fn offset(&mut self) -> Result<i64> {
        if self.eat('+') || self.peek() == Some(Lexeme::Mark('-')) { self.signed() } else { Ok(0) }
    }

    pub(super) fn signed(&mut self) -> Result<i64> {
        match self.literal()? {
            Literal::Int(x) => Ok(x.cast_signed()),
            _ => Err(self.error("a fraction where bytes are counted")),
        }
    }

    pub(super) fn literal(&mut self) -> Result<Literal> {
        let negative = self.eat('-');
        let Some(Lexeme::Number(text)) = self.peek() else {
            return Err(self.error("not an operand"));
        };
        self.at += 1;
        let bad = |p: &Self| {
            let mut e = p.error("not a number");
            e.line = p.tokens[p.at - 1].line;
            e
        };
        if let Some(hex) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
            let bits = u32::from_str_radix(hex, 16).map_err(|_| bad(self))?;
            return Ok(Literal::F32(if negative { bits ^ 1 << 31 } else { bits }));
        }
        if let Some(hex) = text.strip_prefix("0d").or(text.strip_prefix("0D")) {
            let bits = u64::from_str_radix(hex, 16).map_err(|_| bad(self))?;
            return Ok(Literal::F64(if negative { bits ^ 1 << 63 } else { bits }));
        }
        let digits = text.trim_end_matches('U');
        let (digits, radix) = match digits.get(..2) {
            Some("0x" | "0X") => (&digits[2..], 16),
            Some("0b" | "0B") => (&digits[2..], 2),
            _ if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()) => {
                (&digits[1..], 8)
            }
            _ => (digits, 10),
        };
        if let Ok(x) = u64::from_str_radix(digits, radix) {
            return Ok(Literal::Int(if negative { x.wrapping_neg() } else { x }));
        }
        let x: f64 = text.parse().map_err(|_| bad(self))?;
        Ok(Literal::Decimal(if negative { -x } else { x }))
    }

    pub(super) fn integer(&mut self) -> Result<u64> {
        match self.literal()? {
            Literal::Int(x) => Ok(x),
            _ => Err(self.error("not an integer")),
        }
    }

    pub(super) fn size(&mut self) -> Result<usize> {
        let x = self.integer()?;
        usize::try_from(x).map_err(|_| self.error("too large"))
    }

    pub(super) fn word(&mut self) -> Result<&'a str> {
        match self.peek() {
            Some(Lexeme::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.error("a name is missing")),
        }
    }

    pub(super) fn peek(&self) -> Option<Lexeme<'a>> {
        self.tokens.get(self.at).map(|t| t.what)
    }

    pub(super) fn eat(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Lexeme::Mark(mark));
        if found {
            self.at += 1;
        }
        found
    }

    pub(super) fn expect(&mut self, mark: char) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { Err(self.error(&format!("`{mark}` is missing"))) }
    }

    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    pub(super) fn skip_line(&mut self) {
        let line = self.line();
        while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    pub(super) fn skip_statement(&mut self) {
        while self.at < self.tokens.len() && !self.eat(';') {
            self.at += 1;
        }
    }

    pub(super) fn skip_braces(&mut self) -> Result<()> {
        while self.at < self.tokens.len() {
            self.at += 1;
            if self.eat('}') {
                return Ok(());
            }
        }
        Err(self.error("a section without an end"))
    }

    pub(super) fn error(&self, what: &str) -> LoadError {
        let line = self.line();
        LoadError {
            kernel: self.kernel.clone(),
            line,
            text: self.lines.get(line - 1).unwrap_or(&"").trim().to_string(),
            what: what.to_string(),
        }
    }
}
