//! Tokens that are inside and not computed yet, for gateways that share requests out among engines.

use serde::Serialize;

use super::Scheduler;
use super::sequence::Sequence;

/// Tokens that are inside and not computed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PendingTokens {
    /// Tokens of the requests that wait, prompt and output. Some of them may come from the cache: how many is known at
    /// their admission.
    pub waiting: usize,
    /// Prompt tokens that are left of the prefill that is cut into chunks.
    pub prefilling: usize,
}

impl PendingTokens {
    /// All of them: the most that is computed until each request has its first token.
    pub fn total(&self) -> usize {
        self.waiting + self.prefilling
    }
}

impl Scheduler {
    /// Counts the tokens that are not computed yet. Walks through the queue: for questions that are rare.
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
