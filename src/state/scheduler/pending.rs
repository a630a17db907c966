//! Counts the tokens that are not computed yet, for gateways that balance requests among engines.

use serde::Serialize;

use super::Scheduler;
use super::sequence::Sequence;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PendingTokens {
    /// Prompt and output tokens of waiting requests. How many come from the cache is known only at admission.
    pub waiting: usize,
    /// Prompt tokens left of the chunked prefill.
    pub prefilling: usize,
}

impl PendingTokens {
    /// Upper bound of the tokens to compute until each request has its first token.
    pub fn total(&self) -> usize {
        self.waiting + self.prefilling
    }
}

impl Scheduler {
    /// Counts the tokens not computed yet. Iterates over the queue: for infrequent calls.
    pub fn pending_tokens(&self) -> PendingTokens {
        let tokens = |sequence: &Sequence| sequence.request.prompt.len() + sequence.output.len();
        let waiting = self.queue.all().map(|seq| tokens(&self.requests[seq]));
        let chunked = self.batch.chunked().map(|seq| &self.requests[seq]);
        let left = |sequence: &Sequence| {
            let committed = sequence.kv.as_ref().map_or(0, |kv| kv.committed);
            sequence.fill.len().saturating_sub(committed)
        };
        PendingTokens {
            waiting: waiting.sum(),
            prefilling: chunked.map_or(0, left),
        }
    }
}
