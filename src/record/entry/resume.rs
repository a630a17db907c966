//! The message log's form of a request that continues in a later generation of its unit.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Submitted;
use souffleur_request::CancelFlag;
use souffleur_state::scheduler::submission::{Resumption, Submission};

/// The log's form of a [`Resumption`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResumeEntry {
    pub submitted: Submitted,
    /// The output tokens that the client was told, among them the opening.
    pub told: Arc<[u32]>,
    pub input_logprobs: u32,
    pub cached_tokens: Option<u32>,
    pub retractions: u32,
    pub age_s: f64,
    pub running_s: Option<f64>,
    /// When the request was resumed, by the scheduler's clock.
    pub now_s: f64,
}

impl ResumeEntry {
    pub(crate) fn new(resumption: &Resumption, now_s: f64) -> Self {
        let Resumption {
            submission,
            told,
            input_logprobs,
            cached_tokens,
            retractions,
            resumptions: _,
            age_s,
            running_s,
        } = resumption;
        Self {
            submitted: submission.into(),
            told: told.clone(),
            input_logprobs: *input_logprobs,
            cached_tokens: *cached_tokens,
            retractions: *retractions,
            age_s: *age_s,
            running_s: *running_s,
            now_s,
        }
    }

    /// Converts back to a request with this cancel flag.
    ///
    /// # Errors
    /// The entry is invalid.
    pub(crate) fn resumption(self, cancel: CancelFlag) -> Result<Resumption, String> {
        let submission = self.submitted.submission(cancel)?;
        check_told(&submission, &self.told)?;
        check_input_logprobs(&submission, self.input_logprobs)?;
        Ok(Resumption {
            submission,
            told: self.told,
            input_logprobs: self.input_logprobs,
            cached_tokens: self.cached_tokens,
            retractions: self.retractions,
            // No decision depends on it.
            resumptions: 1,
            age_s: self.age_s,
            running_s: self.running_s,
        })
    }
}

/// A request that continues lacks at least one token of its output.
fn check_told(submission: &Submission, told: &[u32]) -> Result<(), String> {
    let (rid, n_told) = (&submission.rid, told.len());
    let limit = submission.sampling.max_new_tokens as usize;
    if n_told > 0 && n_told >= limit {
        return Err(format!(
            "request {rid} continues after {n_told} output tokens, its limit is {limit}"
        ));
    }
    if n_told > 0 && !told.starts_with(&submission.opening) {
        return Err(format!(
            "the tokens already sent for request {rid} do not start with its opening tokens"
        ));
    }
    Ok(())
}

fn check_input_logprobs(submission: &Submission, n_told: u32) -> Result<(), String> {
    let wish = submission.logprobs.as_ref();
    let start = wish.and_then(|wish| wish.start).unwrap_or(0);
    let n_prompt = submission.prompt.len();
    if n_told > 0 && u64::from(start) + u64::from(n_told) > n_prompt as u64 {
        return Err(format!(
            "request {} has {n_told} log probabilities already sent from position {start} on, but {n_prompt} prompt \
             tokens",
            submission.rid
        ));
    }
    Ok(())
}
