//! Streaming detokenizer: returned text never changes afterwards.
//!
//! Text is held back for two reasons. A character may need the bytes of later tokens (`window`), and the end of the
//! text may begin a stop string (`stops`). Both are bounded, and a token's cost is independent of the output's length.

mod stops;
mod window;

use std::sync::Arc;

pub use stops::{Found, StopMatcher, StopTable};
use window::DecodeWindow;

/// Decodes tokens to text. Implemented by the tokenizer, and by small vocabularies in tests.
pub trait TokenText {
    /// Returns the tokens' text as one string, as the tokenizer decodes a whole output: invalid UTF-8 becomes U+FFFD,
    /// unknown ids decode to nothing.
    fn decode(
        &self,
        tokens: &[u32],
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
    ) -> String;
}

/// Options of detokenization, named as SGLang's sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    pub skip_special_tokens: bool,
    /// Puts spaces between special tokens in the text.
    pub spaces_between_special_tokens: bool,
    pub no_stop_trim: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            no_stop_trim: false,
        }
    }
}

/// The text of an output, and the search for its stop strings.
#[derive(Clone, Debug)]
pub struct TextStream {
    window: DecodeWindow,
    stops: StopMatcher,
    /// Text not taken yet; its last `held_bytes` may begin a stop string.
    text: String,
    held_bytes: usize,
    output_tokens: usize,
    keeps_stop: bool,
    stopped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Output tokens up to and including the one that completed the stop string.
    pub output_tokens_kept: usize,
    pub matched: String,
}

impl TextStream {
    /// Outputs may share `stops`. `context` are the last few tokens of the prompt (SGLang takes 5): they add no
    /// text, but with them a first token such as `▁Paris` of a SentencePiece vocabulary keeps its space. Without
    /// context the text equals the decoded output.
    pub fn new(
        options: TextOptions,
        stops: Arc<StopTable>,
        context: &[u32],
        tokenizer: &dyn TokenText,
    ) -> Self {
        Self {
            window: DecodeWindow::new(options, context, tokenizer),
            stops: StopMatcher::new(stops),
            text: String::new(),
            held_bytes: 0,
            output_tokens: 0,
            keeps_stop: options.no_stop_trim,
            stopped: false,
        }
    }

    /// Adds the next output token. Returns the stop string that it completes, if any; later tokens are ignored.
    ///
    /// Of several stop strings, the one that ends first wins, and the longest of those that end together, however the
    /// text is divided into tokens. The text ends before the stop string, or after it (`no_stop_trim`).
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
        self.text.truncate(if self.keeps_stop {
            end
        } else {
            end - matched.len()
        });
        self.held_bytes = 0;
        self.stopped = true;
        Some(StopMatch {
            output_tokens_kept: self.output_tokens,
            matched,
        })
    }

    /// Counts an output token without text: the EOS or stop token that ended the output. With `no_stop_trim`,
    /// [`push`](Self::push) it instead.
    pub fn push_without_text(&mut self) {
        self.output_tokens += usize::from(!self.stopped);
    }

    pub fn take_text(&mut self) -> String {
        let held = self.text.split_off(self.text.len() - self.held_bytes);
        std::mem::replace(&mut self.text, held)
    }

    /// Takes the text so far, including held text, as final. Later tokens keep the earlier ones as context.
    pub fn cut(&mut self) -> String {
        let tail = self.window.flush();
        self.text.push_str(&tail);
        self.held_bytes = 0;
        std::mem::take(&mut self.text)
    }

    /// Takes all remaining text, including held text. Call it once, after the last token.
    pub fn finish(&mut self) -> String {
        if !self.stopped {
            let tail = self.window.flush();
            self.text.push_str(&tail);
        }
        self.stopped = true;
        self.held_bytes = 0;
        std::mem::take(&mut self.text)
    }

    pub fn output_tokens(&self) -> usize {
        self.output_tokens
    }
}

#[cfg(test)]
mod tests;
