//! Bounds the memory of large answers that clients have not yet read: one byte budget for all of them.
//!
//! Charged are log probabilities of prompts, scores, embeddings, token ids and replayed events. An answer outlives its
//! request: it is written as JSON, and sent at the client's reading speed. So a call is charged before it starts, and
//! the charge lasts until the answer has been sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::ApiError;
use souffleur_request::{GenerateRequest, Prompt};

/// Bytes of a prompt position, without its log probabilities.
const POSITION_BYTES: usize = 128;
/// Bytes of one log probability, in memory and as JSON.
const ENTRY_BYTES: usize = 40;

/// The byte budget that all answers of a server share. Cheap to clone.
#[derive(Clone)]
pub(super) struct AnswerBudget(Arc<Counts>);

struct Counts {
    limit_bytes: usize,
    taken_bytes: AtomicUsize,
}

/// The charge for one call's answers; its bytes return to the budget when the last clone is dropped.
pub(super) type AnswerCharge = Arc<Charge>;

pub(super) struct Charge {
    counts: Arc<Counts>,
    bytes: usize,
}

impl AnswerBudget {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Counts {
            limit_bytes,
            taken_bytes: AtomicUsize::new(0),
        }))
    }

    /// Charges a call for the log probabilities of its prompts, each of at most `context_tokens` tokens; `None` if the
    /// call asks for none. A call above the limit is charged if it is alone. Fails with 503 if the budget is used up.
    pub(super) fn charge(
        &self,
        requests: &[GenerateRequest],
        context_tokens: usize,
    ) -> Result<Option<AnswerCharge>, ApiError> {
        let bytes = requests
            .iter()
            .map(|request| answer_bytes(request, context_tokens));
        self.charge_bytes(bytes.fold(0, usize::saturating_add))
    }

    /// As [`AnswerBudget::charge`], for an answer of at most `bytes` bytes.
    pub(super) fn charge_bytes(&self, bytes: usize) -> Result<Option<AnswerCharge>, ApiError> {
        if bytes == 0 {
            return Ok(None);
        }
        let limit = self.0.limit_bytes;
        let grown = |taken: usize| {
            let after = taken.saturating_add(bytes);
            (taken == 0 || after <= limit).then_some(after)
        };
        let taken = &self.0.taken_bytes;
        match taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, grown) {
            Ok(_) => Ok(Some(Arc::new(Charge {
                counts: self.0.clone(),
                bytes,
            }))),
            Err(_) => Err(ApiError::answers_full(limit)),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let taken = &self.counts.taken_bytes;
        taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// An upper bound of the bytes of a prompt's log probabilities: a text has no more tokens than bytes, and a prompt
/// longer than the context is refused.
fn answer_bytes(request: &GenerateRequest, context_tokens: usize) -> usize {
    let Some((logprobs, start)) = request
        .logprobs
        .as_ref()
        .and_then(|logprobs| Some((logprobs, logprobs.start?)))
    else {
        return 0;
    };
    let tokens = match &request.prompt {
        Prompt::Tokens(tokens) => tokens.len(),
        Prompt::Vectors(vectors) => vectors.len(),
        Prompt::Images(prompt) => prompt.tokens.len(),
        text => text.text_bytes(),
    };
    let positions = tokens.min(context_tokens).saturating_sub(start as usize);
    let entries = 1 + logprobs.top as usize + logprobs.token_ids.len();
    positions.saturating_mul(POSITION_BYTES + entries * ENTRY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_state::sampling::LogprobWish;

    const CONTEXT: usize = 1000;

    fn request(tokens: usize, top: u32) -> GenerateRequest {
        let mut request = GenerateRequest::new(Prompt::Tokens(vec![5; tokens].into()));
        request.logprobs = Some(LogprobWish {
            start: Some(0),
            top,
            token_ids: [].into(),
        });
        request
    }

    #[test]
    fn answers_share_one_budget_until_they_are_dropped() {
        let one = answer_bytes(&request(1000, 10), CONTEXT);
        assert_eq!(one, answer_bytes(&request(5000, 10), CONTEXT));
        let budget = AnswerBudget::new(2 * one);
        let charge = |n| budget.charge(&vec![request(1000, 10); n], CONTEXT);
        let first = charge(1).expect("the budget is unused");
        let clone = first.clone();
        assert!(charge(2).is_err());
        let second = charge(1).expect("the budget is enough for two answers");
        assert!(charge(1).is_err());
        drop(first);
        assert!(charge(1).is_err(), "the clone still holds the charge");
        drop((clone, second));
        assert!(charge(3).is_ok(), "a large call is admitted alone");
        let plain = GenerateRequest::new(Prompt::Tokens([5].into()));
        assert!(matches!(budget.charge(&[plain], CONTEXT), Ok(None)));
    }
}
