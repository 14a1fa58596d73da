//! `x0 op1 y1 op2 y2 ... =`, evaluated from the left, every intermediate value written.

use ptx::rng::Stream;

use super::vocab::{BOS, EOS, sym, value_id};
use super::{Problem, VALUE_LEN};

pub(super) fn prompt_len(depth: u32) -> usize {
    3 + 2 * depth as usize
}

pub(super) fn completion_len(depth: u32) -> usize {
    depth as usize + 1
}

pub(super) fn draw(modulus: u32, depth: u32, ops: &str, stream: &mut Stream) -> Problem {
    let ops = ops.as_bytes();
    let op_count = u32::try_from(ops.len()).expect("at most three operations");
    let mut value = stream.below(modulus);
    let mut prompt = vec![BOS, value_id(value)];
    let mut solution = Vec::with_capacity(completion_len(depth));
    for _ in 0..depth {
        let op = char::from(ops[stream.below(op_count) as usize]);
        let operand = if op == '*' { unit(modulus, stream) } else { stream.below(modulus) };
        value = apply(value, op, operand, modulus);
        prompt.extend([sym(op), value_id(operand)]);
        solution.push(value_id(value));
    }
    prompt.push(sym('='));
    solution.push(EOS);
    let end = solution.len() - 1;
    Problem { prompt, solution, answer: end - 1..end }
}

/// `left op right` modulo `modulus`; both below it.
pub(super) fn apply(left: u32, op: char, right: u32, modulus: u32) -> u32 {
    match op {
        '+' => (left + right) % modulus,
        '-' => (left + modulus - right) % modulus,
        '*' => left * right % modulus, // at most 35 * 35
        _ => panic!("{op:?} is none of + - *"),
    }
}

/// A value with an inverse: multiplication by another one would map different values to the same, and forgive errors.
fn unit(modulus: u32, stream: &mut Stream) -> u32 {
    debug_assert!(modulus <= VALUE_LEN);
    loop {
        let value = stream.below(modulus);
        if gcd(value, modulus) == 1 {
            return value;
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
