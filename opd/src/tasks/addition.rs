//! `57+68=`: from the right, each column's digit and the carry out of it, then the sum: `51,21>125`.

use ptx::rng::Stream;

use super::Problem;
use super::vocab::{BOS, EOS, sym, value_id};

pub(super) fn prompt_max(digits: u32) -> usize {
    3 + 2 * digits as usize
}

/// Three tokens a column, of which the last comma is the `>`; then one digit more than a column each, and `<eos>`.
pub(super) fn completion_max(digits: u32) -> usize {
    4 * digits as usize + 2
}

pub(super) fn draw(digits: u32, stream: &mut Stream) -> Problem {
    let (left, right) = (number(digits, stream), number(digits, stream));
    let mut prompt = vec![BOS];
    prompt.extend(left.iter().map(|&digit| value_id(digit)));
    prompt.push(sym('+'));
    prompt.extend(right.iter().map(|&digit| value_id(digit)));
    prompt.push(sym('='));

    let mut solution = Vec::new();
    let mut sum = Vec::new(); // from the right
    let mut carry = 0;
    for (a, b) in left.iter().zip(&right).rev() {
        let column = a + b + carry;
        carry = column / 10;
        sum.push(column % 10);
        solution.extend([value_id(column % 10), value_id(carry), sym(',')]);
    }
    if carry > 0 {
        sum.push(carry);
    }
    *solution.last_mut().expect("at least one column") = sym('>');
    let answer = solution.len()..solution.len() + sum.len();
    solution.extend(sum.iter().rev().map(|&digit| value_id(digit)));
    solution.push(EOS);
    Problem { prompt, solution, answer }
}

/// The digits of a number that has exactly so many: the first is 0 only if it is the only one.
fn number(digits: u32, stream: &mut Stream) -> Vec<u32> {
    (0..digits).map(|i| if i == 0 && digits > 1 { 1 + stream.below(9) } else { stream.below(10) }).collect()
}
