//! Events that explain cache misses: where each prompt diverges from the cache (its miss point), and evictions.

use crate::cache::prefix_history::{AdmittedPrompt, Departure, EvictedEdge, PrefixEvent};
use souffleur_base::ids::{SeqId, StepId};

use super::Scheduler;
use super::outbox::Counter;

impl Scheduler {
    /// Takes the pending events, in order. If the cache diagnoses no misses, only flushes are reported.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        self.outbox.take_prefix_events()
    }

    /// Keeps the miss point of the first admission until the part from the KV store is known.
    pub(super) fn note_departure(&mut self, seq: SeqId, departure: Option<Box<Departure>>) {
        let sequence = &mut self.requests[seq];
        if sequence.cached_tokens.is_none() {
            sequence.departure = departure;
        }
    }

    /// Counts the cached tokens of a sequence at its first admission.
    pub(super) fn note_cached_tokens(&mut self, seq: SeqId, cached_tokens: usize) {
        let sequence = &mut self.requests[seq];
        if sequence.cached_tokens.is_some() {
            return;
        }
        let cached_tokens = sequence.prompt_tokens_in(cached_tokens);
        sequence.cached_tokens = Some(cached_tokens as u32);
        let outbox = &mut self.outbox;
        outbox.note_first_admission(seq, &sequence.request);
        outbox.count(Counter::PromptTokens, sequence.request.prompt.len());
        outbox.count(Counter::CachedTokens, cached_tokens);
    }

    /// Reports a prompt's miss point, once nothing more is loaded. A request that ends earlier reports no miss: none of
    /// its prompt was computed.
    pub(super) fn report_departure(&mut self, seq: SeqId) {
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
        let admitted = AdmittedPrompt {
            rid: request.rid.clone(),
            namespace: request.namespace.clone(),
            prompt: request.prompt.clone(),
            step: self.pipeline.next_step(),
            departure: *departure,
            stored,
        };
        self.outbox
            .note_prefix_event(PrefixEvent::Left(Box::new(admitted)));
    }

    /// Reports a plan's evictions; call it after the plan's admissions.
    pub(super) fn note_evictions(&mut self, step: StepId, edges: Vec<EvictedEdge>) {
        if !edges.is_empty() {
            self.outbox
                .note_prefix_event(PrefixEvent::Evicted { step, edges });
        }
    }

    /// Reports a flush, even without diagnosis: listeners must learn of flushes.
    pub(super) fn note_flush(&mut self, step: StepId, edges: Vec<EvictedEdge>) {
        self.outbox
            .note_prefix_event(PrefixEvent::Flushed { step, edges });
    }
}
