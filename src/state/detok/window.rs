//! The last few tokens, decoded together: enough to know the text of the next one.
//!
//! A token has no text of its own. SentencePiece drops the space of whatever comes first, and a character may be
//! spread over up to four byte tokens. So the window keeps some tokens whose text is out already, decodes them with
//! the new one, and what is longer than before is new.

use super::TokenText;
use crate::state::sampling::SamplingParams;

/// A character takes at most 4 bytes, so at most 3 replacement characters can still become one.
const MAX_HELD_REPLACEMENTS: usize = 3;

/// Tokens without a clean end before the window is cut: only invalid bytes make it grow so far.
const MAX_WINDOW_TOKENS: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct DecodeWindow {
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool,
    /// `tokens[..settled]` ended in a whole character, and all their text is out.
    tokens: Vec<u32>,
    settled: usize,
    /// The text of `tokens`, of which `emitted_bytes` are out.
    decoded: String,
    emitted_bytes: usize,
}

impl DecodeWindow {
    pub(super) fn new(params: &SamplingParams, context: &[u32], tokenizer: &dyn TokenText) -> Self {
        let mut window = Self {
            skip_special_tokens: params.skip_special_tokens,
            spaces_between_special_tokens: params.spaces_between_special_tokens,
            tokens: context.to_vec(),
            settled: context.len(),
            decoded: String::new(),
            emitted_bytes: 0,
        };
        window.decoded = window.decode(&window.tokens, tokenizer);
        window.emitted_bytes = window.decoded.len();
        window
    }

    /// Adds a token and returns the text that became certain with it.
    pub(super) fn push(&mut self, token: u32, tokenizer: &dyn TokenText) -> String {
        self.tokens.push(token);
        let mut decoded = self.decode(&self.tokens, tokenizer);
        if decoded == self.decoded && self.adds_nothing(token, tokenizer) {
            self.tokens.pop();
            return String::new();
        }
        if !decoded.starts_with(&self.decoded[..self.emitted_bytes]) {
            // A run of byte tokens that turns invalid takes back the characters before. They are out: go on behind.
            self.restart_with(token);
            decoded = self.decode(&self.tokens, tokenizer);
        }
        self.decoded = decoded;
        let stable = self.decoded.len() - held_bytes(&self.decoded);
        let delta = self.emit_until(stable);
        if stable == self.decoded.len() {
            self.forget_settled(tokenizer);
            return delta;
        }
        match self.tokens.len() > MAX_WINDOW_TOKENS {
            true => delta + &self.cut(tokenizer),
            false => delta,
        }
    }

    /// Gives out what was held back.
    pub(super) fn flush(&mut self) -> String {
        self.emit_until(self.decoded.len())
    }

    fn decode(&self, tokens: &[u32], tokenizer: &dyn TokenText) -> String {
        tokenizer.decode(
            tokens,
            self.skip_special_tokens,
            self.spaces_between_special_tokens,
        )
    }

    /// Tells a token without text (skipped, unknown) from one whose text shows only with the next one.
    fn adds_nothing(&self, token: u32, tokenizer: &dyn TokenText) -> bool {
        let ends_whole = !self.decoded.is_empty() && held_bytes(&self.decoded) == 0;
        ends_whole || self.decode(&[token, token], tokenizer).is_empty()
    }

    fn emit_until(&mut self, end: usize) -> String {
        let start = self.emitted_bytes;
        self.emitted_bytes = start.max(end);
        self.decoded[start..self.emitted_bytes].to_owned()
    }

    /// Drops the tokens up to the last clean end: those behind it are enough to anchor the next one to.
    fn forget_settled(&mut self, tokenizer: &dyn TokenText) {
        let tail = self.decode(&self.tokens[self.settled..], tokenizer);
        self.tokens.drain(..self.settled);
        self.settled = self.tokens.len();
        self.emitted_bytes = tail.len();
        self.decoded = tail;
    }

    /// Shortens a window that is all invalid bytes, where it falls apart into two texts; else gives up on its end.
    fn cut(&mut self, tokenizer: &dyn TokenText) -> String {
        for at in (self.tokens.len() - 2 * MAX_HELD_REPLACEMENTS..self.tokens.len()).rev() {
            let left = self.decode(&self.tokens[..at], tokenizer);
            let right = self.decode(&self.tokens[at..], tokenizer);
            if left.len() <= self.emitted_bytes && self.decoded == format!("{left}{right}") {
                self.tokens.drain(..at);
                self.settled = 0;
                self.emitted_bytes -= left.len();
                self.decoded = right;
                return String::new();
            }
        }
        let rest = self.flush();
        let last = *self.tokens.last().expect("a token was just pushed");
        self.restart_with(last);
        self.decoded = self.decode(&self.tokens, tokenizer);
        self.emitted_bytes = self.decoded.len();
        rest
    }

    fn restart_with(&mut self, token: u32) {
        self.tokens.clear();
        self.tokens.push(token);
        self.settled = 0;
        self.decoded.clear();
        self.emitted_bytes = 0;
    }
}

/// Returns the bytes at the end of a text that may be the start of a character.
fn held_bytes(text: &str) -> usize {
    let replacements = text
        .chars()
        .rev()
        .take(MAX_HELD_REPLACEMENTS)
        .take_while(|&character| character == char::REPLACEMENT_CHARACTER);
    replacements.count() * char::REPLACEMENT_CHARACTER.len_utf8()
}
