//! Counts the tokens of a text that is too long to encode at once.
//!
//! Encoding needs memory of about a hundred times the text's length, so a long text is encoded in pieces. A cut changes
//! the tokens near it, so pieces overlap. Each piece is counted from a seam after its start to a seam before its end. A
//! seam is a place at which a token begins in both pieces.

use tokenizers::Encoding;

use super::TextModel;
use souffleur_base::error::{PromptTokens, RequestError};

/// Maximum length of a piece.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of extra tokens in a piece because its ends cut longer tokens.
const MAX_EXTRA_TOKENS: usize = 256;
/// Overlap: bytes at each end of a piece that are encoded but not counted.
const MARGIN_BYTES: usize = 1 << 10;
/// Longest text whose tokens are all counted. Counting a longer text would occupy the tokenizer for seconds.
pub const MAX_COUNTED_BYTES: usize = 2 << 20;

impl TextModel {
    /// Counts the tokens of a plain prompt as [`encode`](Self::encode) returns them. `None` if the count may be at most
    /// `limit`.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn count_prompt_above(
        &self,
        text: &str,
        limit: usize,
    ) -> Result<Option<PromptTokens>, RequestError> {
        let added = self.encode("")?.len();
        self.count_above(text, limit, added)
    }

    /// Counts the tokens of a rendered chat as [`encode_chat`](Self::encode_chat) returns them. `None` if the count may
    /// be at most `limit`.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn count_chat_above(
        &self,
        rendered: &str,
        limit: usize,
    ) -> Result<Option<PromptTokens>, RequestError> {
        self.count_above(rendered, limit, 0)
    }

    fn count_above(
        &self,
        text: &str,
        limit: usize,
        added: usize,
    ) -> Result<Option<PromptTokens>, RequestError> {
        let mut rest = text;
        let mut min = added;
        while rest.len() > PIECE_BYTES {
            let (piece, later) = rest.split_at(piece_end(rest));
            let found = self.encode_chat(piece)?.len();
            min += found.saturating_sub(MAX_EXTRA_TOKENS);
            if min > limit {
                return Ok(Some(if text.len() <= MAX_COUNTED_BYTES {
                    self.count(text, added, min)?
                } else {
                    PromptTokens::AtLeast(min)
                }));
            }
            rest = later;
        }
        Ok(None)
    }

    /// Counts all tokens of a text, or returns the lower bound `min` if no seam is found.
    fn count(&self, text: &str, added: usize, min: usize) -> Result<PromptTokens, RequestError> {
        let (mut tokens, mut seam, mut is_exact) = (added, 0_usize, true);
        loop {
            let start = text.floor_char_boundary(seam.saturating_sub(MARGIN_BYTES));
            let end = start + piece_end(&text[start..]);
            let piece = self.encode_with_offsets(&text[start..end])?;
            let begins = || piece.get_offsets().iter().map(move |token| start + token.0);
            is_exact &= seam == 0 || begins().any(|begin| begin == seam);
            is_exact &= !straddles(&piece, seam - start);
            if end == text.len() {
                tokens += begins().filter(|begin| *begin >= seam).count();
                break;
            }
            let next = begins().filter(|begin| begin + MARGIN_BYTES <= end).max();
            let next = next.filter(|next| *next > seam);
            // One token fills the piece, so there is no seam.
            let Some(next) = next else {
                return Ok(PromptTokens::AtLeast(min));
            };
            tokens += begins()
                .filter(|begin| (seam..next).contains(begin))
                .count();
            seam = next;
        }
        Ok(if is_exact {
            PromptTokens::Exactly(tokens)
        } else {
            PromptTokens::AtLeast(min)
        })
    }

    /// Encodes a text with the offsets of its tokens, and without special tokens.
    fn encode_with_offsets(&self, text: &str) -> Result<Encoding, RequestError> {
        let encoding = self.tokenizer.encode(text, false);
        encoding.map_err(|error| super::not_tokenized(&*error))
    }
}

/// Whether a token begins before `at` and ends after it.
fn straddles(piece: &Encoding, at: usize) -> bool {
    let mut tokens = piece.get_offsets().iter();
    tokens.any(|&(begin, end)| begin < at && at < end)
}

/// The end of a text's first piece: after white space near the limit if there is any, else between characters.
fn piece_end(text: &str) -> usize {
    if text.len() <= PIECE_BYTES {
        return text.len();
    }
    let end = text.floor_char_boundary(PIECE_BYTES);
    let near = text.floor_char_boundary(end - MARGIN_BYTES);
    let space = text[near..end].rfind(|c: char| c.is_ascii_whitespace());
    space.map_or(end, |at| near + at + 1)
}
