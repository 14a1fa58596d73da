//! PTX text to tokens, each with its line.

/// A token and the line it stands on, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) line: usize,
    pub(crate) what: Lexeme<'a>,
}

/// The kinds of token. An opcode with its modifiers is one word: `ld.global.L1::no_allocate.v4.u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lexeme<'a> {
    /// A name, directive or opcode.
    Word(&'a str),
    /// A literal that begins with a digit.
    Number(&'a str),
    /// A quoted string, without its quotes.
    Text(&'a str),
    /// Any other character.
    Mark(char),
}

/// A character that no token begins with, or a comment or string without an end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LexError {
    pub(crate) line: usize,
    pub(crate) what: String,
}

/// Splits `text` into tokens; comments are dropped.
pub(crate) fn lex(text: &str) -> Result<Vec<Token<'_>>, LexError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at..].find("*/").ok_or(LexError { line, what: "a comment without an end".into() })?;
                line += text[at..at + end].matches('\n').count();
                at += end + 2;
            }
            b'"' => {
                let end = text[at + 1..].find('"').ok_or(LexError { line, what: "a string without an end".into() })?;
                tokens.push(Token { line, what: Lexeme::Text(&text[at + 1..at + 1 + end]) });
                at += end + 2;
            }
            b'0'..=b'9' => {
                at = number_end(bytes, at);
                tokens.push(Token { line, what: Lexeme::Number(&text[start..at]) });
            }
            b if is_word(b) => {
                at += 1;
                loop {
                    if at < bytes.len() && is_word(bytes[at]) {
                        at += 1;
                    } else if at + 2 < bytes.len() && &bytes[at..at + 2] == b"::" && is_word(bytes[at + 2]) {
                        at += 3;
                    } else {
                        break;
                    }
                }
                tokens.push(Token { line, what: Lexeme::Word(&text[start..at]) });
            }
            b if b"{}[]()<>,;:|!@+-=".contains(&b) => {
                tokens.push(Token { line, what: Lexeme::Mark(char::from(b)) });
                at += 1;
            }
            _ => {
                let found = text[at..].chars().next().unwrap_or(' ');
                return Err(LexError { line, what: format!("the character {found:?}") });
            }
        }
    }
    Ok(tokens)
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%' | b'.')
}

/// The end of a number that begins at `at`; a sign belongs to it only after a decimal exponent's `e`.
fn number_end(bytes: &[u8], mut at: usize) -> usize {
    let prefixed = bytes[at] == b'0' && bytes.get(at + 1).is_some_and(|b| b"xXfFdDbB".contains(b));
    while at < bytes.len() {
        let b = bytes[at];
        let signed = !prefixed && (b == b'+' || b == b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if !(b.is_ascii_alphanumeric() || b == b'.' || signed) {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        lex(text)
            .unwrap()
            .iter()
            .map(|t| match t.what {
                Lexeme::Word(w) => format!("w:{w}"),
                Lexeme::Number(n) => format!("n:{n}"),
                Lexeme::Text(s) => format!("t:{s}"),
                Lexeme::Mark(c) => c.to_string(),
            })
            .collect()
    }

    #[test]
    fn an_opcode_is_one_word_and_a_label_is_not() {
        assert_eq!(
            words("ld.global.nc.L1::no_allocate.v4.u32 {%r1,_}, [%rd26+-8];"),
            [
                "w:ld.global.nc.L1::no_allocate.v4.u32",
                "{",
                "w:%r1",
                ",",
                "w:_",
                "}",
                ",",
                "[",
                "w:%rd26",
                "+",
                "-",
                "n:8",
                "]",
                ";"
            ]
        );
        assert_eq!(words("$L__BB0_1:\n ret;"), ["w:$L__BB0_1", ":", "w:ret", ";"]);
    }

    #[test]
    fn literals_and_comments() {
        assert_eq!(
            words("0f3F800000 // x\n0d0000000000000000 1.5e-3 7U /* a\nb */ 0x1F"),
            ["n:0f3F800000", "n:0d0000000000000000", "n:1.5e-3", "n:7U", "n:0x1F"]
        );
        assert_eq!(lex("a\nb /* x\n*/ c").unwrap().last().unwrap().line, 3);
        assert_eq!(lex("a\n  ~").unwrap_err().line, 2);
    }
}
