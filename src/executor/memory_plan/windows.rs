//! Computes the number of sliding-window pages in the memory plan.

/// Pages of a sequence in addition to its chunk and windows: for the end of its prefix, and for decodes.
const EXTRA_PAGES: u64 = 8;

/// The sliding-window layers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowRequest {
    /// K/V of one token in these layers, in bytes.
    pub kv_bytes_per_token: u64,
    /// Tokens that a query sees.
    pub tokens: u64,
    /// Largest chunk of a prefill, in tokens: window pages hold the whole chunk at once.
    pub chunk_tokens: u64,
    /// Tokens in window pages for each token in full-attention pages, above 0 and at most 1.
    pub per_token: f64,
}

impl WindowRequest {
    /// Tokens in window pages for `tokens` in full-attention pages: enough that one sequence alone can always continue.
    pub(super) fn window_tokens(&self, tokens: u64, page_size: u64) -> u64 {
        let min_tokens = self
            .chunk_tokens
            .saturating_add(self.tokens.saturating_mul(2))
            .saturating_add(page_size.saturating_mul(EXTRA_PAGES));
        let share = (tokens as f64 * self.per_token) as u64;
        // Every token in window pages is also in full-attention pages.
        let wanted = min_tokens.max(share).min(tokens);
        wanted.next_multiple_of(page_size.max(1))
    }
}
