//! Requests that wait or run for longer than they may. Time comes in with the calls; no clock is read here.

use crate::error::RequestError;
use crate::ids::SeqId;
use crate::state::scheduler::news::RequestEnd;
use crate::state::scheduler::sequence::{Phase, Sequence};

use super::Scheduler;

impl Scheduler {
    /// False if [`expire_requests`](Self::expire_requests) would look at nobody.
    pub fn has_timeouts(&self) -> bool {
        self.has_timeouts
    }

    /// Ends the requests whose time is over at `now_s`, on the clock of their `submitted_s`. To be called now and
    /// then: a request runs from the first call that finds it admitted, so its limit is never cut short.
    pub fn expire_requests(&mut self, now_s: f64) {
        if !self.has_timeouts {
            return;
        }
        self.has_timeouts = false;
        let mut inside: Vec<SeqId> = self.by_rid.values().copied().collect();
        inside.sort_unstable();
        for seq in inside {
            let sequence = &mut self.sequences[seq];
            self.has_timeouts |= sequence.request.timeouts.any();
            if sequence.phase != Phase::Waiting {
                sequence.running_since_s.get_or_insert(now_s);
            }
            if let Some(error) = overrun(sequence, now_s) {
                let kept = sequence.output.len();
                self.finish(seq, RequestEnd::Failed(error), kept, false);
            }
        }
    }
}

/// A request that was retracted is running still: only its first wait is a wait in the queue.
fn overrun(sequence: &Sequence, now_s: f64) -> Option<RequestError> {
    let timeouts = &sequence.request.timeouts;
    let (since_s, limit_s, is_running) = match sequence.running_since_s {
        Some(since_s) => (since_s, timeouts.running_s?, true),
        // Admitted, but not seen running yet, and retracted already.
        None if sequence.cached_tokens.is_some() => return None,
        None => (sequence.request.submitted_s, timeouts.waiting_s?, false),
    };
    (now_s - since_s >= limit_s).then(|| match is_running {
        true => RequestError::running_timeout(limit_s),
        false => RequestError::waiting_timeout(limit_s),
    })
}
