//! Forecast of the free memory whenever a request ends, for requests that ignore EOS on an engine without a cache.
//!
//! Such requests end exactly at their limits, so their outputs need not be reserved all at once. Whenever a
//! request ends, memory must hold the tokens of all requests that still run (SGLang's `add_one_req_ignore_eos`).

/// Tokens kept free for each request that is still running when another one ends.
const RESERVE_TOKENS: f64 = 1.0;

#[derive(Clone, Debug, Default)]
pub struct CompletionOrder {
    /// Sorted by `tokens_left` from the first call of [`fits`](Self::fits) on: most steps make no call.
    ends: Vec<Completion>,
    is_sorted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Completion {
    tokens_left: f64,
    held_tokens: usize,
}

impl CompletionOrder {
    /// Adds a request, unless it has nothing left to generate.
    pub fn insert(&mut self, tokens_left: f64, held_tokens: usize) {
        if tokens_left <= 0.0 {
            return;
        }
        let end = Completion {
            tokens_left,
            held_tokens,
        };
        let place = if self.is_sorted {
            self.ends
                .partition_point(|other| other.tokens_left <= tokens_left)
        } else {
            self.ends.len()
        };
        self.ends.insert(place, end);
    }

    /// True if `free_tokens` suffice until the last request ends, with the tokens that each end frees.
    pub fn fits(&mut self, free_tokens: f64) -> bool {
        if !self.is_sorted {
            self.ends
                .sort_by(|a, b| a.tokens_left.total_cmp(&b.tokens_left));
            self.is_sorted = true;
        }
        let mut freed = 0.0;
        self.ends.iter().enumerate().all(|(index, end)| {
            let running = (self.ends.len() - index) as f64;
            let least_free = free_tokens + freed - end.tokens_left * running;
            freed += end.held_tokens as f64;
            least_free > RESERVE_TOKENS * running
        })
    }
}
