//! Which rows share a step, and who waits for whom.

use crate::ids::{SeqId, StepId};
use crate::state::plan::preemption::PriorityRules;
use crate::state::plan::prefill_adder::StepPace;

use super::Scheduler;

/// Decode steps behind a prefill step, unless it is configured.
pub const PREFILL_DECODE_INTERVAL: usize = 1;
/// Least number of requests that decode for them to be protected, unless it is configured.
pub const PREFILL_DECODE_INTERVAL_MIN_BS: usize = 1;
/// The longest that a prefill step keeps others from decoding, in milliseconds, unless it is configured.
pub const MAX_PREFILL_STEP_MS: u32 = 500;

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
    /// The longest, in milliseconds, that a step with a prefill is to take while others decode; `None` for any time. Needs
    /// chunked prefill. Where a chunk would take longer, requests that decode ride in each of its parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prefill_step_ms: Option<u32>,
}

impl Default for BatchRules {
    fn default() -> Self {
        Self {
            mixed_chunk: false,
            prefill_decode_interval: PREFILL_DECODE_INTERVAL,
            prefill_decode_interval_min_bs: PREFILL_DECODE_INTERVAL_MIN_BS,
            priority: None,
            max_prefill_step_ms: None,
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

    /// Records a step's time; to be called before its result.
    pub fn step_took(&mut self, step: StepId, micros: u64) {
        let prefill = self.pipeline.prefill_of(step);
        if let Some(pace) = &mut self.pace {
            pace.note(prefill, micros);
        }
    }

    /// Whether anything depends on how long this step takes.
    pub fn wants_time_of(&self, step: StepId) -> bool {
        self.pace.is_some() && self.pipeline.prefill_of(step).tokens() > 0
    }

    /// The pace of a prefill while these could decode.
    pub(super) fn step_pace(&self, decode: &[SeqId]) -> Option<StepPace> {
        let pace = self.pace.as_deref()?.clone();
        let is_bound = !decode.is_empty();
        Some(StepPace { pace, is_bound })
    }

    /// True if a chunk from position `first` on would take longer than a step may: prefills then come in many steps, and
    /// a decode between any two of them would read the weights once more.
    fn cuts_by_time(&self, first: usize, chunk: usize) -> bool {
        let pace = self.pace.as_deref();
        pace.is_some_and(|pace| pace.tokens_within(pace.step_s(), first, 0) < chunk)
    }

    /// Rows of this decode that ride in a prefill step which begins at position `first`: all or none. None if one of them
    /// wants log probabilities, or if they would leave the prefill less than a page of its chunk.
    pub(super) fn mixed_rows(&self, decode: &[SeqId], first: usize) -> usize {
        let Some(chunk) = self.limits.chunk_tokens else {
            return 0;
        };
        let room = chunk.min(self.limits.max_prefill_tokens);
        let wants_logprobs = |seq: &SeqId| self.requests[*seq].request.logprobs.is_some();
        let mixes = self.limits.rules.mixed_chunk || self.cuts_by_time(first, room);
        let rides = mixes
            && decode.len() + self.limits.page_size.get() <= room
            && !decode.iter().any(wants_logprobs);
        if rides { decode.len() } else { 0 }
    }
}
