//! Rollouts that were under way when a checkpoint was written: `in_flight.jsonl`, a line a completion, whole or begun.

use std::collections::BTreeMap;

use engine::rollout::{Finish, Partial, Rebuilt};
use serde::{Deserialize, Serialize};

use crate::flow::Unfinished;

/// A completion. Everything by token has as many entries as `ids`. Logprobs are written as the f64 of the same value, so
/// that every bit comes back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: u64,
    sample: u64,
    /// `stop` or `length`; null where it is not finished.
    finish: Option<String>,
    ids: Vec<u32>,
    logprobs_rollout: Vec<f64>,
    logprobs_raw: Vec<f64>,
    support: Vec<u32>,
    versions: Vec<(usize, u64)>,
    rebuilt: Vec<(usize, Vec<(usize, u64)>)>,
    prompt_versions: Vec<(usize, u64)>,
}

/// One line for each completion that has a token, and one without ids for a prompt that has none.
pub(super) fn encode(unfinished: &[Unfinished]) -> Vec<u8> {
    let mut text = String::new();
    let mut push = |line: &Line| {
        text += &serde_json::to_string(line).expect("plain data");
        text.push('\n');
    };
    for one in unfinished {
        if one.finished.is_empty() && one.partials.is_empty() {
            let nothing = Partial {
                request: 0,
                sample: 0,
                ids: Vec::new(),
                logprobs: Vec::new(),
                logprobs_raw: Vec::new(),
                support: Vec::new(),
                versions: Vec::new(),
                rebuilt: Vec::new(),
                prompt_versions: Vec::new(),
            };
            push(&line(one.prompt, None, nothing));
        }
        for rollout in &one.finished {
            push(&line(one.prompt, Some(rollout.finish.name().to_owned()), rollout.clone().into()));
        }
        for partial in &one.partials {
            push(&line(one.prompt, None, partial.clone()));
        }
    }
    text.into_bytes()
}

fn line(prompt: u64, finish: Option<String>, partial: Partial) -> Line {
    let wide = |list: Vec<f32>| list.into_iter().map(f64::from).collect();
    Line {
        prompt,
        sample: partial.sample,
        finish,
        ids: partial.ids,
        logprobs_rollout: wide(partial.logprobs),
        logprobs_raw: wide(partial.logprobs_raw),
        support: partial.support,
        versions: partial.versions,
        rebuilt: partial.rebuilt.into_iter().map(|rebuilt| (rebuilt.first, rebuilt.kv)).collect(),
        prompt_versions: partial.prompt_versions,
    }
}

/// What [`encode`] wrote, by prompt.
pub(super) fn decode(text: &str) -> Result<Vec<Unfinished>, String> {
    let mut all: BTreeMap<u64, Unfinished> = BTreeMap::new();
    for (at, text) in text.lines().enumerate() {
        let line: Line = serde_json::from_str(text).map_err(|error| format!("line {}: {error}", at + 1))?;
        let own = [line.logprobs_rollout.len(), line.logprobs_raw.len(), line.support.len()];
        if own.iter().any(|&len| len != line.ids.len()) {
            return Err(format!("line {}: {} ids, and lists of {own:?}", at + 1, line.ids.len()));
        }
        let one = all.entry(line.prompt).or_insert_with(|| Unfinished { prompt: line.prompt, ..Unfinished::default() });
        if line.ids.is_empty() {
            continue;
        }
        let request = usize::try_from(line.prompt).map_err(|error| error.to_string())?;
        #[allow(clippy::cast_possible_truncation)] // it was an f32
        let narrow = |list: Vec<f64>| -> Vec<f32> { list.into_iter().map(|x| x as f32).collect() };
        let partial = Partial {
            request,
            sample: line.sample,
            ids: line.ids,
            logprobs: narrow(line.logprobs_rollout),
            logprobs_raw: narrow(line.logprobs_raw),
            support: line.support,
            versions: line.versions,
            rebuilt: line.rebuilt.into_iter().map(|(first, kv)| Rebuilt { first, kv }).collect(),
            prompt_versions: line.prompt_versions,
        };
        match line.finish.as_deref() {
            None => one.partials.push(partial),
            Some("stop") => one.finished.push(partial.finished(Finish::Stop)),
            Some("length") => one.finished.push(partial.finished(Finish::Length)),
            Some(other) => return Err(format!("line {}: `finish` is {other:?}", at + 1)),
        }
    }
    Ok(all.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_comes_back() {
        let partial = Partial {
            request: 7,
            sample: 29,
            ids: vec![3, 4],
            logprobs: vec![-0.1, f32::from_bits(0xbe99_999a)],
            logprobs_raw: vec![-1e-38, -87.25],
            support: vec![9, 1],
            versions: vec![(0, 3), (1, 4)],
            rebuilt: vec![Rebuilt { first: 1, kv: vec![(0, 4)] }],
            prompt_versions: vec![(0, 3)],
        };
        let rollout = Partial { sample: 28, ..partial.clone() }.finished(Finish::Length);
        let all = vec![
            Unfinished { prompt: 6, ..Unfinished::default() },
            Unfinished { prompt: 7, finished: vec![rollout], partials: vec![partial] },
        ];
        let text = String::from_utf8(encode(&all)).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(decode(&text).unwrap(), all);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_line() {
        let good = String::from_utf8(encode(&[Unfinished { prompt: 6, ..Unfinished::default() }])).unwrap();
        for (bad, want) in [
            (good.replace("\"ids\":[]", "\"ids\":[1]"), "line 2: 1 ids"),
            (good.replace("\"prompt\"", "\"promt\""), "line 2: unknown field"),
            (good.replace("}", ""), "line 2: EOF"),
        ] {
            let error = decode(&format!("{good}{bad}")).unwrap_err();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
