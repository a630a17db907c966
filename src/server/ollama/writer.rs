//! Writes an answer, whole or as lines of JSON.

use super::errors::ErrorForm;
use super::parts::{Part, Parts};
use super::wire::{End, Head};
use crate::error::ApiError;
use crate::openai::logprobs::{ChatLogprobs, ChatToken};
use crate::openapi::operation::LINES;
use crate::spelling::Spelling;
use crate::sse::{Chunks, Render};
use crate::transcript::{Transcript, Update};
use souffleur_base::ids::RequestId;
use souffleur_request::FinishReason;
use souffleur_state::sampling::TokenLogprobs;

pub(super) struct Writer {
    head: Head,
    parts: Parts,
    /// `None` without log probabilities.
    spelling: Option<Spelling>,
}

/// Fails if the request was cancelled, but not by its client: Ollama's answers have no reason for that.
pub(super) fn check_ends(transcripts: &[Transcript]) -> Result<(), ApiError> {
    let mut ends = transcripts.iter().flat_map(|transcript| &transcript.end);
    if ends.any(|end| end.reason == FinishReason::Abort) {
        return Err(ApiError::aborted());
    }
    Ok(())
}

impl Writer {
    pub(super) fn new(head: Head, rid: RequestId, spelling: Option<Spelling>) -> Self {
        Self {
            head,
            parts: Parts::new(rid),
            spelling,
        }
    }

    pub(super) fn whole(mut self, transcripts: Vec<Transcript>) -> Vec<u8> {
        let transcript = transcripts.into_iter().next().unwrap_or_default();
        let Update { delta, end } = transcript.into_update();
        let logprobs = self.logprobs(&delta.output_logprobs);
        let part = self.parts.add(delta.text, delta.pieces);
        let end = end.map(|end| End::new(&self.head, &end, delta.usage));
        let reply = self.head.reply(part, logprobs, end);
        serde_json::to_vec(&reply).expect("answers have string keys only")
    }

    fn logprobs(&self, positions: &[TokenLogprobs]) -> Vec<ChatToken> {
        let spelling = self.spelling.as_ref();
        spelling.map_or_else(Vec::new, |spelling| {
            ChatLogprobs::new(positions, spelling).into_tokens()
        })
    }
}

impl Render for Writer {
    fn content_type(&self) -> &'static str {
        LINES
    }

    fn update(&mut self, _: usize, update: Update, out: &mut Chunks) {
        if update.is_empty() {
            return;
        }
        let Update { delta, end } = update;
        let mut logprobs = self.logprobs(&delta.output_logprobs);
        let mut part = self.parts.add(delta.text, delta.pieces);
        // litellm drops the content of a line that has a thought, too.
        if let Some(thought) = part.take_thought() {
            let logprobs = std::mem::take(&mut logprobs);
            out.line(&self.head.reply(thought, logprobs, None));
        }
        if !part.is_empty() || !logprobs.is_empty() {
            out.line(&self.head.reply(part, logprobs, None));
        }
        let Some(end) = end else {
            return;
        };
        if end.reason == FinishReason::Abort {
            return self.fail(&ApiError::aborted(), out);
        }
        let end = End::new(&self.head, &end, delta.usage);
        out.line(&self.head.reply(Part::default(), Vec::new(), Some(end)));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Chunks) {
        out.line(&ErrorForm::new(error));
    }

    fn close(&mut self, _: &mut Chunks) {}

    /// Sends a part without content: clients parse every line, so there is no other line that they ignore.
    fn keep_alive(&mut self, out: &mut Chunks) {
        out.line(&self.head.reply(Part::default(), Vec::new(), None));
    }
}
