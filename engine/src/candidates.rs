//! Logprobs of chosen ids at each place of a row: what a loss over a teacher's likeliest tokens needs.

use ptx::ops::log_softmax::{self, LogitError};

use crate::engine::{Engine, Feed, LOGIT_ROWS};
use crate::rollout::RequestError;

/// For each id but the first, ln p of its candidates given the ids before it, in nats: list i of the result belongs to
/// `candidates[i]` and to id i + 1. The bits of [`crate::rollout::score`] for an id that follows. At most `step_tokens`
/// tokens are fed at a time.
///
/// # Panics
/// When the row has no ids, one that the model has not, or more than its context; when the lists are not one less than
/// the ids; or when the temperature is not a positive number.
pub fn candidates(
    engine: &mut Engine,
    ids: &[u32],
    candidates: &[Vec<u32>],
    temperature: f32,
    step_tokens: usize,
) -> Result<Vec<Vec<f32>>, RequestError> {
    let valid = engine.valid();
    assert!(ids.iter().all(|&id| (id as usize) < valid), "an id is not of the model's 0..{valid}");
    assert!(ids.len() <= engine.model().config.max_positions, "{} ids exceed the context", ids.len());
    assert_eq!(candidates.len() + 1, ids.len(), "one list for each id but the first");
    let (layout, pages) = (engine.kv().layout(), engine.kv().free_pages());
    let want = layout.pages_for(ids.len());
    if want > pages {
        return Err(RequestError::NeverFits { tokens: ids.len(), want, page_len: layout.page_len(), pages });
    }
    let mut sequence = engine.kv().sequence(ids.len());
    let mut all = Vec::with_capacity(candidates.len());
    let mut result = Ok(());
    // The last id is only asked about, never fed.
    'row: for (fed, lists) in ids.chunks(step_tokens).zip(candidates.chunks(step_tokens)) {
        let fed = &fed[..lists.len()];
        engine.kv_mut().append(&mut sequence, fed.len()).expect("room was checked");
        engine.step([Feed { sequence: &sequence, ids: fed }]);
        for (block, lists) in lists.chunks(LOGIT_ROWS).enumerate() {
            let first = block * LOGIT_ROWS;
            engine.logits(first..first + lists.len());
            if let Err(error) = gather(engine, lists, temperature, &mut all) {
                let before = all.len();
                result = Err(match error {
                    LogitError::Target { row, target, .. } => {
                        RequestError::IdOutOfRange { index: before + row + 1, id: target, valid }
                    }
                    error => RequestError::BadLogits { position: before + error.row() + 1 },
                });
                break 'row;
            }
        }
    }
    engine.kv_mut().end(sequence);
    result.map(|()| all)
}

/// Of the rows of the last logits, one list each.
fn gather(engine: &Engine, lists: &[Vec<u32>], temperature: f32, into: &mut Vec<Vec<f32>>) -> Result<(), LogitError> {
    let mut offsets = vec![0];
    offsets.extend(lists.iter().scan(0, |sum, list| {
        *sum += list.len();
        Some(*sum)
    }));
    let ids = lists.concat();
    let mut out = vec![0.0; ids.len()];
    let (vocab, inv_temps) = (engine.model().config.vocab, vec![1.0 / temperature; lists.len()]);
    let logits = engine.last_logits();
    log_softmax::gather_many(engine.cpu(), vocab, engine.valid(), &inv_temps, logits, &offsets, &ids, &mut out)?;
    into.extend(offsets.windows(2).map(|pair| out[pair[0]..pair[1]].to_vec()));
    Ok(())
}
