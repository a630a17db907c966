//! Drafts of requests: how many a step may have, the texts that they come from, and how many were accepted.

use std::sync::Arc;

use crate::call::Predicted;
use souffleur_base::error::RequestError;
use souffleur_model::text::TextModel;
use souffleur_request::{DraftUsage, PredictionUsage, Usage};
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::speculation::{DraftSource, DraftText, RowDrafts};

use super::TokenizerSettings;

/// The most query tokens of a request's rows in a step: the requested number, at most the engine's. `None` if its steps
/// have no drafts.
pub(super) fn room(wished: Option<u32>, has_vectors: bool, engine: u32) -> Option<u32> {
    let room = wished.unwrap_or(engine).min(engine);
    // The tokens of a prompt of vectors are unknown.
    (room > 1 && !has_vectors).then_some(room)
}

/// The most bytes of a prediction that are encoded at once, which takes about a hundred times their size in memory.
const PIECE_BYTES: usize = 256 << 10;

/// The texts of a prompt's drafts, in addition to the prompt and its output.
///
/// # Errors
/// The tokenizer fails.
pub(super) fn texts(
    prediction: Option<&Predicted>,
    literals: Option<Arc<[u32]>>,
    settings: &TokenizerSettings,
) -> Result<Arc<[DraftText]>, RequestError> {
    let tokenizer = settings.text.as_deref().filter(|_| settings.room > 1);
    let Some(tokenizer) = tokenizer else {
        return Ok(Arc::default());
    };
    let mut texts = Vec::new();
    if let Some(prediction) = prediction {
        texts.push(DraftText {
            source: DraftSource::Prediction,
            tokens: prediction.tokens(|text| predicted_tokens(text, tokenizer, settings))?,
        });
    }
    texts.extend(literals.map(|tokens| DraftText {
        source: DraftSource::Grammar,
        tokens,
    }));
    texts.retain(|text: &DraftText| !text.tokens.is_empty());
    Ok(texts.into())
}

/// The tokens of a prediction, up to the number that a prompt may have. Names of special tokens are letters in outputs,
/// too. Where a long text is cut for encoding, tokens may differ from those of the whole text, which costs some drafts.
fn predicted_tokens(
    prediction: &str,
    tokenizer: &TextModel,
    settings: &TokenizerSettings,
) -> Result<Arc<[u32]>, RequestError> {
    let limit = settings.limits.max_prompt_tokens();
    let (mut tokens, mut rest) = (Vec::new(), prediction);
    while !rest.is_empty() && tokens.len() < limit {
        let (piece, later) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        tokens.extend(match tokenizer.encode_fragment(piece) {
            Some(tokens) => tokens,
            None => tokenizer.encode_chat(piece)?,
        });
        rest = later;
    }
    tokens.truncate(limit);
    let is_known = |token: &u32| (*token as usize) < settings.vocab_size;
    Ok(if tokens.iter().all(is_known) {
        tokens.into()
    } else {
        Arc::default()
    })
}

/// The tokens of the prediction among the texts of a prompt's drafts.
pub(super) fn of_prediction(texts: &[DraftText]) -> Option<&Arc<[u32]>> {
    let prediction = texts
        .iter()
        .find(|text| text.source == DraftSource::Prediction);
    prediction.map(|text| &text.tokens)
}

/// Number of steps by the number of drafts that they accepted.
pub(super) struct AcceptHistogram(Vec<u32>);

impl AcceptHistogram {
    /// The histogram of a request, and its usage before the first token.
    pub(super) fn of(submission: &Submission, has_prediction: bool) -> (Self, Usage) {
        let room = submission.sampling.speculative_num_draft_tokens;
        let usage = Usage {
            prompt_tokens: submission.prompt.len() as u32,
            drafts: room.map(|_| DraftUsage::default()),
            prediction: has_prediction.then(PredictionUsage::default),
            ..Usage::default()
        };
        let capacity = room.unwrap_or(0) as usize;
        (Self(Vec::with_capacity(capacity)), usage)
    }

    /// Counts the drafts of a step after the first token, which a prefill has computed. `n_kept` tokens of the step
    /// belong to the output: those after a stop string do not.
    pub(super) fn count(&mut self, drafts: RowDrafts, n_kept: u32, usage: &mut Usage) {
        let (Some(sum), Some(most)) = (&mut usage.drafts, n_kept.checked_sub(1)) else {
            return;
        };
        let RowDrafts {
            n_tokens: drafted,
            source,
        } = drafts;
        let accepted = drafted.min(most);
        sum.verify_steps += 1;
        sum.drafted += drafted;
        sum.accepted += accepted;
        if let Some(sum) = &mut usage.prediction
            && source == DraftSource::Prediction
        {
            sum.accepted += accepted;
            sum.rejected += drafted - accepted;
        }
        let at = accepted as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += 1;
    }

    pub(super) fn counts(&self) -> Arc<[u32]> {
        self.0.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_lowers_the_engines_number_and_never_raises_it() {
        assert_eq!(room(None, false, 8), Some(8));
        assert_eq!(room(Some(4), false, 8), Some(4));
        assert_eq!(room(Some(64), false, 8), Some(8));
        for off in [0, 1] {
            assert_eq!(room(Some(off), false, 8), None);
        }
        assert_eq!(room(None, true, 8), None);
        for wished in [None, Some(4)] {
            assert_eq!(
                room(wished, false, 0),
                None,
                "the engine does not speculate"
            );
        }
    }

    fn drafts(n_tokens: u32, source: DraftSource) -> RowDrafts {
        RowDrafts { n_tokens, source }
    }

    #[test]
    fn steps_are_counted_by_their_accepted_drafts() {
        let mut histogram = AcceptHistogram(Vec::new());
        let mut usage = Usage {
            drafts: Some(DraftUsage::default()),
            prediction: Some(PredictionUsage::default()),
            ..Usage::default()
        };
        for (n_kept, drafts) in [
            (1, drafts(0, DraftSource::OwnText)),
            (4, drafts(7, DraftSource::Prediction)),
            // A stop string ended in the second of three tokens.
            (2, drafts(2, DraftSource::OwnText)),
            (0, drafts(3, DraftSource::OwnText)),
        ] {
            histogram.count(drafts, n_kept, &mut usage);
        }
        let drafts = DraftUsage {
            verify_steps: 3,
            drafted: 9,
            accepted: 4,
        };
        assert_eq!(usage.drafts, Some(drafts));
        let prediction = PredictionUsage {
            accepted: 3,
            rejected: 4,
        };
        assert_eq!(usage.prediction, Some(prediction));
        assert_eq!(*histogram.counts(), [1, 1, 0, 1]);
    }

    #[test]
    fn a_request_without_drafts_counts_none() {
        let mut histogram = AcceptHistogram(Vec::new());
        let mut usage = Usage::default();
        histogram.count(drafts(0, DraftSource::OwnText), 1, &mut usage);
        assert_eq!((usage, histogram.counts().len()), (Usage::default(), 0));
    }
}
