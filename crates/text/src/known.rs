//! Encodes a conversation and reuses the tokens of an earlier request for its beginning.

use serde_json::Value;

use super::{ChatPrompt, TextModel};
use souffleur_base::error::RequestError;
use souffleur_output::detok::TokenText;

#[derive(Clone, Copy, Debug)]
pub struct KnownBeginning<'a> {
    /// Number of messages at the beginning of the conversation that `tokens` contain.
    pub messages: usize,
    /// Tokens of the earlier request's prompt and output.
    pub tokens: &'a [u32],
    /// Whether the last of these messages is the earlier request's answer.
    pub has_answer: bool,
}

impl TextModel {
    /// Encodes a conversation, whose text is `rendered`, after the known tokens. `None` if they cannot be reused: the
    /// template renders the beginning differently in the whole conversation, or the answer did not end with the
    /// template's end-of-turn token.
    ///
    /// # Errors
    /// Those of [`encode_chat`](Self::encode_chat).
    pub fn encode_after(
        &self,
        known: KnownBeginning<'_>,
        prompt: &ChatPrompt<'_>,
        rendered: &str,
    ) -> Result<Option<Vec<u32>>, RequestError> {
        let messages = prompt.messages.as_array();
        let Some(messages) = messages.and_then(|messages| messages.get(..known.messages)) else {
            return Ok(None);
        };
        let (Some(last), false) = (known.tokens.last(), messages.is_empty()) else {
            return Ok(None);
        };
        let messages = Value::from(messages);
        let beginning = self.render_chat(&ChatPrompt {
            messages: &messages,
            add_generation_prompt: false,
            continue_final_message: false,
            ..*prompt
        });
        // Some templates refuse a conversation that ends after these messages.
        let Ok(beginning) = beginning else {
            return Ok(None);
        };
        let Some(rest) = rendered.strip_prefix(beginning.as_str()) else {
            return Ok(None);
        };
        let after_answer = if known.has_answer {
            self.after_end(*last, &beginning)
        } else {
            Some("")
        };
        let Some(after_answer) = after_answer else {
            return Ok(None);
        };
        let added = self.encode_chat(&format!("{after_answer}{rest}"))?;
        if !self.decodes_to(*last, &added, &[after_answer, &rendered[beginning.len()..]]) {
            return Ok(None);
        }
        Ok(Some([known.tokens, &added].concat()))
    }

    /// The text that the template writes after the token that ended an answer.
    fn after_end<'a>(&self, end: u32, beginning: &'a str) -> Option<&'a str> {
        if !self.is_special(end) {
            return None;
        }
        let end = self.token(end)?;
        let place = beginning.rfind(&end)?;
        let rest = &beginning[place + end.len()..];
        rest.trim().is_empty().then_some(rest)
    }

    /// Whether `tokens` after `last` decode to `texts`. Some tokenizers decode the first token of a text differently.
    fn decodes_to(&self, last: u32, tokens: &[u32], texts: &[&str]) -> bool {
        let before = self.decode(&[last], false, true);
        let both = self.decode(&[&[last], tokens].concat(), false, true);
        let rest = both.strip_prefix(before.as_str());
        rest.is_some_and(|rest| rest == texts.concat())
    }
}
