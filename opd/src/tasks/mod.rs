//! Procedural tasks: endless problems from a seed, each with a written solution and an exact check.
//!
//! A problem is a pure function of (task, seed, split, index): no state, no files, the same on every machine. Whether a
//! prompt belongs to the training or the test split is a pure function of its tokens alone, so the two never meet,
//! whatever the seeds.
//!
//! | task | prompt | solution | horizon |
//! |---|---|---|---|
//! | `modular-chain` | `7+5*3=` | every intermediate value, `26` (mod 10) | long: an early error spoils all that follows |
//! | `addition` | `57+68=` | columns from the right as digit and carry, then the sum: `51,21>125` | the carries |
//! | `expression` | `((1+2)*(3-4))=` | every innermost pair reduced at once, step by step: `(3*9)=7` | the depth |
//! | `copy`, `sort` | `cab>`, `cab:` | `cab`, `abc` | none: the control |
//!
//! # What counts as correct
//! [`TaskSpec::is_correct`] asks for the final answer and for the form, not for true steps: a completion is correct if
//! it has as many tokens as the solution, equals it from the answer to the closing `<eos>`, and before the answer has a
//! value of the task (below the modulus) wherever the solution has a value and the same symbol wherever it has another
//! symbol. Anything after `<eos>`, a missing `<eos>` (a rollout cut at its length limit) and an answer with leading
//! zeros are wrong.
//!
//! # How to add a task
//! 1. Write `tasks/<name>.rs` with a `draw(.., &mut Stream) -> Problem`. Use only symbols of [`vocab()`]; its spare
//!    ones are free, and ids never change, since trained models depend on them. Draw only from the given stream.
//! 2. Add a variant to [`TaskSpec`] with a default for each field and its arm in [`TaskSpec::example`], and the arms
//!    of `check` (ranges), `draw`, `prompt_max`, `completion_max` (tight: the tests meet them) and `value_count`. The
//!    compiler names every place.
//! 3. Give `tests.rs` an evaluator that shares no code with `draw` (it starts from the prompt's text), and a row in
//!    its table of specs. The tests there then cover splits, lengths, corruptions and the tokenizer.

mod addition;
mod chain;
mod expression;
mod letters;
mod vocab;

use std::ops::Range;

use ptx::rng::{Purpose, Stream};
use serde::{Deserialize, Serialize};

pub use vocab::{
    BOS, EOS, PAD, ParseError, VALUE_LEN, VOCAB_LEN, Vocab, id_value, tokenizer_config_json, tokenizer_json, value_id,
    vocab,
};

/// One prompt in this many goes to the test split.
const TEST_SHARE: u64 = 8;
/// Draws after which [`TaskSpec::check`] takes a split for empty.
const CHECK_DRAWS: u32 = 2_000;

/// A task and its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TaskSpec {
    /// `x0 op1 y1 op2 y2 ...`, evaluated from the left modulo `modulus`, every intermediate value written. What is
    /// multiplied by has an inverse, so that every step keeps an earlier error alive.
    ModularChain {
        /// Values are `0..modulus`, each one symbol (base 36); 2 to 36.
        #[serde(default = "defaults::modulus")]
        modulus: u32,
        /// How many operations.
        #[serde(default = "defaults::chain_depth")]
        depth: u32,
        /// The operations to draw from: some of `+`, `-`, `*`, each once.
        #[serde(default = "defaults::ops")]
        ops: String,
    },
    /// The sum of two numbers of equal length, with the carries written.
    Addition {
        /// Digits of the shortest operands.
        #[serde(default = "defaults::digits_min")]
        digits_min: u32,
        /// Digits of the longest operands.
        #[serde(default = "defaults::digits_max")]
        digits_max: u32,
        /// Digits of the test split's operands, for a test of length generalisation; without it the test split has
        /// the lengths of the training split.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digits_test: Option<u32>,
    },
    /// A nested expression with `+`, `-`, `*` modulo `modulus`, reduced step by step.
    Expression {
        /// Nesting, which is also the number of steps.
        #[serde(default = "defaults::expression_depth")]
        depth: u32,
        /// Values are `0..modulus`, each one symbol (base 36); 2 to 36.
        #[serde(default = "defaults::modulus")]
        modulus: u32,
    },
    /// Letters to write again.
    Copy {
        /// Letters of the shortest prompts.
        #[serde(default = "defaults::len_min")]
        len_min: u32,
        /// Letters of the longest prompts.
        #[serde(default = "defaults::len_max")]
        len_max: u32,
    },
    /// Letters to write in order.
    Sort {
        /// Letters of the shortest prompts.
        #[serde(default = "defaults::len_min")]
        len_min: u32,
        /// Letters of the longest prompts.
        #[serde(default = "defaults::len_max")]
        len_max: u32,
    },
}

/// The sizes of a task that names none.
mod defaults {
    pub(super) fn modulus() -> u32 {
        10
    }
    pub(super) fn chain_depth() -> u32 {
        8
    }
    pub(super) fn ops() -> String {
        "+-*".to_string()
    }
    pub(super) fn digits_min() -> u32 {
        2
    }
    pub(super) fn digits_max() -> u32 {
        5
    }
    pub(super) fn expression_depth() -> u32 {
        3
    }
    pub(super) fn len_min() -> u32 {
        4
    }
    pub(super) fn len_max() -> u32 {
        12
    }
}

/// Why a task cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A size outside its range.
    #[error("{key} is {value}; it must be {min} to {max}")]
    Range {
        /// The field.
        key: &'static str,
        /// Its value.
        value: u32,
        /// The least it may be.
        min: u32,
        /// The most it may be.
        max: u32,
    },
    /// Operations that the chain does not know, or the same one twice.
    #[error("ops is {ops:?}; it must be one or more of + - *, each at most once")]
    Ops {
        /// The field's value.
        ops: String,
    },
    /// So few different prompts that one split is empty.
    #[error("{key} is too small: there are so few different prompts that the {split:?} split is empty")]
    TooFewPrompts {
        /// A field that makes the task larger.
        key: &'static str,
        /// The split without prompts.
        split: Split,
    },
}

impl TaskError {
    /// The field to change.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            TaskError::Range { key, .. } | TaskError::TooFewPrompts { key, .. } => key,
            TaskError::Ops { .. } => "ops",
        }
    }
}

/// Which problems: those to learn from or those to judge by. No prompt is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// To learn from.
    Train,
    /// To judge by.
    Test,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Token ids, from `<bos>` to the symbol that asks.
    pub prompt: Vec<u32>,
    /// Token ids: written steps, the answer, `<eos>`.
    pub solution: Vec<u32>,
    /// Where in `solution` the answer stands.
    pub answer: Range<usize>,
}

impl TaskSpec {
    /// The names that `name` takes in a run file.
    pub const NAMES: [&str; 5] = ["modular-chain", "addition", "expression", "copy", "sort"];

    /// The task called `name`, every field present: what can be set, and to what kind of value.
    #[must_use]
    pub fn example(name: &str) -> Option<TaskSpec> {
        use defaults as d;
        Some(match name {
            "modular-chain" => TaskSpec::ModularChain { modulus: d::modulus(), depth: d::chain_depth(), ops: d::ops() },
            "addition" => TaskSpec::Addition {
                digits_min: d::digits_min(),
                digits_max: d::digits_max(),
                digits_test: Some(d::digits_max() + 1),
            },
            "expression" => TaskSpec::Expression { depth: d::expression_depth(), modulus: d::modulus() },
            "copy" => TaskSpec::Copy { len_min: d::len_min(), len_max: d::len_max() },
            "sort" => TaskSpec::Sort { len_min: d::len_min(), len_max: d::len_max() },
            _ => return None,
        })
    }

    /// Whether the sizes are in range and both splits have prompts.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), TaskError> {
        let key = match self {
            TaskSpec::ModularChain { modulus, depth, ops } => {
                range("modulus", *modulus, 2, VALUE_LEN)?;
                range("depth", *depth, 1, 512)?;
                let ok = ops.chars().enumerate().all(|(i, op)| "+-*".contains(op) && ops.find(op) == Some(i));
                if ops.is_empty() || !ok {
                    return Err(TaskError::Ops { ops: ops.clone() });
                }
                "depth"
            }
            TaskSpec::Addition { digits_min, digits_max, digits_test } => {
                range("digits_max", *digits_max, 1, 128)?;
                range("digits_min", *digits_min, 1, *digits_max)?;
                if let Some(digits) = digits_test {
                    range("digits_test", *digits, *digits_max + 1, 129)?;
                }
                "digits_max"
            }
            TaskSpec::Expression { depth, modulus } => {
                range("depth", *depth, 1, 7)?;
                range("modulus", *modulus, 2, VALUE_LEN)?;
                "depth"
            }
            TaskSpec::Copy { len_min, len_max } | TaskSpec::Sort { len_min, len_max } => {
                range("len_max", *len_max, 1, 512)?;
                range("len_min", *len_min, 1, *len_max)?;
                "len_max"
            }
        };
        for split in [Split::Train, Split::Test] {
            let mut stream = Stream::new(0, Purpose::Data, 0);
            let found = (0..CHECK_DRAWS).any(|_| split_of(&self.draw(split, &mut stream).prompt) == split);
            if !found {
                return Err(TaskError::TooFewPrompts { key, split });
            }
        }
        Ok(())
    }

    /// Problem `index` of `split` under `seed`.
    ///
    /// # Panics
    /// When [`TaskSpec::check`] refuses the task.
    #[must_use]
    pub fn problem(&self, seed: u64, split: Split, index: u64) -> Problem {
        let mut stream = Stream::new(seed, Purpose::Data, index);
        // A task that passed `check` misses the split this often with a probability of nil.
        for _ in 0..100 * CHECK_DRAWS {
            let problem = self.draw(split, &mut stream);
            if split_of(&problem.prompt) == split {
                return problem;
            }
        }
        panic!("{self:?} has no prompt for the {split:?} split; `check` says so beforehand")
    }

    /// Whether `completion` (from the first token after the prompt to its `<eos>`) solves `problem`; the module's page
    /// says what counts.
    #[must_use]
    pub fn is_correct(&self, problem: &Problem, completion: &[u32]) -> bool {
        let steps = problem.answer.start;
        let same_kind = |(&want, &got): (&u32, &u32)| match id_value(want) {
            Some(_) => id_value(got).is_some_and(|value| value < self.value_count()),
            None => want == got,
        };
        completion.len() == problem.solution.len()
            && completion[steps..] == problem.solution[steps..]
            && problem.solution[..steps].iter().zip(completion).all(same_kind)
    }

    /// The most tokens a solution has, `<eos>` included.
    #[must_use]
    pub fn completion_max(&self) -> usize {
        match self {
            TaskSpec::ModularChain { depth, .. } => chain::completion_len(*depth),
            TaskSpec::Addition { digits_max, digits_test, .. } => {
                addition::completion_max(digits_test.unwrap_or(*digits_max))
            }
            TaskSpec::Expression { depth, .. } => expression::completion_max(*depth),
            TaskSpec::Copy { len_max, .. } | TaskSpec::Sort { len_max, .. } => letters::completion_max(*len_max),
        }
    }

    /// The most tokens a prompt has, `<bos>` included.
    #[must_use]
    pub fn prompt_max(&self) -> usize {
        match self {
            TaskSpec::ModularChain { depth, .. } => chain::prompt_len(*depth),
            TaskSpec::Addition { digits_max, digits_test, .. } => {
                addition::prompt_max(digits_test.unwrap_or(*digits_max))
            }
            TaskSpec::Expression { depth, .. } => expression::prompt_max(*depth),
            TaskSpec::Copy { len_max, .. } | TaskSpec::Sort { len_max, .. } => letters::prompt_max(*len_max),
        }
    }

    /// The steps of a solution write values below this.
    fn value_count(&self) -> u32 {
        match self {
            TaskSpec::ModularChain { modulus, .. } | TaskSpec::Expression { modulus, .. } => *modulus,
            TaskSpec::Addition { .. } => 10,
            TaskSpec::Copy { .. } | TaskSpec::Sort { .. } => 0, // no steps
        }
    }

    /// The next problem of the stream, of whichever split; `split` only says how long.
    fn draw(&self, split: Split, stream: &mut Stream) -> Problem {
        match self {
            TaskSpec::ModularChain { modulus, depth, ops } => chain::draw(*modulus, *depth, ops, stream),
            TaskSpec::Addition { digits_min, digits_max, digits_test } => {
                let digits = match (split, digits_test) {
                    (Split::Test, Some(digits)) => *digits,
                    _ => between(*digits_min, *digits_max, stream),
                };
                addition::draw(digits, stream)
            }
            TaskSpec::Expression { depth, modulus } => expression::draw(*depth, *modulus, stream),
            TaskSpec::Copy { len_min, len_max } => letters::copy(between(*len_min, *len_max, stream), stream),
            TaskSpec::Sort { len_min, len_max } => letters::sort(between(*len_min, *len_max, stream), stream),
        }
    }
}

fn range(key: &'static str, value: u32, min: u32, max: u32) -> Result<(), TaskError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(TaskError::Range { key, value, min, max }) }
}

/// Uniform in `min..=max`.
fn between(min: u32, max: u32, stream: &mut Stream) -> u32 {
    min + stream.below(max - min + 1)
}

/// The split that a prompt belongs to: by the FNV-1a hash of its ids, mixed once more because the low bits of FNV-1a
/// see little of the first tokens.
#[must_use]
pub fn split_of(prompt: &[u32]) -> Split {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &id in prompt {
        hash = (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    if (hash >> 32).is_multiple_of(TEST_SHARE) { Split::Test } else { Split::Train }
}

#[cfg(test)]
mod tests;
