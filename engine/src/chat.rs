//! Chat messages to text, by the template that a folder carries.
//!
//! Templates are written for Jinja2 as transformers sets it up; what it adds (Python's string methods, `tojson` in
//! Python's spacing, `raise_exception`, the tokenizer's special tokens) is here as well. `strftime_now` is left
//! undefined: the date would make the same messages different text, and templates that would use it test for it.

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value as JinjaValue};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Why messages cannot be made into a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// `tokenizer_config.json` is not what it should be.
    #[error("{}: {reason}", .file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The template is no template.
    #[error("{}: the chat template does not parse: {reason}", .file.display())]
    Parse {
        /// Where the template is.
        file: PathBuf,
        /// What is wrong, with the line.
        reason: String,
    },
    /// The template refuses these messages or fails on them.
    #[error("{}: the chat template fails on these messages: {reason}", .file.display())]
    Render {
        /// Where the template is.
        file: PathBuf,
        /// What it says, with the line.
        reason: String,
    },
}

/// A folder's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    file: PathBuf,
    environment: Environment<'static>,
    special: Map<String, Value>, // bos_token, eos_token, ...
    tool_use: bool,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// The template of the folder `dir`: `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`; none
    /// when it has neither. Of several named ones, `default` is taken, and `tool_use` for messages with tools.
    pub fn open(dir: &Path) -> Result<Option<ChatTemplate>, ChatError> {
        let config_file = dir.join("tokenizer_config.json");
        let bad = |reason: String| ChatError::Config { file: config_file.clone(), reason };
        let config: Map<String, Value> = match read(&config_file)? {
            Some(text) => serde_json::from_str(&text).map_err(|e| bad(format!("not a JSON object: {e}")))?,
            None => Map::new(),
        };
        let jinja_file = dir.join("chat_template.jinja");
        let (file, sources) = if let Some(source) = read(&jinja_file)? {
            (jinja_file, vec![(DEFAULT.to_owned(), source)])
        } else {
            match config.get("chat_template") {
                None | Some(Value::Null) => return Ok(None),
                Some(Value::String(source)) => (config_file, vec![(DEFAULT.to_owned(), source.clone())]),
                Some(list) => {
                    let named = named(list).ok_or_else(|| {
                        bad("`chat_template` must be a string or a list of {name, template} with one named default"
                            .into())
                    })?;
                    (config_file, named)
                }
            }
        };
        let mut environment = environment();
        let tool_use = sources.iter().any(|(name, _)| name == TOOL_USE);
        for (name, source) in sources {
            environment
                .add_template_owned(name, without_generation_marks(&source))
                .map_err(|e| ChatError::Parse { file: file.clone(), reason: e.to_string() })?;
        }
        let tokens = config.iter().filter(|(key, _)| key.ends_with("_token")).filter_map(|(key, token)| {
            let content = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some((key.clone(), json!(content)))
        });
        Ok(Some(ChatTemplate { file, environment, special: tokens.collect(), tool_use }))
    }

    /// The prompt that `messages` (objects with `role` and `content`, and what else the template reads) make; with
    /// `add_generation_prompt` it ends where the assistant's answer begins.
    pub fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, ChatError> {
        self.render_with(messages, add_generation_prompt, &Map::new())
    }

    /// As [`ChatTemplate::render`], with further variables: `tools`, `documents`, `enable_thinking`, ...
    pub fn render_with(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, ChatError> {
        let mut context = self.special.clone();
        context.insert("tools".into(), Value::Null);
        context.insert("documents".into(), Value::Null);
        context.extend(variables.clone());
        context.insert("messages".into(), json!(messages));
        context.insert("add_generation_prompt".into(), json!(add_generation_prompt));
        let name = if self.tool_use && !context["tools"].is_null() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).expect("added on opening");
        template
            .render(Serde(&context))
            .map_err(|e| ChatError::Render { file: self.file.clone(), reason: e.to_string() })
    }
}

fn read(file: &Path) -> Result<Option<String>, ChatError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Read { file: file.to_owned(), source }),
    }
}

fn named(list: &Value) -> Option<Vec<(String, String)>> {
    let entry = |v: &Value| Some((v.get("name")?.as_str()?.to_owned(), v.get("template")?.as_str()?.to_owned()));
    let named: Vec<(String, String)> = list.as_array()?.iter().map(entry).collect::<Option<_>>()?;
    named.iter().any(|(name, _)| name == DEFAULT).then_some(named)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the standard delimiters are valid"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<JinjaValue, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment
}

/// `{% generation %}` marks where the assistant's text is, for loss masks; in the text it is nothing.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        out.push_str(before);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` spaces it, without HTML escapes.
#[allow(clippy::needless_pass_by_value)] // the signature of a filter
fn tojson(value: JinjaValue, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    for key in ["ensure_ascii", "separators", "sort_keys"] {
        let _given: Option<JinjaValue> = options.get(key)?;
    }
    options.assert_all_used()?;
    let bad = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut bytes = Vec::new();
    if let Some(indent) = indent {
        let indent = " ".repeat(indent);
        let pretty = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, pretty)).map_err(bad)?;
    } else {
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, PythonSpacing)).map_err(bad)?;
    }
    String::from_utf8(bytes).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// `", "` between items and `": "` after keys.
struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ChatML as most folders write it, with the blocks on lines of their own.
    const CHATML: &str = "{% for message in messages %}\n    {% if message['role'] not in ['user', 'assistant', 'system'] %}\n        {{ raise_exception('no role ' + message['role']) }}\n    {% endif %}\n{{ '<|im_start|>' + message['role'] + '\\n' + message['content'].strip() + '<|im_end|>' + '\\n' }}{% endfor %}\n{% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}{% endif %}\n";

    fn template(config: &Value, jinja: Option<&str>) -> Result<Option<ChatTemplate>, ChatError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        if let Some(jinja) = jinja {
            std::fs::write(dir.path().join("chat_template.jinja"), jinja).unwrap();
        }
        ChatTemplate::open(dir.path())
    }

    fn render(source: &str, messages: &Value) -> String {
        let template = template(
            &json!({"chat_template": source, "bos_token": {"content": "<s>"}, "eos_token": "</s>",
                                        "unk_token": null}),
            None,
        );
        template.unwrap().unwrap().render(messages.as_array().unwrap(), true).unwrap()
    }

    #[test]
    fn chatml_has_the_spaces_it_should() {
        let messages =
            json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " <b>1 & 2</b> "}]);
        assert_eq!(
            render(CHATML, &messages),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<b>1 & 2</b><|im_end|>\n<|im_start|>assistant\n"
        );
        let template = template(&json!({"chat_template": CHATML}), None).unwrap().unwrap();
        assert_eq!(
            template.render(&[json!({"role": "user", "content": "x"})], false).unwrap(),
            "<|im_start|>user\nx<|im_end|>\n"
        );
        let error = template.render(&[json!({"role": "tool", "content": "x"})], true).unwrap_err().to_string();
        assert!(
            error.contains("tokenizer_config.json: the chat template fails") && error.contains("no role tool"),
            "{error}"
        );
    }

    #[test]
    fn what_transformers_adds_is_there() {
        let messages = json!([{"role": "user", "content": "a<b>c<b>d", "z": {"b": [1, 2.5, "é<"], "a": null}}]);
        let rows = [
            ("{{ bos_token }}{{ eos_token }}{{ unk_token }}", "<s></s>"),
            ("{{ unk_token is defined }} {{ tools is none }} {{ strftime_now is defined }}", "False True False"),
            ("{{ messages[0].z | tojson }}", r#"{"b": [1, 2.5, "é<"], "a": null}"#),
            ("{{ {'k': []} | tojson(indent=2) }}", "{\n  \"k\": []\n}"),
            ("{{ messages[0].content.split('<b>')[-1] }}{{ messages[-1]['content'].upper() }}", "dA<B>C<B>D"),
            (
                "{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
                "4",
            ),
            ("{% for k, v in messages[0].z.items() %}{{ k }}{% endfor %}", "ba"),
            ("{% generation %}x{%- endgeneration -%} y", "xy"),
            ("{{ messages[0].get('none', 'default') }}{{ True and not None }}", "defaultTrue"),
        ];
        for (source, want) in rows {
            assert_eq!(render(source, &messages), want, "{source}");
        }
    }

    /// Made by `tests/golden/qwen3_chat.py` of this crate.
    #[test]
    fn qwen3_reads_as_in_transformers() {
        let golden: Value = serde_json::from_str(include_str!("../tests/golden/qwen3_chat.json")).unwrap();
        let template = template(&golden, None).unwrap().unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 12);
        for case in cases {
            let (messages, prompt) = (case["messages"].as_array().unwrap(), case["prompt"] == true);
            let got = template.render_with(messages, prompt, case["variables"].as_object().unwrap()).unwrap();
            assert_eq!(got, case["want"].as_str().unwrap());
        }
    }

    #[test]
    fn files_and_names_are_chosen_as_transformers_does() {
        assert!(template(&json!({}), None).unwrap().is_none());
        assert!(template(&json!({"chat_template": null}), None).unwrap().is_none());
        let list = json!({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]});
        let chosen = template(&list, None).unwrap().unwrap();
        assert_eq!(chosen.render(&[], true).unwrap(), "plain");
        let tools = json!({"tools": []}).as_object().unwrap().clone();
        assert_eq!(chosen.render_with(&[], true, &tools).unwrap(), "tools");
        let file = template(&list, Some("file")).unwrap().unwrap();
        assert_eq!(file.render_with(&[], true, &tools).unwrap(), "file");
        for (config, want) in [
            (json!({"chat_template": 3}), "must be a string or a list"),
            (json!({"chat_template": [{"name": "x", "template": ""}]}), "must be a string or a list"),
            (json!([]), "not a JSON object"),
            (json!({"chat_template": "{% if %}"}), "does not parse"),
        ] {
            let error = template(&config, None).unwrap_err().to_string();
            assert!(error.contains("tokenizer_config.json") && error.contains(want), "{error}");
        }
    }
}
