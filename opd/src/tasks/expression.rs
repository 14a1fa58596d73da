//! `((1+2)*(3-4))=`: a nested expression. Each step writes it again with every innermost pair replaced by its value.

use ptx::rng::Stream;

use super::Problem;
use super::chain::apply;
use super::vocab::{BOS, EOS, sym, value_id};

const OPS: [char; 3] = ['+', '-', '*'];

enum Node {
    Value(u32),
    Pair(Box<Node>, char, Box<Node>),
}

/// A full tree has `2^depth` values, one operation fewer, and two parentheses for each operation.
fn tree_len(depth: u32) -> usize {
    (4 << depth) - 3
}

pub(super) fn prompt_max(depth: u32) -> usize {
    tree_len(depth) + 2
}

/// A full tree of each lesser depth, the `=` between them, and `<eos>`.
pub(super) fn completion_max(depth: u32) -> usize {
    (0..depth).map(tree_len).sum::<usize>() + depth as usize
}

pub(super) fn draw(depth: u32, modulus: u32, stream: &mut Stream) -> Problem {
    let mut tree = grow(depth, modulus, stream);
    let mut prompt = vec![BOS];
    write(&tree, &mut prompt);
    prompt.push(sym('='));
    let mut solution = Vec::new();
    let mut answer = 0;
    for step in 0..depth {
        if step > 0 {
            solution.push(sym('='));
        }
        answer = solution.len();
        tree = reduce(tree, modulus);
        write(&tree, &mut solution);
    }
    let end = solution.len();
    solution.push(EOS);
    Problem { prompt, solution, answer: answer..end }
}

/// A tree of exactly this depth: one side has one level less, the other any lesser depth.
fn grow(depth: u32, modulus: u32, stream: &mut Stream) -> Node {
    if depth == 0 {
        return Node::Value(stream.below(modulus));
    }
    let op = OPS[stream.below(3) as usize];
    let other = stream.below(depth);
    let (left, right) = if stream.below(2) == 0 { (depth - 1, other) } else { (other, depth - 1) };
    let left = grow(left, modulus, stream);
    let right = grow(right, modulus, stream);
    Node::Pair(Box::new(left), op, Box::new(right))
}

/// Replaces every pair of two values by its value.
fn reduce(node: Node, modulus: u32) -> Node {
    match node {
        Node::Value(value) => Node::Value(value),
        Node::Pair(left, op, right) => match (*left, *right) {
            (Node::Value(left), Node::Value(right)) => Node::Value(apply(left, op, right, modulus)),
            (left, right) => Node::Pair(Box::new(reduce(left, modulus)), op, Box::new(reduce(right, modulus))),
        },
    }
}

fn write(node: &Node, out: &mut Vec<u32>) {
    match node {
        Node::Value(value) => out.push(value_id(*value)),
        Node::Pair(left, op, right) => {
            out.push(sym('('));
            write(left, out);
            out.push(sym(*op));
            write(right, out);
            out.push(sym(')'));
        }
    }
}
