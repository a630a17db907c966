//! The memory plan's number of window pages, in addition to full-attention pages.

/// Additional pages of a sequence: for the end of its prefix, and for decodes after it.
const LOOSE_PAGES: u64 = 8;

/// The layers of a model that see no more than the last tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowWish {
    /// K/V of one token in these layers, in bytes.
    pub kv_bytes_per_token: u64,
    /// Tokens that a query sees.
    pub tokens: u64,
    /// Most tokens of a prefill's extent, which are all in window pages at once.
    pub chunk_tokens: u64,
    /// Tokens in window pages for each token in full-attention pages, above 0 and at most 1.
    pub per_token: f64,
}

impl WindowWish {
    /// Tokens in window pages for `tokens` in full-attention pages: enough that one sequence alone can always continue.
    pub(super) fn for_pages(&self, tokens: u64, page_size: u64) -> u64 {
        let least = self
            .chunk_tokens
            .saturating_add(self.tokens.saturating_mul(2))
            .saturating_add(page_size.saturating_mul(LOOSE_PAGES));
        let share = (tokens as f64 * self.per_token) as u64;
        // Window pages have no token that full-attention pages lack.
        let wanted = least.max(share).min(tokens);
        wanted.next_multiple_of(page_size.max(1))
    }
}
