//! Rollouts: prompts in, sampled completions with their logprobs out; and logprobs of given ids.
//!
//! A request's life: checked -> its pages reserved -> prompt prefilled once, in pieces beside what others decode -> forked
//! into its samples -> decoded -> finished by a stop id, a stop text or by length. [`Session`] runs requests step by step
//! and lets weights change between steps; [`generate`] and [`score`] run a list of them to the end; [`replay`] computes a
//! rollout's logprobs anew from the versions it remembers.

mod replay;
mod request;
mod session;

pub use crate::engine::Top;
pub use crate::scheduler::{InFlight, Limits, Reservation};
pub use replay::{ReplayError, replay};
pub use request::{Finish, Partial, PromptLogprobs, Rebuilt, Request, RequestError, Rollout, ScoreRow, Scores};
pub use session::{Answer, Session};

use crate::engine::Engine;

/// Samples every request, calling `done` with each rollout as it finishes, and with the error of each sample that could
/// not be had; a request that cannot be served at all has one error.
pub fn generate(
    engine: &mut Engine,
    requests: &[Request],
    limits: Limits,
    done: &mut dyn FnMut(usize, Result<Rollout, RequestError>),
) {
    let mut session = Session::new(engine, limits);
    for (number, request) in requests.iter().enumerate() {
        if let Err(error) = session.submit(engine, number, request.clone()) {
            done(number, Err(error));
        }
    }
    let mut answer = |answer| match answer {
        Answer::Rollout(rollout) => done(rollout.request, Ok(rollout)),
        Answer::Failed { request, error, .. } => done(request, Err(error)),
        Answer::Scores { .. } => unreachable!("nothing was to be scored"),
    };
    while session.step(engine, &mut answer) {}
}

/// Scores rows of ids, calling `done` with each row's result.
pub fn score(
    engine: &mut Engine,
    rows: &[ScoreRow],
    limits: Limits,
    done: &mut dyn FnMut(usize, Result<Scores, RequestError>),
) {
    let mut session = Session::new(engine, limits);
    for (number, row) in rows.iter().enumerate() {
        if let Err(error) = session.submit_row(engine, number, row.clone()) {
            done(number, Err(error));
        }
    }
    let mut answer = |answer| match answer {
        Answer::Scores { request, scores } => done(request, Ok(scores)),
        Answer::Failed { request, error, .. } => done(request, Err(error)),
        Answer::Rollout(_) => unreachable!("nothing was to be sampled"),
    };
    while session.step(engine, &mut answer) {}
}
