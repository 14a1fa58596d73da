//! A rollout's logprobs over again, from its ids and the versions that it remembers: keys and values are rebuilt segment
//! by segment under the weights versions that computed them the first time. What comes out are the logged bits.

use kv::{PoolExhausted, Sequence};
use ptx::cuda::CudaError;
use ptx::ops::sample::{self, Params};

use super::request::{Rebuilt, Request, Rollout};
use crate::engine::{Engine, Feed, LOGIT_ROWS};

/// Why a rollout cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A version that took part is gone.
    #[error(
        "the rollout was sampled by weights version {version}, which is no longer held (versions {oldest} to {newest} \
         are); retain more versions"
    )]
    NotRetained {
        /// Which version.
        version: u64,
        /// The oldest there is.
        oldest: u64,
        /// The newest there is.
        newest: u64,
    },
    /// There are no weights to run.
    #[error("the last weights update failed: nothing can be run until one succeeds")]
    Unusable,
    /// The pool is full.
    #[error("a replay needs KV pages of its own: {0}")]
    Pool(#[from] PoolExhausted),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The weights give no numbers any more.
    #[error("the model's logits at position {position} are not finite")]
    BadLogits {
        /// Where.
        position: usize,
    },
}

/// Tokens `first..end` of a completion, all sampled by one version.
struct Segment<'a> {
    first: usize,
    end: usize,
    version: u64,
    rebuilt: Option<&'a Rebuilt>,
}

/// The logprobs of `rollout`, an answer to `request`, computed anew: `(logprobs, logprobs_raw)`, bit for bit those it
/// carries. Feeds at most `step_tokens` tokens at a time.
///
/// # Panics
/// When `step_tokens` is 0, or the rollout is no answer to the request.
pub fn replay(
    engine: &mut Engine,
    request: &Request,
    rollout: &Rollout,
    step_tokens: usize,
) -> Result<(Vec<f32>, Vec<f32>), ReplayError> {
    if !engine.usable() {
        return Err(ReplayError::Unusable);
    }
    let rebuilt = rollout.rebuilt.iter().flat_map(|rebuilt| &rebuilt.kv);
    let used = rollout.versions.iter().chain(&rollout.prompt_versions).chain(rebuilt).map(|&(_, version)| version);
    if let Some(version) = used.into_iter().find(|&v| !engine.holds(v)) {
        let (oldest, newest) = (engine.oldest_version(), engine.version());
        return Err(ReplayError::NotRetained { version, oldest, newest });
    }
    let ids = [&request.prompt[..], &rollout.ids].concat();
    let mut run = Replay { engine, request, ids: &ids, step_tokens, sequence: Sequence::default(), out: Vec::new() };
    let result = run.all(rollout);
    let Replay { engine, sequence, out, .. } = run;
    engine.kv_mut().end(sequence);
    result.map(|()| out.into_iter().unzip())
}

struct Replay<'a> {
    engine: &'a mut Engine,
    request: &'a Request,
    ids: &'a [u32],
    step_tokens: usize,
    sequence: Sequence,
    out: Vec<(f32, f32)>,
}

impl Replay<'_> {
    fn all(&mut self, rollout: &Rollout) -> Result<(), ReplayError> {
        let prompt = self.request.prompt.len();
        for segment in segments(rollout) {
            // The row that a token was drawn from lies one position before it.
            let (first, end) = (prompt + segment.first - 1, prompt + segment.end - 1);
            let before = match segment.rebuilt {
                _ if segment.first == 0 => Some(&rollout.prompt_versions[..]),
                rebuilt => rebuilt.map(|rebuilt| &rebuilt.kv[..]),
            };
            if let Some(kv) = before {
                self.engine.kv_mut().clear(&mut self.sequence);
                for (at, &(from, version)) in kv.iter().enumerate() {
                    let to = kv.get(at + 1).map_or(first, |next| next.0.min(first));
                    self.feed(version, from.min(first), to, false)?;
                }
            }
            self.feed(segment.version, first, end, true)?;
        }
        Ok(())
    }

    /// Feeds positions `first..end` under `version`; with `wanted` each row gives the logprobs of the next token.
    fn feed(&mut self, version: u64, first: usize, end: usize, wanted: bool) -> Result<(), ReplayError> {
        assert_eq!(self.sequence.len(), first, "segments follow each other");
        for from in (first..end).step_by(self.step_tokens) {
            let to = end.min(from + self.step_tokens);
            self.engine.kv_mut().append(&mut self.sequence, to - from)?;
            self.engine.step_at(version, [Feed { sequence: &self.sequence, ids: &self.ids[from..to] }])?;
            if !wanted {
                continue;
            }
            for block in (0..to - from).step_by(LOGIT_ROWS) {
                let rows = block..(to - from).min(block + LOGIT_ROWS);
                let count = rows.len();
                let (vocab, valid) = (self.engine.config().vocab, self.engine.valid());
                let isa = self.engine.cpu().isa();
                // Equal logits give equal logprobs on every device, so these may be taken here.
                let all = self.engine.logits(rows)?;
                for row in 0..count {
                    let position = from + block + row + 1;
                    let logits = &all[row * vocab..][..valid];
                    let token = self.ids[position];
                    let logprob = |params: &Params| {
                        let mut out = [0.0];
                        let found = sample::processed(isa, params, logits, &[token], &mut out);
                        found.map(|()| out[0]).map_err(|_| ReplayError::BadLogits { position })
                    };
                    self.out.push((logprob(&self.request.params)?, logprob(&Params::default())?));
                }
            }
        }
        Ok(())
    }
}

fn segments(rollout: &Rollout) -> Vec<Segment<'_>> {
    // A rebuild is a segment of its own even where the version stays.
    let rebuilt = rollout.rebuilt.iter().map(|rebuilt| rebuilt.first);
    let mut starts: Vec<usize> = rollout.versions.iter().map(|v| v.0).chain(rebuilt).collect();
    starts.sort_unstable();
    starts.dedup();
    let end = |at: usize| starts.get(at + 1).copied().unwrap_or(rollout.ids.len());
    let version = |first: usize| rollout.versions.iter().rev().find(|v| v.0 <= first).expect("from token 0 on").1;
    starts
        .iter()
        .enumerate()
        .map(|(at, &first)| Segment {
            first,
            end: end(at),
            version: version(first),
            rebuilt: rollout.rebuilt.iter().find(|rebuilt| rebuilt.first == first),
        })
        .collect()
}
