//! Rules for sharing steps between prefills and decodes.

use crate::plan::preemption::PriorityRules;
use crate::plan::prefill_adder::StepPace;
use souffleur_base::ids::{SeqId, StepId};

use super::Scheduler;

/// Default number of decode steps after a prefill step.
pub const PREFILL_DECODE_INTERVAL: usize = 1;
/// Default of the minimum number of decoding requests for which prefills are delayed.
pub const PREFILL_DECODE_INTERVAL_MIN_BS: usize = 1;
/// Default of the maximum duration of a prefill step that delays decodes, in milliseconds.
pub const MAX_PREFILL_STEP_MS: u32 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BatchRules {
    /// Prefill steps also decode one token of each decoding request; needs chunked prefill.
    pub mixed_chunk: bool,
    /// Decode steps after a prefill step that excluded a decodable request; 0: none.
    pub prefill_decode_interval: usize,
    /// With fewer decoding requests, prefills are not delayed.
    pub prefill_decode_interval_min_bs: usize,
    /// Effects of priorities in addition to the queue's order; `None` without any.
    pub priority: Option<PriorityRules>,
    /// Maximum duration, in milliseconds, of a prefill step while others decode; `None` without a limit. Needs chunked
    /// prefill. If a chunk would take longer, it is split, and the steps of its parts also decode.
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
    /// True if decode steps must precede the next prefill step.
    pub(super) fn defers_prefill(&self, decode: &[SeqId]) -> bool {
        let rules = &self.limits.rules;
        self.batch.due_decodes() > 0
            && !decode.is_empty()
            && decode.len() >= rules.prefill_decode_interval_min_bs
    }

    /// Records a prefill step; `left_out`: the step excluded a decodable request.
    pub(super) fn note_prefill_step(&mut self, left_out: bool) {
        if left_out {
            self.batch
                .set_due_decodes(self.limits.rules.prefill_decode_interval);
        }
    }

    /// Records a step's duration; call it before `step_done`.
    pub fn step_took(&mut self, step: StepId, micros: u64) {
        let prefill = self.pipeline.prefill_of(step);
        if let Some(pace) = &mut self.pace {
            pace.note(prefill, micros);
        }
        self.note_slice_time(self.pipeline.slice_flops_of(step), micros);
    }

    pub fn wants_time_of(&self, step: StepId) -> bool {
        let is_paced = || self.pace.is_some() && self.pipeline.prefill_of(step).tokens() > 0;
        self.pipeline.slice_flops_of(step) > 0 || is_paced()
    }

    /// The pace of a prefill, bounded if a request could decode.
    pub(super) fn step_pace(&self, decode: &[SeqId]) -> Option<StepPace> {
        let pace = self.pace.as_deref()?.clone();
        let is_limited = !decode.is_empty();
        Some(StepPace { pace, is_limited })
    }

    /// True if a chunk from position `first` on would exceed the step time. The prefill then takes many steps, and
    /// separate decode steps between them would read the weights again.
    fn exceeds_step_time(&self, first: usize, chunk: usize) -> bool {
        let pace = self.pace.as_deref();
        pace.is_some_and(|pace| pace.tokens_within(pace.step_s(), first, 0) < chunk)
    }

    /// Number of decode rows that share a step with a prefill from position `first` on: all or 0. It is 0 if steps are
    /// not mixed, a row requests log probabilities, or less than a page of the chunk would be left for the prefill.
    pub(super) fn mixed_rows(&self, decode: &[SeqId], first: usize) -> usize {
        let Some(chunk) = self.limits.chunk_tokens else {
            return 0;
        };
        let input_limit = chunk.min(self.limits.max_prefill_tokens);
        let wants_logprobs = |seq: &SeqId| self.requests[*seq].request.logprobs.is_some();
        let mixes = self.limits.rules.mixed_chunk || self.exceeds_step_time(first, input_limit);
        let fits = mixes
            && decode.len() + self.limits.page_size.get() <= input_limit
            && !decode.iter().any(wants_logprobs);
        if fits { decode.len() } else { 0 }
    }
}
