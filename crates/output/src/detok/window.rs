//! Decodes tokens one at a time, each together with a sliding window of the last tokens.
//!
//! A single token has no fixed text: SentencePiece drops the space of the first token, and a character may be split
//! into up to four byte tokens. The window keeps tokens whose text was already emitted, and decodes them with the new
//! token; the additional text is new.

use super::{TextOptions, TokenText};

/// A character has at most 4 bytes, so at most 3 replacement characters can still become one.
const MAX_HELD_REPLACEMENTS: usize = 3;

/// The window is cut after this many tokens that do not end in a whole character. Only invalid bytes get this far.
const MAX_WINDOW_TOKENS: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct DecodeWindow {
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool,
    /// `tokens[..settled]` end in a whole character, and their text was emitted.
    tokens: Vec<u32>,
    settled: usize,
    decoded: String,
    emitted_bytes: usize,
}

impl DecodeWindow {
    pub(super) fn new(options: TextOptions, context: &[u32], tokenizer: &dyn TokenText) -> Self {
        let mut window = Self {
            skip_special_tokens: options.skip_special_tokens,
            spaces_between_special_tokens: options.spaces_between_special_tokens,
            tokens: context.to_vec(),
            settled: context.len(),
            decoded: String::new(),
            emitted_bytes: 0,
        };
        window.decoded = window.decode(&window.tokens, tokenizer);
        window.emitted_bytes = window.decoded.len();
        window
    }

    /// Adds a token and returns the text that it makes final.
    pub(super) fn push(&mut self, token: u32, tokenizer: &dyn TokenText) -> String {
        self.tokens.push(token);
        let mut decoded = self.decode(&self.tokens, tokenizer);
        if decoded == self.decoded && self.adds_nothing(token, tokenizer) {
            self.tokens.pop();
            return String::new();
        }
        if !decoded.starts_with(&self.decoded[..self.emitted_bytes]) {
            // Byte tokens that became invalid change characters that were already emitted: restart after these.
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
        if self.tokens.len() > MAX_WINDOW_TOKENS {
            delta + &self.cut(tokenizer)
        } else {
            delta
        }
    }

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

    /// Distinguishes a token without text (skipped, unknown) from one whose text needs the next token.
    fn adds_nothing(&self, token: u32, tokenizer: &dyn TokenText) -> bool {
        let ends_whole = !self.decoded.is_empty() && held_bytes(&self.decoded) == 0;
        ends_whole || self.decode(&[token, token], tokenizer).is_empty()
    }

    fn emit_until(&mut self, end: usize) -> String {
        let start = self.emitted_bytes;
        self.emitted_bytes = start.max(end);
        self.decoded[start..self.emitted_bytes].to_owned()
    }

    /// Drops the tokens settled earlier, and settles the others, whose text was just emitted: they suffice as context.
    fn forget_settled(&mut self, tokenizer: &dyn TokenText) {
        let tail = self.decode(&self.tokens[self.settled..], tokenizer);
        self.tokens.drain(..self.settled);
        self.settled = self.tokens.len();
        self.emitted_bytes = tail.len();
        self.decoded = tail;
    }

    /// Cuts a window of invalid bytes where both parts decode separately; else emits its text and keeps the last token.
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

/// Returns the number of bytes at the end of a text that may begin a character.
fn held_bytes(text: &str) -> usize {
    let replacements = text
        .chars()
        .rev()
        .take(MAX_HELD_REPLACEMENTS)
        .take_while(|&character| character == char::REPLACEMENT_CHARACTER);
    replacements.count() * char::REPLACEMENT_CHARACTER.len_utf8()
}
