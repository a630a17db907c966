//! Which rows share a step, and who waits for whom.

use crate::ids::SeqId;
use crate::state::plan::preemption::PriorityRules;

use super::Scheduler;

/// Decode steps behind a prefill step, unless it is configured.
pub const PREFILL_DECODE_INTERVAL: usize = 1;
/// Least number of requests that decode for them to be protected, unless it is configured.
pub const PREFILL_DECODE_INTERVAL_MIN_BS: usize = 1;

/// How prefills and decodes share the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BatchRules {
    /// Requests that decode ride in the steps that prefill others, a token each; needs chunked prefill.
    pub mixed_chunk: bool,
    /// Decode steps that come behind a prefill step which left out a request that could have decoded; 0: none.
    pub prefill_decode_interval: usize,
    /// Fewer requests that decode do not hold up a prefill.
    pub prefill_decode_interval_min_bs: usize,
    /// The effect of priorities beyond the policy's order; `None`: nothing.
    pub priority: Option<PriorityRules>,
}

impl Default for BatchRules {
    fn default() -> Self {
        Self {
            mixed_chunk: false,
            prefill_decode_interval: PREFILL_DECODE_INTERVAL,
            prefill_decode_interval_min_bs: PREFILL_DECODE_INTERVAL_MIN_BS,
            priority: None,
        }
    }
}

impl Scheduler {
    /// True while decode steps are owed to those who sat out the last prefill step. Once nobody is left to decode,
    /// nothing is owed.
    pub(super) fn defers_prefill(&self, decode: &[SeqId]) -> bool {
        let rules = &self.limits.rules;
        self.batch.owed_decodes() > 0
            && !decode.is_empty()
            && decode.len() >= rules.prefill_decode_interval_min_bs
    }

    /// A prefill step is sent; `sat_out`: somebody could have decoded in it and did not.
    pub(super) fn note_prefill_step(&mut self, sat_out: bool) {
        if sat_out {
            self.batch
                .owe_decodes(self.limits.rules.prefill_decode_interval);
        }
    }

    /// Rows of this decode that ride in a prefill step: all or none. None if one of them wants log probabilities, or
    /// if they would leave the prefill less than a page of its chunk.
    pub(super) fn mixed_rows(&self, decode: &[SeqId]) -> usize {
        let Some(chunk) = self.limits.chunk_tokens else {
            return 0;
        };
        let room = chunk.min(self.limits.max_prefill_tokens);
        let wants_logprobs = |seq: &SeqId| self.requests[*seq].request.logprobs.is_some();
        let rides = self.limits.rules.mixed_chunk
            && decode.len() + self.limits.page_size.get() <= room
            && !decode.iter().any(wants_logprobs);
        if rides { decode.len() } else { 0 }
    }
}
