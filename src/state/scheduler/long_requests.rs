//! Finds long-running requests, so that the log shows their progress: a prompt of 17,000 tokens may take minutes on two
//! cores. The caller passes the time; no clock is read here.

use souffleur_base::ids::RequestId;

use super::Scheduler;
use super::sequence::{Phase, Sequence};

/// Requests listed at a time: a full queue must not fill the log.
const MAX_SHOWN: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub struct LongRequest {
    pub rid: RequestId,
    /// Seconds since its submission, rounded to tenths.
    pub age_s: f64,
    /// `waiting`, `prefilling` or `decoding`.
    pub phase: &'static str,
    pub prompt_tokens: usize,
    /// Prompt and output tokens whose K/V is written or planned.
    pub computed_tokens: usize,
    pub output_tokens: usize,
    pub max_new_tokens: usize,
}

impl Scheduler {
    /// The oldest requests whose age crossed a multiple of `every_s` between two times on the clock of their
    /// `submitted_s`, and the number of further ones. Iterates over all requests.
    pub fn long_requests(
        &self,
        (since_s, now_s): (f64, f64),
        every_s: f64,
    ) -> (Vec<LongRequest>, usize) {
        let periods = |at_s: f64, from_s: f64| ((at_s - from_s).max(0.0) / every_s).floor();
        let is_due = |sequence: &Sequence| {
            let from_s = sequence.request.submitted_s;
            periods(now_s, from_s) > periods(since_s, from_s)
        };
        let mut due = self.requests.live_by_age();
        due.retain(|seq| is_due(&self.requests[*seq]));
        let others = due.len().saturating_sub(MAX_SHOWN);
        let shown = due.iter().take(MAX_SHOWN);
        let shown = shown.map(|seq| LongRequest::of(&self.requests[*seq], now_s));
        (shown.collect(), others)
    }
}

impl LongRequest {
    fn of(sequence: &Sequence, now_s: f64) -> Self {
        let request = &sequence.request;
        Self {
            rid: request.rid.clone(),
            age_s: ((now_s - request.submitted_s) * 10.0).round() / 10.0,
            phase: match sequence.phase {
                Phase::Waiting => "waiting",
                Phase::Chunked => "prefilling",
                // Its last prefill chunk is in flight until the first token arrives.
                Phase::Running if sequence.output.len() <= request.opening.len() => "prefilling",
                Phase::Running => "decoding",
            },
            prompt_tokens: request.prompt.len(),
            computed_tokens: sequence.kv.as_ref().map_or(0, |kv| kv.committed),
            output_tokens: sequence.output.len(),
            max_new_tokens: sequence.max_new_tokens(),
        }
    }
}
