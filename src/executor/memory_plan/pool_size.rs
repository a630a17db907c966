//! Converts between a KV pool's tokens and its bytes, for the memory plan.

use super::bytes::Bytes;
use super::slots::StateSlots;
use super::wish::MemoryWish;

/// Largest default size of the KV pool on a CPU, in sequences of full length.
pub(super) const DEFAULT_CONTEXTS: u64 = 32;
/// `PageId` is a `u32`, and page 0 is the dummy page.
pub(super) const MAX_PAGES: u64 = u32::MAX as u64 - 1;

impl MemoryWish {
    /// Bytes of a pool for `tokens` tokens, including the dummy page, window pages and states.
    pub(super) fn pool_bytes(&self, tokens: u64) -> u64 {
        let page_bytes = self.page_bytes(tokens);
        let states = StateSlots::of(self).map_or(0, |states| states.bytes_for_pages(page_bytes));
        let windows = self.window_bytes(tokens);
        page_bytes.saturating_add(states).saturating_add(windows)
    }

    /// Size of the pages for `tokens` tokens, with the dummy page.
    fn page_bytes(&self, tokens: u64) -> u64 {
        tokens
            .saturating_add(u64::from(self.page_size))
            .saturating_mul(self.kv_bytes_per_token)
    }

    pub(super) fn state_slots(&self, tokens: u64) -> u64 {
        StateSlots::of(self).map_or(0, |states| states.for_pages(self.page_bytes(tokens)))
    }

    /// Tokens, in whole pages, of a pool of `bytes` bytes.
    pub(super) fn tokens_in(&self, bytes: u64) -> u64 {
        if self.windows.is_some() {
            let pages = self.pages_with_windows(bytes, MAX_PAGES);
            return pages.saturating_mul(u64::from(self.page_size));
        }
        let states = StateSlots::of(self);
        let bytes = states.map_or(bytes, |states| states.page_bytes_in(bytes));
        let slots = bytes / self.kv_bytes_per_token.max(1);
        self.whole_pages(slots.saturating_sub(u64::from(self.page_size)))
    }

    pub(super) fn whole_pages(&self, tokens: u64) -> u64 {
        tokens - tokens % u64::from(self.page_size)
    }

    /// Tokens of [`DEFAULT_CONTEXTS`] sequences of full length, the default size of a pool; at least a page.
    pub(super) fn default_contexts(&self) -> u64 {
        let contexts = self.context_tokens.saturating_mul(DEFAULT_CONTEXTS);
        self.whole_pages(contexts).max(u64::from(self.page_size))
    }

    pub(super) fn smallest_pool_bytes(&self) -> u64 {
        self.pool_bytes(u64::from(self.page_size))
    }

    pub(super) fn smallest_pool(&self) -> String {
        let bytes = Bytes(self.smallest_pool_bytes());
        match self.state_slots(u64::from(self.page_size)) {
            0 => format!("{bytes} (one page and the dummy page)"),
            states => format!(
                "{bytes} (one page, the dummy page and {states} states; fewer with a smaller max_running_requests \
                 or max_mamba_cache_size)"
            ),
        }
    }

    /// Window pages of a pool for `tokens` tokens, without the dummy page.
    pub(super) fn window_pages(&self, tokens: u64) -> u64 {
        let page_size = u64::from(self.page_size);
        let windows = self
            .windows
            .map(|windows| windows.window_tokens(tokens, page_size));
        windows.map_or(0, |tokens| tokens / page_size)
    }

    /// Bytes of the window pages, with the dummy page.
    pub(super) fn window_bytes(&self, tokens: u64) -> u64 {
        self.windows.map_or(0, |windows| {
            let pages = self.window_pages(tokens).saturating_add(1);
            let slots = pages.saturating_mul(u64::from(self.page_size));
            slots.saturating_mul(windows.kv_bytes_per_token)
        })
    }

    /// The largest number of pages, up to `max_pages`, that fit into `bytes` together with their window pages.
    fn pages_with_windows(&self, bytes: u64, max_pages: u64) -> u64 {
        let (mut fits, mut too_many) = (0, max_pages.saturating_add(1));
        while fits + 1 < too_many {
            let pages = fits + (too_many - fits) / 2;
            let tokens = pages.saturating_mul(u64::from(self.page_size));
            if self.pool_bytes(tokens) <= bytes {
                fits = pages
            } else {
                too_many = pages
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::super::windows::WindowRequest;
    use super::*;

    /// Gemma 3 4B in bf16: 5 full-attention layers and 29 with windows.
    fn gemma() -> MemoryWish {
        MemoryWish {
            kv_bytes_per_token: 20_480,
            windows: Some(WindowRequest {
                kv_bytes_per_token: 29 * 4096,
                tokens: 1024,
                chunk_tokens: 2048,
                per_token: 0.25,
            }),
            state_bytes: 0,
            page_size: 16,
            context_tokens: 131_072,
            mem_fraction_static: None,
            max_total_tokens: None,
            max_running_requests: None,
            max_states: None,
            caches_prefixes: true,
            state_interval_tokens: None,
        }
    }

    fn with_share(per_token: f64) -> MemoryWish {
        let mut wish = gemma();
        wish.windows = wish.windows.map(|windows| WindowRequest {
            per_token,
            ..windows
        });
        wish
    }

    #[test]
    fn pages_and_windows_fill_the_memory() {
        for wish in [0.001, 0.25, 0.8, 1.0].map(with_share) {
            for bytes in (0..40).map(|gib: u64| gib * (1 << 28) + gib * 977) {
                let tokens = wish.tokens_in(bytes);
                if tokens > 0 {
                    assert!(wish.pool_bytes(tokens) <= bytes, "{tokens} in {bytes}");
                }
                assert!(wish.pool_bytes(tokens + 16) > bytes, "{tokens} in {bytes}");
            }
        }
    }

    #[test]
    fn window_pages_have_the_requested_share_or_the_minimum() {
        let min = 2048 + 2 * 1024 + 8 * 16;
        for (per_token, in_windows) in [(0.001, min), (0.5, 1 << 19), (1.0, 1 << 20)] {
            let pages = with_share(per_token).window_pages(1 << 20);
            assert_eq!(pages * 16, in_windows, "{per_token}");
        }
        let [few, many] = [0.1, 1.0].map(|share| with_share(share).tokens_in(8 << 30));
        assert!(few > 4 * many, "{few} and {many} tokens in the same memory");
    }

    #[test]
    fn windows_get_a_share_but_enough_for_one_sequence_or_all_tokens() {
        let wish = gemma();
        let min = 2048 + 2 * 1024 + 8 * 16;
        for (tokens, in_windows) in [(160, 160), (4096, 4096), (8192, min), (1 << 20, 1 << 18)] {
            assert_eq!(wish.window_pages(tokens) * 16, in_windows);
        }
        let mut all = wish;
        all.kv_bytes_per_token = 0;
        // Without full-attention layers, four tokens of the pool share one slot in window pages.
        let slots = (8 << 30) / (29 * 4096);
        let tokens = all.tokens_in(8 << 30);
        assert!((4 * slots - 192..=4 * slots).contains(&tokens), "{tokens}");
    }
}
