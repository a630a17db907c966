//! Timeouts of waiting and running requests. The caller passes the time; no clock is read here.

use crate::scheduler::sequence::{Phase, Sequence};
use souffleur_base::error::RequestError;

use super::Scheduler;

impl Scheduler {
    /// False if [`expire_requests`](Self::expire_requests) would check no request.
    pub fn has_timeouts(&self) -> bool {
        self.requests.has_timeouts()
    }

    /// Fails the requests whose timeout has passed at `now_s`, on the clock of their `submitted_s`. Call it
    /// periodically: a request's running time starts at the first call after its admission, so none fails too early.
    pub fn expire_requests(&mut self, now_s: f64) {
        if !self.has_timeouts() {
            return;
        }
        let mut has_timeouts = false;
        for seq in self.requests.live_by_age() {
            let sequence = &mut self.requests[seq];
            has_timeouts |= sequence.request.timeouts.any();
            if sequence.phase != Phase::Waiting {
                sequence.running_since_s.get_or_insert(now_s);
            }
            if let Some(error) = overrun(sequence, now_s) {
                self.fail(seq, error);
            }
        }
        self.requests.set_has_timeouts(has_timeouts);
    }
}

/// A retracted request counts as running: only its first wait is queueing time.
fn overrun(sequence: &Sequence, now_s: f64) -> Option<RequestError> {
    let running_since_s = sequence.running_since_s;
    if running_since_s.is_none() && sequence.cached_tokens.is_some() {
        // The request was admitted and retracted between two calls.
        return None;
    }
    let request = &sequence.request;
    request
        .timeouts
        .overrun(request.submitted_s, running_since_s, now_s)
}
