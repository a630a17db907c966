//! Retraction of sequences when the decode runs out of pages.

use std::cmp::Reverse;

use crate::plan::token_ratio::RETRACT_DECODE_STEPS;
use crate::plan::{PlanStep, Settle};
use souffleur_base::error::RequestError;
use souffleur_base::ids::SeqId;

use super::outbox::Counter;
use super::pipeline::OpenPlan;
use super::planning::retract_of;
use super::{Next, Scheduler};

impl Scheduler {
    /// Frees memory after the pools granted nothing. Waits for sequences about to end; if there are none, revokes pins
    /// (soft pins first); if there are none, retracts a request, or fails the only running one.
    pub(super) fn free_memory(&mut self, open: OpenPlan) -> Next {
        if self.pipeline.is_recovering() {
            return Next::Nothing;
        }
        self.forget_rooms();
        let is_ending = |seq: &SeqId| !self.requests[*seq].can_decode();
        let is_awaited = |seq: &SeqId| self.awaits_state(*seq);
        let awaits_end = self.batch.running().iter().any(is_ending);
        let awaits_states = self.batch.ended().iter().any(is_awaited);
        if !self.pipeline.is_drained() && (awaits_end || awaits_states) {
            return Next::Nothing;
        }
        let mut evict_tokens = 0;
        let mut retracted = None;
        if self.batch.ended().is_empty() && !self.hosts.pins_mut().release_soft_or_all() {
            match self.victim() {
                Some(seq) => {
                    retracted = self.retract(seq);
                    evict_tokens = self.batch.running().len() * RETRACT_DECODE_STEPS;
                }
                // The last sequence may still end normally with its token in flight.
                None if !self.pipeline.is_drained() => return Next::Nothing,
                None => self.fail_last(),
            }
        }
        // A retracted request may fit into the plan after this one, even if this one runs nothing.
        self.pipeline.note_change();
        let mut settle = self.take_settlements();
        settle.extend(retracted);
        let (decode, decode_demand) = self.plan_decode().into_demand();
        let request = PlanStep {
            settle,
            decode_demand,
            evict_tokens,
            ..self.empty_request()
        };
        self.pipeline.open(decode, open.flush);
        Next::PlanStep(Box::new(request))
    }

    /// The running sequence with the fewest output tokens (then the longest prompt); the chunked one if at most one
    /// runs.
    fn victim(&self) -> Option<SeqId> {
        let running = self.batch.running();
        if running.len() <= 1 {
            return self.batch.chunked();
        }
        let order = |seq: &&SeqId| {
            let sequence = &self.requests[**seq];
            (
                sequence.planned_output,
                Reverse(sequence.request.prompt.len()),
                Reverse(**seq),
            )
        };
        running.iter().min_by_key(order).copied()
    }

    fn retract(&mut self, seq: SeqId) -> Option<Settle> {
        let settle = self.release_for_restart(seq);
        self.queue_retracted(seq);
        let others = self.batch.running().iter();
        let progress = others.map(|seq| {
            let sequence = &self.requests[*seq];
            (sequence.planned_output, sequence.max_new_tokens())
        });
        let mut ratio = *self.batch.ratio();
        ratio.after_retraction(progress);
        *self.batch.ratio_mut() = ratio;
        settle
    }

    /// Removes a sequence from the batch and releases its memory; it starts over.
    pub(super) fn release_for_restart(&mut self, seq: SeqId) -> Option<Settle> {
        self.batch.remove(seq);
        self.release_vectors(seq);
        let sequence = &mut self.requests[seq];
        self.pipeline
            .drop_edits(sequence.kv.as_ref().map(|kv| kv.row));
        retract_of(seq, sequence)
    }

    /// Counts a retraction, and queues the sequence among the retracted ones.
    pub(super) fn queue_retracted(&mut self, seq: SeqId) {
        let sequence = &mut self.requests[seq];
        sequence.retractions += 1;
        let (input, output) = (sequence.request.prompt.len(), sequence.output.len());
        self.outbox.count(Counter::Retractions, 1);
        self.outbox.count(Counter::RetractedInputTokens, input);
        self.outbox.count(Counter::RetractedOutputTokens, output);
        self.allow_fetch_again(seq);
        self.queue.push_retracted(seq);
    }

    fn fail_last(&mut self) {
        if let Some(&seq) = self.batch.running().first() {
            self.fail(seq, RequestError::OutOfMemory);
        }
    }

    /// If the engine is idle and the first candidate does not fit, releases pins, or fails the candidate if there are
    /// none.
    pub(super) fn unblock_idle_engine(&mut self, refused: SeqId) {
        let is_busy =
            !self.batch.is_empty() || !self.batch.ended().is_empty() || !self.pipeline.is_drained();
        if is_busy {
            return;
        }
        self.pipeline.note_change();
        let is_live = self.requests.get(refused).is_some();
        if !self.hosts.pins_mut().release_soft_or_all() && is_live {
            self.fail(refused, RequestError::OutOfMemory);
        }
    }
}
