//! Where in a JSON text a place is: the keys and list indices on the way to it.

/// The key of the value that is being read at a line and a column, both from 1, as `families[0].rungs[2].d_nats`. Of text
/// that is no JSON up to there it is the key as far as the text made sense.
pub(super) fn key_before(text: &str, line: usize, column: usize) -> String {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let end = (before + column).min(text.len());
    let bytes = &text.as_bytes()[..end];
    // An open list has an index, an open object the key that was read last.
    let mut path: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => path.push(Step::Key(String::new())),
            b'[' => path.push(Step::Index(0)),
            // What ends at the place is still what is being read.
            b'}' | b']' if at + 1 < bytes.len() => drop(path.pop()),
            b',' if at + 1 < bytes.len() => {
                if let Some(Step::Index(index)) = path.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                let from = at + 1;
                at = from;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                let rest = text.get(at + 1..).unwrap_or_default();
                if rest.trim_start().starts_with(':')
                    && let Some(Step::Key(key)) = path.last_mut()
                {
                    *key = String::from_utf8_lossy(&bytes[from..at.min(bytes.len())]).into_owned();
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut key = String::new();
    for step in path {
        match step {
            Step::Index(index) => key += &format!("[{index}]"),
            Step::Key(name) if name.is_empty() => {}
            Step::Key(name) => {
                if !key.is_empty() {
                    key.push('.');
                }
                key += &name;
            }
        }
    }
    key
}

enum Step {
    Key(String),
    Index(usize),
}
