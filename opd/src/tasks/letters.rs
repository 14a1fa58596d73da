//! `cab>` asks for the letters again, `cab:` for the letters in order: no written value depends on an earlier one.

use ptx::rng::Stream;

use super::Problem;
use super::vocab::{BOS, EOS, sym};

pub(super) fn prompt_max(len: u32) -> usize {
    len as usize + 2
}

pub(super) fn completion_max(len: u32) -> usize {
    len as usize + 1
}

pub(super) fn copy(len: u32, stream: &mut Stream) -> Problem {
    let letters = letters(len, stream);
    problem(&letters, '>', letters.clone())
}

pub(super) fn sort(len: u32, stream: &mut Stream) -> Problem {
    let letters = letters(len, stream);
    let mut sorted = letters.clone();
    sorted.sort_unstable(); // ids ascend with the alphabet
    problem(&letters, ':', sorted)
}

fn letters(len: u32, stream: &mut Stream) -> Vec<u32> {
    (0..len).map(|_| sym('a') + stream.below(26)).collect()
}

fn problem(letters: &[u32], ask: char, mut solution: Vec<u32>) -> Problem {
    let mut prompt = vec![BOS];
    prompt.extend(letters);
    prompt.push(sym(ask));
    let answer = 0..solution.len();
    solution.push(EOS);
    Problem { prompt, solution, answer }
}
