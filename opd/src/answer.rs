//! The numeric answer of a text, compared exactly.
//!
//! The answer is the last number of the last complete `\boxed{...}`; without one, the last number after the last
//! `####`; without either, the last number of the text. Numbers have an optional sign, thousands commas, a decimal part,
//! an exponent, and may be a fraction (`3/4`, `\frac{3}{4}`). They are compared as exact fractions of decimals, so
//! `1,000.50` equals `1000.5` and no rounding makes two different answers equal.

/// Whether the numeric answer of `completion` equals that of `answer`. A text without a number is no answer.
#[must_use]
pub fn same_number(completion: &str, answer: &str) -> bool {
    match (number(completion), number(answer)) {
        (Some(got), Some(want)) => got.equals(&want),
        _ => false,
    }
}

/// The numeric answer of a text, if it has one.
#[must_use]
pub fn number(text: &str) -> Option<Number> {
    let part = match last_boxed(text) {
        Some(inside) => inside,
        None => text.rfind("####").map_or(text, |at| &text[at + 4..]),
    };
    last_number(&plain(part))
}

/// A number as written: one decimal over another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number {
    above: Decimal,
    below: Decimal,
}

/// `digits * 10^exponent`, the digits without zeros at either end; zero has none and is not negative.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Number {
    /// Whether both are the same number, however they are written.
    #[must_use]
    pub fn equals(&self, other: &Number) -> bool {
        self.above.times(&other.below) == other.above.times(&self.below)
    }
}

impl Decimal {
    fn new(negative: bool, mut digits: Vec<u8>, mut exponent: i64) -> Decimal {
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
        digits.drain(..zeros);
        if digits.is_empty() {
            return Decimal { negative: false, digits, exponent: 0 };
        }
        Decimal { negative, digits, exponent }
    }

    fn one() -> Decimal {
        Decimal::new(false, vec![1], 0)
    }

    fn times(&self, other: &Decimal) -> Decimal {
        if other.digits == [1] {
            // By far the most frequent case, and the one that long digit strings come with.
            let exponent = self.exponent + other.exponent;
            return Decimal::new(self.negative != other.negative, self.digits.clone(), exponent);
        }
        let mut places = vec![0_u64; self.digits.len() + other.digits.len()]; // from the left
        for (i, &a) in self.digits.iter().enumerate() {
            for (j, &b) in other.digits.iter().enumerate() {
                places[i + j + 1] += u64::from(a) * u64::from(b);
            }
        }
        let mut carry = 0;
        for place in places.iter_mut().rev() {
            let sum = *place + carry;
            carry = sum / 10;
            *place = sum % 10;
        }
        let digits = places.iter().map(|&place| u8::try_from(place).expect("one digit")).collect();
        Decimal::new(self.negative != other.negative, digits, self.exponent + other.exponent)
    }
}

/// What stands in the last `\boxed{...}` whose braces close. One that was cut off is no answer.
fn last_boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    text.rmatch_indices(OPEN).find_map(|(at, _)| {
        let inside = &text[at + OPEN.len()..];
        let mut depth = 1;
        for (i, c) in inside.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(&inside[..i]);
            }
        }
        None
    })
}

/// The text with LaTeX's ways of writing numbers made plain.
fn plain(text: &str) -> String {
    let mut text = text.replace('\u{2212}', "-").replace("{,}", ",");
    for nothing in ["\\!", "\\,", "\\$", "\\left", "\\right"] {
        text = text.replace(nothing, "");
    }
    for frac in ["\\dfrac{", "\\tfrac{", "\\frac{"] {
        text = plain_fractions(&text, frac);
    }
    text
}

/// `\frac{3}{4}` becomes `3/4`; anything but two plain groups is left alone.
fn plain_fractions(text: &str, frac: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(frac) {
        out.push_str(&rest[..at]);
        let tail = &rest[at + frac.len()..];
        let groups = tail.split_once("}{").and_then(|(above, more)| {
            let (below, after) = more.split_once('}')?;
            (!above.contains(['{', '}']) && !below.contains('{')).then_some((above, below, after))
        });
        rest = match groups {
            Some((above, below, after)) => {
                out.push_str(&format!("{above}/{below} "));
                after
            }
            None => tail,
        };
    }
    out + rest
}

fn last_number(text: &str) -> Option<Number> {
    let bytes = text.as_bytes();
    let mut last = None;
    let mut at = 0;
    while at < bytes.len() {
        let Some((above, end)) = decimal_at(bytes, at) else {
            at += 1;
            continue;
        };
        at = end;
        let mut number = Number { above, below: Decimal::one() };
        if bytes.get(at) == Some(&b'/')
            && let Some((below, end)) = decimal_at(bytes, at + 1)
            && !below.digits.is_empty()
        {
            number.below = below;
            at = end;
        }
        last = Some(number);
    }
    last
}

/// The decimal that begins exactly at `start`, and where it ends.
fn decimal_at(bytes: &[u8], start: usize) -> Option<(Decimal, usize)> {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = start;
    let signed = matches!(bytes.get(at), Some(b'-' | b'+'));
    let mut negative = false;
    if signed {
        // After a value the sign is an operation: `5-3` ends in 3.
        let after_value =
            start > 0 && (bytes[start - 1].is_ascii_alphanumeric() || matches!(bytes[start - 1], b')' | b'}'));
        negative = bytes[at] == b'-' && !after_value;
        at += 1;
        if bytes.get(at) == Some(&b'$') {
            at += 1;
        }
    }
    // A point that follows a digit belongs to that digit's number.
    let leading_point = bytes.get(at) == Some(&b'.') && is_digit(at + 1) && !(at > 0 && is_digit(at - 1));
    if !is_digit(at) && !leading_point {
        return None;
    }
    let mut digits = Vec::new();
    let first = at;
    while is_digit(at) {
        digits.push(bytes[at] - b'0');
        at += 1;
    }
    // Commas part thousands if one to three digits come first and each group has three; otherwise they part numbers.
    if (1..=3).contains(&(at - first)) {
        let mut end = at;
        while bytes.get(end) == Some(&b',') && (1..=3).all(|i| is_digit(end + i)) && !is_digit(end + 4) {
            end += 4;
        }
        digits.extend(bytes[at..end].iter().filter(|byte| byte.is_ascii_digit()).map(|byte| byte - b'0'));
        at = end;
    }
    let mut exponent = 0;
    if bytes.get(at) == Some(&b'.') && is_digit(at + 1) {
        at += 1;
        while is_digit(at) {
            digits.push(bytes[at] - b'0');
            exponent -= 1;
            at += 1;
        }
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        let from = at + 1 + sign;
        let to = (from..).find(|&i| !is_digit(i)).expect("the text ends");
        // Six digits: beyond any number that is meant as one.
        if (1..=6).contains(&(to - from)) {
            let size = bytes[from..to].iter().fold(0_i64, |size, byte| 10 * size + i64::from(byte - b'0'));
            exponent += if bytes[at + 1] == b'-' { -size } else { size };
            at = to;
        }
    }
    Some((Decimal::new(negative, digits, exponent), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal() {
        let cases = [
            ("The answer is 42.", "42"),
            ("so 1,234,567 in all", "1234567"),
            ("1{,}234", "1234"),
            ("it costs $1,000.50", "1000.5"),
            ("= -3", "-3"),
            ("x = \u{2212}3", "-3"),
            ("a loss of -$5", "-5"),
            ("5-3", "3"),
            ("5 - 3 = 2, surely", "2"),
            ("+7", "7"),
            (".5", "0.50"),
            ("007", "7"),
            ("-0", "0"),
            ("1e3", "1000"),
            ("2.5E-2", "0.025"),
            ("He has 3 apples and 4 pears.\n#### 7", "#### 7"),
            ("#### 12 or so, not 13", "13"),
            ("\\boxed{7}, checked with 100 cases", "7"),
            ("\\boxed{3} no, \\boxed{\\text{about } 4}", "4"),
            ("first \\boxed{8} and then \\boxed{9", "8"),
            ("\\boxed{\\frac{1}{2}}", "0.5"),
            ("\\dfrac{-2}{4}", "-1/2"),
            ("\\frac{\\sqrt{2}}{4}", "4"),
            ("2/3", "4/6"),
            ("1/0", "0"),
            ("1, 2, 3", "3"),
            ("1,2,3", "3"),
            ("12,3456", "3456"),
            ("100000000000000000000000001", "100000000000000000000000001"),
            ("0.1", "1/10"),
        ];
        for (completion, answer) in cases {
            assert!(same_number(completion, answer), "{completion:?} is {answer}: {:?}", number(completion));
        }
    }

    #[test]
    fn different() {
        let cases = [
            ("", "0"),
            ("no number", "0"),
            ("42", "none"),
            ("42", "43"),
            ("3", "-3"),
            ("3/2", "1/2"),
            ("\\boxed{none} 42", "42"),
            ("100000000000000000000000001", "100000000000000000000000002"), // equal in f64
            ("0.30000000000000001", "0.3"),                                 // equal in f64
            ("1.0001", "1"),
            ("1,23", "123"),
            ("1e3", "3"),
        ];
        for (completion, answer) in cases {
            assert!(!same_number(completion, answer), "{completion:?} is not {answer}");
        }
    }

    #[test]
    fn any_text_is_read_without_panic() {
        let pieces =
            ["-", "+", "$", ".", ",", "1", "23", "456", "e", "/", "\\boxed{", "}", "\\frac{", "}{", "é", "####", " "];
        let mut stream = ptx::rng::Stream::new(1, ptx::rng::Purpose::Test, 0);
        let count = u32::try_from(pieces.len()).unwrap();
        for _ in 0..20_000 {
            let text: String = (0..stream.below(12)).map(|_| pieces[stream.below(count) as usize]).collect();
            let same = same_number(&text, &text);
            assert_eq!(same, number(&text).is_some(), "{text:?}");
        }
        assert!(same_number(&"9".repeat(100_000), &"9".repeat(100_000)));
    }
}
