//! Tokens to functions: registers numbered, labels resolved to statements, variables laid out. Nothing is decoded here.

mod cursor;
mod tree;

use std::collections::HashMap;

use crate::lex::{Lexeme, Token, lex};
use crate::types::{Class, Special, Type};

pub use tree::Param;
pub(crate) use tree::{Base, Function, Literal, Operand, Parsed, Place, Statement};

/// Why a module's text cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}line {line}: {what}: `{text}`", if kernel.is_empty() { String::new() } else { format!("kernel {kernel}, ") })]
pub struct LoadError {
    /// The kernel, or nothing outside of one.
    pub kernel: String,
    /// Line of the PTX text, from 1.
    pub line: usize,
    /// That line.
    pub text: String,
    /// What is wrong with it.
    pub what: String,
}

type Result<T, E = LoadError> = std::result::Result<T, E>;

/// Registers `%r0 .. %r9` of a declaration `%r<10>`.
struct Range {
    prefix: String,
    count: u32,
    first: u32,
}

#[derive(Default)]
struct Scope {
    names: HashMap<String, u32>,
    ranges: Vec<Range>,
}

struct Parser<'a> {
    lines: Vec<&'a str>,
    tokens: Vec<Token<'a>>,
    at: usize,
    kernel: String,
    scopes: Vec<Scope>,
    regs: Vec<Class>,
    globals: HashMap<String, Place>,
    module_shared: usize,
    image: Vec<u8>,
}

/// Parses a module.
pub(crate) fn parse(text: &str) -> Result<Parsed> {
    let lines: Vec<&str> = text.lines().collect();
    let tokens = lex(text).map_err(|e| LoadError {
        kernel: String::new(),
        line: e.line,
        text: lines.get(e.line - 1).unwrap_or(&"").trim().to_string(),
        what: e.what,
    })?;
    let mut parser = Parser {
        lines,
        tokens,
        at: 0,
        kernel: String::new(),
        scopes: Vec::new(),
        regs: Vec::new(),
        globals: HashMap::new(),
        module_shared: 0,
        image: Vec::new(),
    };
    let functions = parser.module()?;
    Ok(Parsed { functions, image: parser.image })
}

impl<'a> Parser<'a> {
    fn module(&mut self) -> Result<Vec<Function>> {
        let mut functions = Vec::new();
        while let Some(token) = self.tokens.get(self.at) {
            match token.what {
                Lexeme::Word(".version" | ".target" | ".address_size") => self.skip_line(),
                Lexeme::Word(".file" | ".loc") => self.skip_line(),
                Lexeme::Word(".section") => self.skip_braces()?,
                Lexeme::Word(".visible" | ".extern" | ".weak" | ".pragma") => {
                    if token.what == Lexeme::Word(".pragma") {
                        self.skip_statement();
                    } else {
                        self.at += 1;
                    }
                }
                Lexeme::Word(".entry") => {
                    self.at += 1;
                    functions.push(self.function()?);
                    self.kernel.clear();
                }
                Lexeme::Word(".func") => return Err(self.error("functions are not supported, inline them")),
                Lexeme::Word(".global" | ".const" | ".shared") => {
                    self.variable(None)?;
                }
                _ => return Err(self.error("not a directive of a module")),
            }
        }
        Ok(functions)
    }

    fn function(&mut self) -> Result<Function> {
        let line = self.line();
        let name = self.word()?.to_string();
        self.kernel.clone_from(&name);
        self.regs.clear();
        self.scopes = vec![Scope::default()];
        let mut f = Function {
            name,
            line,
            params: Vec::new(),
            param_bytes: 0,
            max_threads: None,
            regs: Vec::new(),
            body: Vec::new(),
            labels: HashMap::new(),
            variables: HashMap::new(),
            shared_bytes: 0,
            local_bytes: 0,
        };
        // Variables outside of the entry are laid out first, in every entry alike.
        f.variables = self.globals.clone();
        f.shared_bytes = self.module_shared;
        if self.eat('(') {
            while !self.eat(')') {
                self.param(&mut f)?;
                self.eat(',');
            }
        }
        loop {
            match self.peek() {
                Some(Lexeme::Word(".maxntid" | ".reqntid")) => {
                    self.at += 1;
                    let mut product = self.integer()?;
                    while self.eat(',') {
                        product *= self.integer()?;
                    }
                    f.max_threads = u32::try_from(product).ok();
                }
                Some(Lexeme::Word(".minnctapersm" | ".maxnreg" | ".maxnctapersm")) => {
                    self.at += 1;
                    self.integer()?;
                }
                Some(Lexeme::Mark('{')) => break,
                _ => return Err(self.error("not a directive of an entry")),
            }
        }
        self.expect('{')?;
        let mut depth = 1;
        while depth > 0 {
            self.statement(&mut f, &mut depth)?;
        }
        f.regs = std::mem::take(&mut self.regs);
        Ok(f)
    }

    fn param(&mut self, f: &mut Function) -> Result<()> {
        if self.word()? != ".param" {
            return Err(self.error("a parameter begins with .param"));
        }
        let (mut align, mut ty) = (None, None);
        let name = loop {
            match self.word()? {
                ".align" => align = Some(self.size()?),
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {
                    // `.ptr .global .align 16` says where a pointer parameter points, and nothing of its own layout.
                    if self.peek() == Some(Lexeme::Word(".align")) {
                        self.at += 1;
                        self.size()?;
                    }
                }
                word => match word.strip_prefix('.') {
                    Some(t) => ty = Some(Type::parse(t).ok_or_else(|| self.error("unknown parameter type"))?),
                    None => break word.to_string(),
                },
            }
        };
        let unit = ty.ok_or_else(|| self.error("a parameter without a type"))?.bytes();
        let mut size = unit;
        if self.eat('[') {
            size *= self.size()?;
            self.expect(']')?;
        }
        let align = align.unwrap_or(unit);
        let offset = f.param_bytes.next_multiple_of(align);
        f.param_bytes = offset + size;
        f.params.push(Param { name, size, align, offset });
        Ok(())
    }

    /// One variable: in an entry with `f`, outside of one without.
    fn variable(&mut self, mut f: Option<&mut Function>) -> Result<()> {
        let space = self.word()?;
        let (mut align, mut ty) = (None, None);
        let name = loop {
            match self.word()? {
                ".align" => align = Some(self.size()?),
                ".attribute" => return Err(self.error("attributes of variables are not supported")),
                word => match word.strip_prefix('.') {
                    Some(t) => ty = Some(Type::parse(t).ok_or_else(|| self.error("unknown type"))?),
                    None => break word.to_string(),
                },
            }
        };
        let unit = ty.ok_or_else(|| self.error("a variable without a type"))?.bytes();
        let align = align.unwrap_or(unit);
        let mut bytes = Some(unit);
        while self.eat('[') {
            if self.eat(']') {
                bytes = None;
            } else {
                let count = self.size()?;
                bytes = bytes.map(|b| b * count);
                self.expect(']')?;
            }
        }
        let place = match (space, bytes) {
            (".shared", None) => Place::DynamicShared(align),
            (".shared", Some(bytes)) => {
                let total = match &mut f {
                    Some(f) => &mut f.shared_bytes,
                    None => &mut self.module_shared,
                };
                let start = total.next_multiple_of(align);
                *total = start + bytes;
                Place::Shared(start)
            }
            (".local", Some(bytes)) => {
                let f = f.as_mut().ok_or_else(|| self.error("local memory outside of an entry"))?;
                let start = f.local_bytes.next_multiple_of(align);
                f.local_bytes = start + bytes;
                Place::Local(start)
            }
            (".global" | ".const", _) => {
                let start = self.image.len().next_multiple_of(align);
                self.image.resize(start, 0);
                if self.eat('=') {
                    self.initializer(unit)?;
                }
                let bytes = bytes.unwrap_or(self.image.len() - start);
                self.image.resize(start + bytes, 0);
                Place::Global(start)
            }
            _ => return Err(self.error("an array without a length")),
        };
        self.expect(';')?;
        match f {
            Some(f) => f.variables.insert(name, place),
            None => self.globals.insert(name, place),
        };
        Ok(())
    }

    fn initializer(&mut self, unit: usize) -> Result<()> {
        if self.eat('{') {
            while !self.eat('}') {
                self.initializer(unit)?;
                self.eat(',');
            }
            return Ok(());
        }
        let bits = match self.literal()? {
            Literal::Int(x) => x,
            Literal::F32(x) => u64::from(x),
            Literal::F64(x) => x,
            Literal::Decimal(_) => return Err(self.error("a decimal fraction in an initializer")),
        };
        self.image.extend_from_slice(&bits.to_le_bytes()[..unit]);
        Ok(())
    }

    fn statement(&mut self, f: &mut Function, depth: &mut usize) -> Result<()> {
        let line = self.line();
        match self.peek() {
            None => return Err(self.error("the end of the text inside of an entry")),
            Some(Lexeme::Mark('{')) => {
                self.at += 1;
                *depth += 1;
                self.scopes.push(Scope::default());
                return Ok(());
            }
            Some(Lexeme::Mark('}')) => {
                self.at += 1;
                *depth -= 1;
                self.scopes.pop();
                return Ok(());
            }
            Some(Lexeme::Mark(';')) => {
                self.at += 1;
                return Ok(());
            }
            Some(Lexeme::Word(".reg")) => return self.registers(),
            Some(Lexeme::Word(".shared" | ".local")) => return self.variable(Some(f)),
            Some(Lexeme::Word(".loc" | ".file")) => {
                self.skip_line();
                return Ok(());
            }
            Some(Lexeme::Word(".pragma")) => {
                self.skip_statement();
                return Ok(());
            }
            Some(Lexeme::Word(word)) if word.starts_with('.') => {
                return Err(self.error("not a directive of an entry's body"));
            }
            Some(Lexeme::Word(label)) if self.tokens.get(self.at + 1).map(|t| t.what) == Some(Lexeme::Mark(':')) => {
                if f.labels.insert(label.to_string(), f.body.len()).is_some() {
                    return Err(self.error("a label twice"));
                }
                self.at += 2;
                return Ok(());
            }
            _ => {}
        }
        let mut guard = None;
        if self.eat('@') {
            let negated = self.eat('!');
            let name = self.word()?;
            let reg = self.register(name).ok_or_else(|| self.error("an unknown predicate"))?;
            if self.regs[reg as usize] != Class::Pred {
                return Err(self.error("the guard is not a predicate"));
            }
            guard = Some((reg, negated));
        }
        let opcode = self.word()?.to_string();
        let mut operands = Vec::new();
        if !self.eat(';') {
            loop {
                operands.push(self.operand()?);
                if self.eat(';') {
                    break;
                }
                self.expect(',')?;
            }
        }
        f.body.push(Statement { line, guard, opcode, operands });
        Ok(())
    }

    fn registers(&mut self) -> Result<()> {
        self.at += 1;
        let ty = self.word()?;
        let ty = ty
            .strip_prefix('.')
            .and_then(Type::parse)
            .ok_or_else(|| self.error("registers of an unknown type (128-bit ones are not supported)"))?;
        loop {
            let name = self.word()?.to_string();
            let first = u32::try_from(self.regs.len()).expect("registers fit 32 bits");
            let mut count = 1;
            if self.eat('<') {
                count = u32::try_from(self.integer()?).map_err(|_| self.error("too many registers"))?;
                self.expect('>')?;
                let scope = self.scopes.last_mut().expect("a function has a scope");
                scope.ranges.push(Range { prefix: name, count, first });
            } else {
                self.scopes.last_mut().expect("a function has a scope").names.insert(name, first);
            }
            self.regs.resize(self.regs.len() + count as usize, ty.class());
            if self.eat(';') {
                return Ok(());
            }
            self.expect(',')?;
        }
    }

    fn register(&self, name: &str) -> Option<u32> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        let canonical = digits > 0 && (digits == 1 || !number.starts_with('0'));
        self.scopes.iter().rev().find_map(|scope| {
            scope.names.get(name).copied().or_else(|| {
                let number: u32 = canonical.then(|| number.parse().ok()).flatten()?;
                let range = scope.ranges.iter().find(|r| r.prefix == prefix && number < r.count)?;
                Some(range.first + number)
            })
        })
    }

    fn operand(&mut self) -> Result<Operand> {
        let first = self.single()?;
        if self.eat('|') {
            let second = self.single()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn single(&mut self) -> Result<Operand> {
        match self.peek() {
            Some(Lexeme::Mark('{')) => {
                self.at += 1;
                let mut parts = Vec::new();
                while !self.eat('}') {
                    parts.push(self.single()?);
                    self.eat(',');
                }
                Ok(Operand::Vector(parts))
            }
            Some(Lexeme::Mark('[')) => {
                self.at += 1;
                let address = match self.peek() {
                    Some(Lexeme::Word(_)) => {
                        let name = self.word()?;
                        let base = match self.register(name) {
                            Some(reg) => Base::Reg(reg),
                            None => Base::Symbol(name.to_string()),
                        };
                        Operand::Address(base, self.offset()?)
                    }
                    _ => Operand::Address(Base::Absolute, self.signed()?),
                };
                self.expect(']')?;
                Ok(address)
            }
            Some(Lexeme::Mark('!')) => {
                self.at += 1;
                let name = self.word()?;
                self.register(name).map(Operand::Not).ok_or_else(|| self.error("an unknown predicate"))
            }
            Some(Lexeme::Word(name)) => {
                self.at += 1;
                if name == "_" {
                    return Ok(Operand::Sink);
                }
                if let Some(reg) = self.register(name) {
                    return Ok(Operand::Reg(reg));
                }
                if let Some(special) = Special::parse(name) {
                    return Ok(Operand::Special(special));
                }
                if name.starts_with('%') {
                    self.at -= 1;
                    return Err(self.error(&format!("the register {name} is unknown or not supported")));
                }
                Ok(Operand::Symbol(name.to_string(), self.offset()?))
            }
            _ => Ok(Operand::Literal(self.literal()?)),
        }
    }
}
