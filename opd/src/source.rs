//! Where prompts come from and how completions are judged: a procedural task, or a file of prompts with answers.

use std::path::{Path, PathBuf};

use engine::chat::ChatTemplate;
use engine::tokenizer::Tokenizer;
use ptx::rng::{Purpose, Stream};

use crate::answer::same_number;
use crate::prompts::{self, PromptError};
use crate::tasks::{EOS, Problem, Split, TaskSpec, split_of};

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
        /// What it holds.
        rows: Vec<FileRow>,
        /// Turns completions into text for the judge.
        tokenizer: Option<Box<Tokenizer>>,
        /// Seed of the order.
        seed: u64,
        /// Rows to train on.
        train: Vec<usize>,
        /// Rows to judge by: all of them until [`Source::hold_out`] sets some apart.
        test: Vec<usize>,
    },
}

/// One prompt of a file.
#[derive(Clone, Debug)]
pub struct FileRow {
    /// Prompt ids.
    pub ids: Vec<u32>,
    /// The answer, where the file has one.
    pub answer: Option<String>,
    /// Which of the run's teachers scores its completions: 0 is `teacher`, from 1 on those of `task.teachers`.
    pub teacher: usize,
    /// The line it stands on, from 1.
    pub line: usize,
}

/// A prompt, with what judging its completion takes.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Prompt ids.
    pub prompt: Vec<u32>,
    /// Which of the run's teachers scores its completions.
    pub teacher: usize,
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

/// Which teacher a prompt's `teacher` key names: 0 without one, from 1 on the place in `names`.
fn teacher_of(key: Option<&serde_json::Value>, names: &[&str]) -> Result<usize, String> {
    let (Some(value), false) = (key, names.is_empty()) else { return Ok(0) };
    let found = value.as_str().and_then(|name| names.iter().position(|known| *known == name));
    found.map(|at| at + 1).ok_or_else(|| {
        format!(
            "`teacher` is {value}, which is none of task.teachers: {}; leave it out for `teacher` itself",
            names.join(", ")
        )
    })
}

impl Source {
    /// Reads a prompt file for a model. `teachers` are the names of the run's teachers beside the first; without any, a
    /// file's `teacher` keys are its own.
    pub fn open_file(
        file: &Path,
        tokenizer: Option<Tokenizer>,
        chat: Option<&ChatTemplate>,
        teachers: &[&str],
        seed: u64,
    ) -> Result<Source, SourceError> {
        let mut rows = Vec::new();
        for prompt in prompts::read(file)? {
            let failed = |what| SourceError::Line { file: file.to_owned(), line: prompt.line, what };
            let ids = to_ids(&prompt.source, tokenizer.as_ref(), chat).map_err(failed)?;
            let teacher = teacher_of(prompt.teacher.as_ref(), teachers).map_err(failed)?;
            rows.push(FileRow { ids, answer: prompt.answer, teacher, line: prompt.line });
        }
        let all: Vec<usize> = (0..rows.len()).collect();
        Ok(Source::File { rows, tokenizer: tokenizer.map(Box::new), seed, train: all.clone(), test: all })
    }

    /// Sets an eighth of a file's prompts apart for evaluation, by the hash of their ids, so that no prompt is in both
    /// splits. A file too small for that keeps all prompts in both. Tasks have disjoint splits anyway.
    #[must_use]
    pub fn hold_out(mut self) -> Source {
        if let Source::File { rows, train, test, .. } = &mut self {
            let (for_test, for_train): (Vec<usize>, Vec<usize>) =
                (0..rows.len()).partition(|&at| split_of(&rows[at].ids) == Split::Test);
            if !for_test.is_empty() && !for_train.is_empty() {
                (*train, *test) = (for_train, for_test);
            }
        }
        self
    }

    /// Whether the two splits share no prompt.
    #[must_use]
    pub fn holds_out(&self) -> bool {
        match self {
            Source::Task { .. } => true,
            Source::File { train, test, .. } => test.iter().all(|at| !train.contains(at)),
        }
    }

    /// Whether every id of a file's prompts is below `valid`.
    pub fn check_ids(&self, valid: usize, file: &Path) -> Result<(), SourceError> {
        let Source::File { rows, .. } = self else { return Ok(()) };
        let bad =
            |row: &FileRow| row.ids.iter().position(|&id| id as usize >= valid).map(|at| (row.line, at, row.ids[at]));
        rows.iter().find_map(bad).map_or(Ok(()), |(line, at, id)| {
            let what = format!("token {at} of the prompt is id {id}; the models have ids 0 to {} in common", valid - 1);
            Err(SourceError::Line { file: file.to_owned(), line, what })
        })
    }

    /// Leaves out prompts of more than `max` tokens.
    pub fn shorter_than(mut self, max: usize, file: &Path) -> Result<Source, SourceError> {
        if let Source::File { rows, train, test, .. } = &mut self {
            rows.retain(|row| row.ids.len() <= max);
            if rows.is_empty() {
                return Err(SourceError::AllTooLong { file: file.to_owned(), max });
            }
            *train = (0..rows.len()).collect();
            test.clone_from(train);
        }
        Ok(self)
    }

    /// Tokens of the longest prompt.
    #[must_use]
    pub fn longest(&self) -> usize {
        match self {
            Source::Task { spec, .. } => spec.prompt_max(),
            Source::File { rows, .. } => rows.iter().map(|row| row.ids.len()).max().unwrap_or(0),
        }
    }

    /// Prompt number `index` of a split. A file's training prompts come in shuffled passes, its test prompts in order.
    #[must_use]
    pub fn ask(&self, split: Split, index: u64) -> Asked {
        match self {
            Source::Task { spec, seed } => {
                let problem = spec.problem(*seed, split, index);
                Asked { prompt: problem.prompt.clone(), teacher: 0, judge: Judge::Problem(problem) }
            }
            Source::File { rows, seed, train, test, .. } => {
                let split_rows = if split == Split::Train { train } else { test };
                let len = split_rows.len() as u64;
                let (pass, at) = (index / len, usize::try_from(index % len).expect("an index of the file"));
                let at = match split {
                    Split::Test => split_rows[at],
                    Split::Train => {
                        let mut order = split_rows.clone();
                        Stream::new(*seed, Purpose::Data, pass).shuffle(&mut order);
                        order[at]
                    }
                };
                let FileRow { ids, answer, teacher, .. } = rows[at].clone();
                Asked { prompt: ids, teacher, judge: answer.map_or(Judge::None, Judge::Answer) }
            }
        }
    }

    /// BLAKE3 of a file's prompts and answers, in order: what a run's data order goes by, beside its seed.
    #[must_use]
    pub fn fingerprint(&self) -> Option<String> {
        let Source::File { rows, .. } = self else { return None };
        let mut hasher = blake3::Hasher::new();
        for FileRow { ids, answer, teacher, .. } in rows {
            hasher.update(&(ids.len() as u64).to_le_bytes());
            hasher.update(bytemuck::cast_slice(ids));
            let answer = answer.as_deref().unwrap_or_default();
            hasher.update(&(answer.len() as u64).to_le_bytes());
            hasher.update(answer.as_bytes());
            if *teacher > 0 {
                hasher.update(&(*teacher as u64).to_le_bytes()); // a file with one teacher has the hash that it always had
            }
        }
        Some(hasher.finalize().to_hex().to_string())
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

    /// Whether every completion of every prompt can be judged.
    #[must_use]
    pub fn judges(&self) -> bool {
        match self {
            Source::Task { .. } => true,
            Source::File { rows, tokenizer, .. } => tokenizer.is_some() && rows.iter().all(|row| row.answer.is_some()),
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

    /// How many different prompts there are to train on, where that is known.
    #[must_use]
    pub fn train_len(&self) -> Option<usize> {
        match self {
            Source::Task { .. } => None,
            Source::File { train, .. } => Some(train.len()),
        }
    }

    /// How many different prompts there are to judge by, where that is known.
    #[must_use]
    pub fn test_len(&self) -> Option<usize> {
        match self {
            Source::Task { .. } => None,
            Source::File { test, .. } => Some(test.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: u32) -> Source {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("prompts.jsonl");
        let text: String = (0..lines).map(|i| format!("{{\"ids\": [{i}, 7]}}\n")).collect();
        std::fs::write(&path, text).expect("written");
        Source::open_file(&path, None, None, &[], 3).expect("reads")
    }

    #[test]
    fn no_prompt_is_trained_on_and_judged_by() {
        let source = file(200).hold_out();
        let tests = source.test_len().expect("a file") as u64;
        assert!((10..50).contains(&tests) && source.holds_out(), "{tests} of 200");
        let judged: Vec<_> = (0..tests).map(|i| source.ask(Split::Test, i).prompt).collect();
        let mut trained: Vec<_> = (0..200 - tests).map(|i| source.ask(Split::Train, i).prompt).collect();
        assert!(trained.iter().all(|prompt| !judged.contains(prompt)));
        trained.sort();
        trained.dedup();
        assert_eq!(trained.len() as u64, 200 - tests, "a pass visits every prompt once");
    }

    #[test]
    fn a_file_without_answers_does_not_judge() {
        assert!(!file(3).judges());
    }

    #[test]
    fn a_file_that_nothing_trains_on_is_judged_whole() {
        assert_eq!(file(20).test_len(), Some(20));
        assert!(!file(1).hold_out().holds_out(), "one prompt cannot be split");
    }
}
