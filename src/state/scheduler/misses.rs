//! The facts that the diagnosis of misses is told: who left the tree where, and what was evicted, in the order it happened.

use crate::ids::{SeqId, StepId};
use crate::state::cache::prefix_history::{Departure, EvictedEdge, PrefixEvent, PrefixLeft};

use super::Scheduler;

impl Scheduler {
    /// Takes what there is to tell. Nothing, if the cache diagnoses no misses.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        self.outbox.take_prefix_events()
    }

    /// Keeps what the tree saw until it is known what comes from the store. Only the first admission counts: it is the one
    /// whose cached tokens the client is told.
    pub(super) fn note_departure(&mut self, seq: SeqId, departure: Option<Box<Departure>>) {
        let sequence = &mut self.requests[seq];
        if sequence.cached_tokens.is_none() {
            sequence.departure = departure;
        }
    }

    /// Tells where a prompt left the cache, once nothing more of it is loaded. One that ends before then has missed nothing:
    /// none of it was computed.
    pub(super) fn tell_departure(&mut self, seq: SeqId) {
        let Some(departure) = &self.requests[seq].departure else {
            return;
        };
        let Some(stored) = self.stored_part(seq, departure.matched_tokens) else {
            return;
        };
        let sequence = &mut self.requests[seq];
        let Some(departure) = sequence.departure.take() else {
            return;
        };
        let request = &sequence.request;
        let left = PrefixLeft {
            rid: request.rid.clone(),
            namespace: request.namespace.clone(),
            prompt: request.prompt.clone(),
            step: self.pipeline.next_step(),
            departure: *departure,
            stored,
        };
        self.outbox
            .note_prefix_event(PrefixEvent::Left(Box::new(left)));
    }

    /// The evictions of a plan follow its admissions.
    pub(super) fn note_evictions(&mut self, step: StepId, edges: Vec<EvictedEdge>) {
        if !edges.is_empty() {
            self.outbox
                .note_prefix_event(PrefixEvent::Evicted { step, edges });
        }
    }

    /// Told even if nothing is diagnosed: whoever listens must know that the cache was emptied.
    pub(super) fn note_flush(&mut self, step: StepId, edges: Vec<EvictedEdge>) {
        self.outbox
            .note_prefix_event(PrefixEvent::Flushed { step, edges });
    }
}
