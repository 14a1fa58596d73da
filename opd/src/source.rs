//! Where prompts come from and how completions are judged: a procedural task, or a file of prompts with answers.

use std::path::{Path, PathBuf};

use engine::chat::ChatTemplate;
use engine::tokenizer::Tokenizer;
use ptx::rng::{Purpose, Stream};

use crate::answer::same_number;
use crate::prompts::{self, PromptError};
use crate::tasks::{EOS, Problem, Split, TaskSpec};

/// Prompts and a judge.
#[derive(Debug)]
pub enum Source {
    /// Problems drawn under a seed.
    Task {
        /// Which task.
        spec: TaskSpec,
        /// Seed of the problems.
        seed: u64,
    },
    /// Prompts of a file, visited in shuffled passes.
    File {
        /// Prompt ids, with the answer where the file has one.
        rows: Vec<(Vec<u32>, Option<String>)>,
        /// Turns completions into text for the judge.
        tokenizer: Option<Box<Tokenizer>>,
        /// Seed of the order.
        seed: u64,
    },
}

/// A prompt, with what judging its completion takes.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Prompt ids.
    pub prompt: Vec<u32>,
    judge: Judge,
}

#[derive(Clone, Debug)]
enum Judge {
    Problem(Problem),
    Answer(String),
    None,
}

/// Why a prompt file cannot be used with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file itself.
    #[error(transparent)]
    Prompts(#[from] PromptError),
    /// A line that this model cannot take.
    #[error("{file}:{line}: {what}", file = file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// Every prompt is too long.
    #[error("{file}: every prompt has more than max_prompt = {max} tokens", file = file.display())]
    AllTooLong {
        /// The file.
        file: PathBuf,
        /// The limit.
        max: usize,
    },
}

/// Ids of a prompt's text or messages.
pub fn to_ids(
    source: &prompts::Source,
    tokenizer: Option<&Tokenizer>,
    chat: Option<&ChatTemplate>,
) -> Result<Vec<u32>, String> {
    let encode = |text: &str, special: bool| {
        let tokenizer = tokenizer
            .ok_or("the prompt is text, and the model folder has no tokenizer.json; give token ids instead")?;
        tokenizer.encode(text, special).map_err(|e| e.to_string())
    };
    match source {
        prompts::Source::Ids(ids) => Ok(ids.clone()),
        prompts::Source::Text(text) => encode(text, true),
        prompts::Source::Chat(messages) => {
            let chat = chat.ok_or("the prompt is a chat, and the model folder has no chat template")?;
            let messages: Vec<serde_json::Value> =
                messages.iter().map(|m| serde_json::json!({"role": m.role, "content": m.content})).collect();
            encode(&chat.render(&messages, true).map_err(|e| e.to_string())?, false)
        }
    }
}

impl Source {
    /// Reads a prompt file for a model.
    pub fn open_file(
        file: &Path,
        tokenizer: Option<Tokenizer>,
        chat: Option<&ChatTemplate>,
        seed: u64,
    ) -> Result<Source, SourceError> {
        let mut rows = Vec::new();
        for prompt in prompts::read(file)? {
            let ids = to_ids(&prompt.source, tokenizer.as_ref(), chat).map_err(|what| SourceError::Line {
                file: file.to_owned(),
                line: prompt.line,
                what,
            })?;
            rows.push((ids, prompt.answer));
        }
        Ok(Source::File { rows, tokenizer: tokenizer.map(Box::new), seed })
    }

    /// Leaves out prompts of more than `max` tokens.
    pub fn shorter_than(mut self, max: usize, file: &Path) -> Result<Source, SourceError> {
        if let Source::File { rows, .. } = &mut self {
            rows.retain(|(ids, _)| ids.len() <= max);
            if rows.is_empty() {
                return Err(SourceError::AllTooLong { file: file.to_owned(), max });
            }
        }
        Ok(self)
    }

    /// Tokens of the longest prompt.
    #[must_use]
    pub fn longest(&self) -> usize {
        match self {
            Source::Task { spec, .. } => spec.prompt_max(),
            Source::File { rows, .. } => rows.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0),
        }
    }

    /// Prompt number `index` of a split. A file's test split is its own order from the start.
    #[must_use]
    pub fn ask(&self, split: Split, index: u64) -> Asked {
        match self {
            Source::Task { spec, seed } => {
                let problem = spec.problem(*seed, split, index);
                Asked { prompt: problem.prompt.clone(), judge: Judge::Problem(problem) }
            }
            Source::File { rows, seed, .. } => {
                let len = rows.len() as u64;
                let (pass, at) = (index / len, usize::try_from(index % len).expect("an index of the file"));
                let at = match split {
                    Split::Test => at,
                    Split::Train => {
                        let mut order: Vec<usize> = (0..rows.len()).collect();
                        Stream::new(*seed, Purpose::Data, pass).shuffle(&mut order);
                        order[at]
                    }
                };
                let (prompt, answer) = &rows[at];
                Asked { prompt: prompt.clone(), judge: answer.clone().map_or(Judge::None, Judge::Answer) }
            }
        }
    }

    /// Whether a completion is right; nothing when there is no answer to compare with.
    #[must_use]
    pub fn is_correct(&self, asked: &Asked, completion: &[u32]) -> Option<bool> {
        match (self, &asked.judge) {
            (Source::Task { spec, .. }, Judge::Problem(problem)) => Some(spec.is_correct(problem, completion)),
            (Source::File { tokenizer: Some(tokenizer), .. }, Judge::Answer(answer)) => {
                Some(same_number(&tokenizer.decode(completion), answer))
            }
            _ => None,
        }
    }

    /// Ids that end a completion, beside the model's own.
    #[must_use]
    pub fn stop_ids(&self) -> &'static [u32] {
        match self {
            Source::Task { .. } => &[EOS],
            Source::File { .. } => &[],
        }
    }

    /// How many different prompts there are, where that is known.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        match self {
            Source::Task { .. } => None,
            Source::File { rows, .. } => Some(rows.len()),
        }
    }

    /// True when there is no prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}
