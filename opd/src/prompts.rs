//! Prompts from a JSONL file: one object a line, with exactly one of
//!
//! * `prompt`: a string, or a list of chat messages;
//! * `messages`: a list of chat messages, `{"role": .., "content": ..}`;
//! * `ids` or `prompt_ids`: token ids, for which no tokenizer is needed;
//!
//! and, if answers are to be judged, `answer`: a string or a number; in a run with several teachers also `teacher`, the
//! name of the one that scores its completions. Other keys are the data set's own and are ignored.
//! Blank lines are skipped, a byte order mark and CRLF are taken in stride; everything else that is wrong is an error
//! that names file and line.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The keys that hold a prompt.
const PROMPT_KEYS: [&str; 4] = ["prompt", "messages", "ids", "prompt_ids"];
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What to continue.
    pub source: Source,
    /// The right answer, as text.
    pub answer: Option<String>,
    /// What stands under `teacher`, for a run that has several.
    pub teacher: Option<Value>,
    /// The line it stands on, from 1.
    pub line: usize,
}

/// What a prompt is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Text, to be encoded as it stands.
    Text(String),
    /// Messages, to be rendered by the model's chat template.
    Chat(Vec<Message>),
    /// Token ids, to be taken as they are.
    Ids(Vec<u32>),
}

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// Why a prompt file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no prompt in it.
    #[error("{}: no prompts; each line is an object such as {{\"prompt\": \"..\"}}", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A line is wrong.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what should stand there.
        what: String,
    },
}

/// Reads a prompt file.
///
/// # Errors
/// When it cannot be read, has no prompts, or one line is wrong.
pub fn read(file: &Path) -> Result<Vec<Prompt>, PromptError> {
    parse(file, &bytes(file)?)
}

pub(crate) fn bytes(file: &Path) -> Result<Vec<u8>, PromptError> {
    std::fs::read(file).map_err(|source| PromptError::Read { file: file.to_path_buf(), source })
}

/// Reads prompts from the bytes of a file, which is only named.
///
/// # Errors
/// When there are no prompts, or one line is wrong.
pub fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<Prompt>, PromptError> {
    objects(file, bytes, |line, object| {
        let teacher = object.get("teacher").cloned();
        Ok(Prompt { source: source(object)?, answer: answer(object)?, teacher, line })
    })
}

/// What `of` makes of each line's number and object.
pub(crate) fn objects<T>(
    file: &Path,
    bytes: &[u8],
    of: impl Fn(usize, &Map<String, Value>) -> Result<T, String>,
) -> Result<Vec<T>, PromptError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut all = Vec::new();
    for (line, bytes) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let one = object(bytes).and_then(|object| of(line, &object));
        all.push(one.map_err(|what| PromptError::Line { file: file.to_path_buf(), line, what })?);
    }
    if all.is_empty() { Err(PromptError::Empty { file: file.to_path_buf() }) } else { Ok(all) }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        format!("not UTF-8: byte {:#04x} in column {}", bytes[error.valid_up_to()], error.valid_up_to() + 1)
    })?;
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {}", json_error(&error)))?;
    match value {
        Value::Object(object) => Ok(object),
        other => Err(format!("{} where an object such as {{\"prompt\": \"..\"}} should be", kind(&other))),
    }
}

/// Serde counts lines from the text it was given, which is always one line here.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what} in column {}", error.column())
}

pub(crate) fn source(object: &Map<String, Value>) -> Result<Source, String> {
    let present: Vec<&str> = PROMPT_KEYS.into_iter().filter(|key| object.contains_key(*key)).collect();
    let key = match present[..] {
        [key] => key,
        [] => {
            let found: Vec<String> = object.keys().map(|key| format!("`{key}`")).collect();
            let found = if found.is_empty() { "nothing".to_string() } else { found.join(", ") };
            return Err(format!("found {found}, and none of `prompt`, `messages`, `ids`, `prompt_ids`"));
        }
        _ => return Err(format!("both `{}` and `{}`: which is the prompt? keep one", present[0], present[1])),
    };
    let value = &object[key];
    match (key, value) {
        ("prompt", Value::String(text)) => {
            if text.trim().is_empty() {
                return Err("`prompt` is empty".to_string());
            }
            Ok(Source::Text(text.clone()))
        }
        ("prompt" | "messages", Value::Array(list)) => messages(key, list),
        ("prompt", _) => Err(format!("`prompt` is {}; it must be a string or a list of messages", kind(value))),
        ("messages", _) => Err(format!("`messages` is {}; it must be a list of messages", kind(value))),
        (_, Value::Array(list)) => ids(key, list),
        _ => Err(format!("`{key}` is {}; it must be a list of token ids", kind(value))),
    }
}

fn ids(key: &str, list: &[Value]) -> Result<Source, String> {
    if list.is_empty() {
        return Err(format!("`{key}` is empty"));
    }
    Ok(Source::Ids(id_list(key, list)?))
}

/// Token ids, perhaps none; `key` says where they stand.
pub(crate) fn id_list(key: &str, list: &[Value]) -> Result<Vec<u32>, String> {
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("`{key}[{i}]` is {value}; a token id is a whole number from 0"))
    };
    list.iter().enumerate().map(id).collect()
}

fn messages(key: &str, list: &[Value]) -> Result<Source, String> {
    let messages = list
        .iter()
        .enumerate()
        .map(|(i, value)| message(value).map_err(|what| format!("`{key}[{i}]` {what}")))
        .collect::<Result<Vec<Message>, String>>()?;
    match messages.last() {
        None => Err(format!("`{key}` is empty")),
        Some(last) if last.role == "assistant" => {
            Err(format!("`{key}` ends with the assistant's own message; a prompt ends with the message to answer"))
        }
        Some(_) => Ok(Source::Chat(messages)),
    }
}

fn message(value: &Value) -> Result<Message, String> {
    let Value::Object(object) = value else {
        return Err(format!("is {}; a message is {{\"role\": .., \"content\": ..}}", kind(value)));
    };
    // An ignored key of a message (a tool call, a name) would silently change what the model is told.
    if let Some(key) = object.keys().find(|key| !["role", "content"].contains(&key.as_str())) {
        return Err(format!("has the key `{key}`; a message has `role` and `content` only"));
    }
    let role = match object.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.clone(),
        Some(Value::String(role)) => {
            return Err(format!("has role \"{role}\"; it must be one of {}", ROLES.join(", ")));
        }
        Some(other) => return Err(format!("has {} as `role`; it must be a string", kind(other))),
        None => return Err("has no `role`".to_string()),
    };
    let content = match object.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().map(text_part).collect::<Result<String, String>>()?,
        Some(other) => return Err(format!("has {} as `content`; it must be text", kind(other))),
        None => return Err("has no `content`".to_string()),
    };
    if content.trim().is_empty() && role == "user" {
        return Err("is empty".to_string());
    }
    Ok(Message { role, content })
}

/// The text of one part of a content list, `{"type": "text", "text": ..}`.
fn text_part(part: &Value) -> Result<&str, String> {
    match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text),
        _ => Err(format!("has the content part {part}; only {{\"type\": \"text\", \"text\": ..}} can be used")),
    }
}

fn answer(object: &Map<String, Value>) -> Result<Option<String>, String> {
    match object.get("answer") {
        Some(Value::String(text)) if text.trim().is_empty() => Err("`answer` is empty".to_string()),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(format!("`answer` is {}; it must be a string or a number", kind(other))),
        // A misspelt answer would pass for a prompt without one and every completion for wrong.
        None => not_misspelt(object, "answer").map(|()| None),
    }
}

/// An error if a key looks like `key` misspelt.
pub(crate) fn not_misspelt(object: &Map<String, Value>, key: &str) -> Result<(), String> {
    let near = |found: &&String| found.len() > 4 && strsim::osa_distance(&found.to_lowercase(), key) <= 1;
    object.keys().find(near).map_or(Ok(()), |found| Err(format!("`{found}`: did you mean `{key}`?")))
}

pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Prompt>, String> {
        parse(Path::new("p.jsonl"), text.as_bytes()).map_err(|error| error.to_string())
    }

    fn chat(messages: &[(&str, &str)]) -> Source {
        let message = |&(role, content): &(&str, &str)| Message { role: role.into(), content: content.into() };
        Source::Chat(messages.iter().map(message).collect())
    }

    #[test]
    fn every_form_is_read() {
        let text = "\u{feff}{\"prompt\": \"1+1=\", \"answer\": 2, \"id\": 7}\r\n\n\
            {\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}], \"answer\": \"two\"}\n\
            {\"messages\": [{\"role\": \"system\", \"content\": \"\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]}\n\
            {\"ids\": [0, 4294967295]}\n{\"prompt_ids\": [5], \"answer\": 1.50}\n";
        let want = [
            (Source::Text("1+1=".into()), Some("2"), 1),
            (chat(&[("user", "hi")]), Some("two"), 3),
            (chat(&[("system", ""), ("user", "ab")]), None, 4),
            (Source::Ids(vec![0, u32::MAX]), None, 5),
            (Source::Ids(vec![5]), Some("1.5"), 6),
        ];
        let got = parsed(text).unwrap();
        let got: Vec<_> = got.iter().map(|p| (p.source.clone(), p.answer.as_deref(), p.line)).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn errors_say_where_and_what() {
        let user = r#"{"role": "user", "content": "x"}"#;
        let cases = [
            ("{\"prompt\": \"a\"}\n{\"prompt\": }", "p.jsonl:2: not JSON: expected value in column 12"),
            ("[1]", "p.jsonl:1: a list where an object such as {\"prompt\": \"..\"} should be"),
            (r#"{"promt": "x"}"#, "p.jsonl:1: found `promt`, and none of `prompt`, `messages`, `ids`, `prompt_ids`"),
            ("{}", "p.jsonl:1: found nothing, and none of `prompt`, `messages`, `ids`, `prompt_ids`"),
            (r#"{"prompt": " \n"}"#, "p.jsonl:1: `prompt` is empty"),
            (r#"{"prompt": []}"#, "p.jsonl:1: `prompt` is empty"),
            (r#"{"ids": []}"#, "p.jsonl:1: `ids` is empty"),
            (r#"{"ids": [1, -1]}"#, "p.jsonl:1: `ids[1]` is -1; a token id is a whole number from 0"),
            (r#"{"ids": [4294967296]}"#, "p.jsonl:1: `ids[0]` is 4294967296; a token id is a whole number from 0"),
            (r#"{"ids": "1"}"#, "p.jsonl:1: `ids` is a string; it must be a list of token ids"),
            (r#"{"prompt": null}"#, "p.jsonl:1: `prompt` is null; it must be a string or a list of messages"),
            (r#"{"messages": "x"}"#, "p.jsonl:1: `messages` is a string; it must be a list of messages"),
            (r#"{"prompt": "x", "ids": [1]}"#, "p.jsonl:1: both `prompt` and `ids`: which is the prompt? keep one"),
            (r#"{"prompt": "x", "answer": true}"#, "p.jsonl:1: `answer` is a boolean; it must be a string or a number"),
            (r#"{"prompt": "x", "answer": ""}"#, "p.jsonl:1: `answer` is empty"),
            (r#"{"prompt": "x", "anwser": "1"}"#, "p.jsonl:1: `anwser`: did you mean `answer`?"),
            (r#"{"messages": [{"content": "x"}]}"#, "p.jsonl:1: `messages[0]` has no `role`"),
            (r#"{"messages": [{"role": "user"}]}"#, "p.jsonl:1: `messages[0]` has no `content`"),
            (
                r#"{"messages": [3]}"#,
                "p.jsonl:1: `messages[0]` is a number; a message is {\"role\": .., \"content\": ..}",
            ),
            (r#"{"messages": [{"role": "user", "content": " "}]}"#, "p.jsonl:1: `messages[0]` is empty"),
            (
                r#"{"messages": [{"role": "bot", "content": "x"}]}"#,
                "p.jsonl:1: `messages[0]` has role \"bot\"; it must be one of system, developer, user, assistant, tool",
            ),
            (
                r#"{"messages": [{"role": "user", "content": "x", "name": "y"}]}"#,
                "p.jsonl:1: `messages[0]` has the key `name`; a message has `role` and `content` only",
            ),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
                "p.jsonl:1: `messages[0]` has the content part {\"type\":\"image\"}; only {\"type\": \"text\", \"text\": ..} can be used",
            ),
            (
                &format!(r#"{{"messages": [{user}, {{"role": "assistant", "content": "x"}}]}}"#),
                "p.jsonl:1: `messages` ends with the assistant's own message; a prompt ends with the message to answer",
            ),
            ("\n\n", "p.jsonl: no prompts; each line is an object such as {\"prompt\": \"..\"}"),
        ];
        for (text, want) in cases {
            assert_eq!(parsed(text).unwrap_err(), want, "{text}");
        }
    }

    #[test]
    fn bad_bytes_and_missing_files() {
        let error = parse(Path::new("p.jsonl"), b"{\"prompt\": \"a\"}\n{\"prompt\": \"\xff\"}").unwrap_err();
        assert_eq!(error.to_string(), "p.jsonl:2: not UTF-8: byte 0xff in column 13");
        let missing = tempfile::tempdir().unwrap().path().join("none.jsonl");
        let error = read(&missing).unwrap_err().to_string();
        assert!(error.starts_with(&missing.display().to_string()), "{error}");
    }

    #[test]
    fn files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.jsonl");
        std::fs::write(&file, "{\"prompt\": \"x\"}").unwrap();
        assert_eq!(read(&file).unwrap()[0].source, Source::Text("x".into()));
    }
}
