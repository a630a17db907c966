//! How many pages of layers with windows lie beside the pages of a pool.

use super::MemoryWish;

/// Pages beside those that a prefix keeps, of its end and of a decode behind it.
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
    /// Tokens in window pages for each token in pages, above 0 and at most 1.
    pub per_token: f64,
}

impl WindowWish {
    /// Tokens in window pages beside so many in pages, both whole pages: a sequence that is alone can always go on.
    pub(super) fn beside(&self, tokens: u64, page_size: u64) -> u64 {
        let least = self
            .chunk_tokens
            .saturating_add(self.tokens.saturating_mul(2))
            .saturating_add(page_size.saturating_mul(LOOSE_PAGES));
        let share = (tokens as f64 * self.per_token) as u64;
        // No token is in window pages alone.
        let wanted = least.max(share).min(tokens);
        wanted.next_multiple_of(page_size.max(1))
    }
}

impl MemoryWish {
    /// Pages for windows beside those for `tokens` tokens, the dummy not among them.
    pub(super) fn window_pages(&self, tokens: u64) -> u64 {
        let page_size = u64::from(self.page_size);
        let windows = self
            .windows
            .map(|windows| windows.beside(tokens, page_size));
        windows.map_or(0, |tokens| tokens / page_size)
    }

    /// Their bytes, with the dummy page.
    pub(super) fn window_bytes(&self, tokens: u64) -> u64 {
        self.windows.map_or(0, |windows| {
            let pages = self.window_pages(tokens).saturating_add(1);
            let slots = pages.saturating_mul(u64::from(self.page_size));
            slots.saturating_mul(windows.kv_bytes_per_token)
        })
    }

    /// Most pages whose tokens fit into `bytes` with the windows beside them, at most so many.
    pub(super) fn pages_beside_windows(&self, bytes: u64, most: u64) -> u64 {
        let (mut fits, mut too_many) = (0, most.saturating_add(1));
        while fits + 1 < too_many {
            let pages = fits + (too_many - fits) / 2;
            let tokens = pages.saturating_mul(u64::from(self.page_size));
            match self.pool_bytes(tokens) <= bytes {
                true => fits = pages,
                false => too_many = pages,
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemma 3 4B in bf16: 5 full layers and 29 with windows.
    fn gemma() -> MemoryWish {
        MemoryWish {
            kv_bytes_per_token: 20_480,
            windows: Some(WindowWish {
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

    /// The same with another share of window pages.
    fn with_share(per_token: f64) -> MemoryWish {
        let mut wish = gemma();
        wish.windows = wish.windows.map(|windows| WindowWish {
            per_token,
            ..windows
        });
        wish
    }

    #[test]
    fn pages_and_windows_fill_what_there_is() {
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
    fn the_share_of_window_pages_is_what_is_asked_for() {
        let least = 2048 + 2 * 1024 + 8 * 16;
        for (per_token, in_windows) in [(0.001, least), (0.5, 1 << 19), (1.0, 1 << 20)] {
            let pages = with_share(per_token).window_pages(1 << 20);
            assert_eq!(pages * 16, in_windows, "{per_token}");
        }
        let [few, many] = [0.1, 1.0].map(|share| with_share(share).tokens_in(8 << 30));
        assert!(few > 4 * many, "{few} and {many} tokens in the same memory");
    }

    #[test]
    fn windows_take_a_share_but_never_less_than_one_sequence_needs() {
        let wish = gemma();
        let least = 2048 + 2 * 1024 + 8 * 16;
        for (tokens, in_windows) in [(160, 160), (4096, 4096), (8192, least), (1 << 20, 1 << 18)] {
            assert_eq!(wish.window_pages(tokens) * 16, in_windows);
        }
        let mut all = wish;
        all.kv_bytes_per_token = 0;
        // A model whose every layer has a window holds four times as many tokens as in pages.
        let flat = (8 << 30) / (29 * 4096);
        let tokens = all.tokens_in(8 << 30);
        assert!((4 * flat - 192..=4 * flat).contains(&tokens), "{tokens}");
    }
}
