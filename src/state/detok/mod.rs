//! From tokens to text, while the tokens come: what is given out never changes afterwards.
//!
//! Two things hold text back. A character may need the bytes of tokens to come (`window`), and the end of the text
//! may be the start of a stop string (`stops`). Both are bounded, and a token costs the same at any length of the
//! output.

mod stops;
mod window;

use std::sync::Arc;

use crate::state::sampling::SamplingParams;
pub use stops::{Found, StopMatcher, StopTable};
use window::DecodeWindow;

/// The source of tokens' text: the tokenizer, or a table in a test.
pub trait TokenText {
    /// Returns the text of the tokens as one string, as the tokenizer decodes a whole output: bytes that are no
    /// UTF-8 become U+FFFD, unknown ids become nothing.
    fn decode(
        &self,
        tokens: &[u32],
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
    ) -> String;
}

/// The text of one output and the search for its stop strings.
#[derive(Clone, Debug)]
pub struct TextStream {
    window: DecodeWindow,
    stops: StopMatcher,
    /// Text that was not taken yet; its last `held_bytes` may be the start of a stop string.
    text: String,
    held_bytes: usize,
    output_tokens: usize,
    keeps_stop: bool,
    stopped: bool,
}

/// A stop string completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Output tokens up to and including the one that completed the stop string.
    pub output_tokens_kept: usize,
    /// The stop string.
    pub matched: String,
}

impl TextStream {
    /// Starts the text of an output.
    ///
    /// `context` are the last few tokens of the prompt (SGLang takes 5): they are not part of the text, but with
    /// them a first token such as `▁Paris` of a SentencePiece vocabulary keeps its space. Without context the text is
    /// exactly what decoding the output alone gives.
    pub fn new(params: &SamplingParams, context: &[u32], tokenizer: &dyn TokenText) -> Self {
        let stops = Arc::new(StopTable::new(&params.stop));
        Self::with_stops(params, stops, context, tokenizer)
    }

    /// As [`new`](Self::new), with the table of `params.stop` that several outputs share.
    pub fn with_stops(
        params: &SamplingParams,
        stops: Arc<StopTable>,
        context: &[u32],
        tokenizer: &dyn TokenText,
    ) -> Self {
        Self {
            window: DecodeWindow::new(params, context, tokenizer),
            stops: StopMatcher::new(stops),
            text: String::new(),
            held_bytes: 0,
            output_tokens: 0,
            keeps_stop: params.no_stop_trim,
            stopped: false,
        }
    }

    /// Adds the next output token. Returns the stop string that it completes, if it does; after that, tokens are
    /// ignored.
    ///
    /// Of several stop strings the one that ends first counts, and of those the longest: as if the text had come
    /// byte by byte, whatever the tokens are. The text ends before the stop string, or with it under
    /// `no_stop_trim`.
    pub fn push(&mut self, token: u32, tokenizer: &dyn TokenText) -> Option<StopMatch> {
        if self.stopped {
            return None;
        }
        self.output_tokens += 1;
        let delta = self.window.push(token, tokenizer);
        let text_before = self.text.len();
        self.text.push_str(&delta);
        let Some(found) = self.stops.find(&delta) else {
            self.held_bytes = self.stops.partial_bytes();
            return None;
        };
        let end = text_before + found.end;
        let matched = self.stops.string(found.index).to_owned();
        self.text.truncate(match self.keeps_stop {
            true => end,
            false => end - matched.len(),
        });
        self.held_bytes = 0;
        self.stopped = true;
        Some(StopMatch {
            output_tokens_kept: self.output_tokens,
            matched,
        })
    }

    /// Counts an output token that has no part in the text: the EOS or stop token that ended the output, unless
    /// `no_stop_trim` keeps it (then [`push`](Self::push) it).
    pub fn leave_out(&mut self) {
        self.output_tokens += usize::from(!self.stopped);
    }

    /// Takes the text that has become final since the last call.
    pub fn take_text(&mut self) -> String {
        let held = self.text.split_off(self.text.len() - self.held_bytes);
        std::mem::replace(&mut self.text, held)
    }

    /// Takes the text so far, with what was held back: what follows does not go on from it. The next token keeps the
    /// context of the tokens before.
    pub fn cut(&mut self) -> String {
        let tail = self.window.flush();
        self.text.push_str(&tail);
        self.held_bytes = 0;
        std::mem::take(&mut self.text)
    }

    /// Takes everything that is left, with what was held back. Call it once, when no token can follow.
    pub fn finish(&mut self) -> String {
        if !self.stopped {
            let tail = self.window.flush();
            self.text.push_str(&tail);
        }
        self.stopped = true;
        self.held_bytes = 0;
        std::mem::take(&mut self.text)
    }

    /// Returns how many output tokens were counted, up to a stop string.
    pub fn output_tokens(&self) -> usize {
        self.output_tokens
    }
}

#[cfg(test)]
mod tests;
