//! Who gives way when the decode runs out of pages.

use std::cmp::Reverse;

use crate::error::RequestError;
use crate::ids::SeqId;
use crate::state::plan::token_ratio::RETRACT_DECODE_STEPS;
use crate::state::plan::{PlanRequest, Settle};
use crate::state::scheduler::news::RequestEnd;

use super::planning::retract_of;
use super::{Next, OpenPlan, Scheduler};

impl Scheduler {
    /// Nothing was granted. Waits for those that are about to end; else revokes pins; else retracts the running
    /// request with the fewest outputs (then the longest prompt), one a round; the last one fails alone.
    pub(super) fn give_way(&mut self, open: OpenPlan) -> Next {
        if self.recovering {
            return Next::Nothing;
        }
        let is_ending = |seq: &SeqId| !self.sequences[*seq].can_decode();
        if !self.steps.is_empty() && self.running.iter().any(is_ending) {
            return Next::Nothing;
        }
        let mut evict_tokens = 0;
        let mut retracted = None;
        if self.ended.is_empty() && !self.pins.revoke_all() {
            match self.victim() {
                Some(seq) => {
                    retracted = self.retract(seq);
                    evict_tokens = self.running.len() * RETRACT_DECODE_STEPS;
                }
                // The token on its way may end the last one well.
                None if !self.steps.is_empty() => return Next::Nothing,
                None => self.fail_last(),
            }
        }
        // Whoever gives way now may fit again in the plan after this one, even if this one runs nothing.
        self.is_dirty = true;
        let mut settle = self.take_settlements();
        settle.extend(retracted);
        let (decode, else_decode) = self.decode_rows().into_demand();
        self.open = Some(OpenPlan { decode, ..open });
        let request = PlanRequest {
            settle,
            else_decode,
            evict_tokens,
            ..self.empty_request()
        };
        Next::Plan(Box::new(request))
    }

    /// The last of the running ones by (most outputs, shortest prompt); the chunked one rather than the last.
    fn victim(&self) -> Option<SeqId> {
        if self.running.len() <= 1 {
            return self.chunked;
        }
        let order = |seq: &&SeqId| {
            let sequence = &self.sequences[**seq];
            (
                sequence.planned_output,
                Reverse(sequence.request.prompt.len()),
                Reverse(**seq),
            )
        };
        self.running.iter().min_by_key(order).copied()
    }

    fn retract(&mut self, seq: SeqId) -> Option<Settle> {
        let settle = self.evacuate(seq);
        self.queue_retracted(seq);
        let survivors = self.running.iter().map(|seq| &self.sequences[*seq]);
        self.ratio
            .after_retraction(survivors.map(|s| (s.planned_output, s.max_new_tokens())));
        settle
    }

    /// Takes a sequence out of the batch with everything it holds; it starts over.
    pub(super) fn evacuate(&mut self, seq: SeqId) -> Option<Settle> {
        self.running.retain(|other| *other != seq);
        if self.chunked == Some(seq) {
            self.chunked = None;
        }
        self.extended.retain(|other| *other != seq);
        let row = self.sequences[seq].kv.as_ref().map(|kv| kv.row);
        self.forget_edits(row);
        retract_of(seq, &mut self.sequences[seq])
    }

    /// Back into the queue, ahead of every policy's order, oldest first.
    pub(super) fn queue_retracted(&mut self, seq: SeqId) {
        let sequence = &mut self.sequences[seq];
        sequence.retractions += 1;
        self.counters.retractions += 1;
        self.counters.retracted_input_tokens += sequence.request.prompt.len() as u64;
        self.counters.retracted_output_tokens += sequence.output.len() as u64;
        let place = self.retracted.partition_point(|other| *other < seq);
        self.retracted.insert(place, seq);
    }

    fn fail_last(&mut self) {
        if let Some(&seq) = self.running.first() {
            let kept = self.sequences[seq].output.len();
            self.finish(
                seq,
                RequestEnd::Failed(RequestError::OutOfMemory),
                kept,
                false,
            );
        }
    }

    /// Nothing runs and the first candidate does not fit: hosts' pins are in its way, or nothing can help it.
    pub(super) fn relieve_idle_engine(&mut self, refused: SeqId) {
        let is_busy = !self.running.is_empty()
            || self.chunked.is_some()
            || !self.steps.is_empty()
            || !self.ended.is_empty();
        if is_busy {
            return;
        }
        self.is_dirty = true;
        if self.pins.revoke_all() {
            return;
        }
        if let Some(sequence) = self.sequences.get(refused) {
            let kept = sequence.output.len();
            self.finish(
                refused,
                RequestEnd::Failed(RequestError::OutOfMemory),
                kept,
                false,
            );
        }
    }
}
