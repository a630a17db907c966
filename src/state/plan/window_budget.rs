//! Admission budget of the pages of sliding-window layers.
//!
//! Every page comes with a window page, which is freed once its tokens have left the window.

use super::prefill_adder::CLIP_MAX_NEW_TOKENS;
use crate::pool::pages::Window;

/// The window pages of one prefill step, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct WindowBudget {
    window: Window,
    /// The window pages that running requests may still need before their decodes free as many as they take.
    reserved: f64,
    /// The window pages that the step's prefills take at once.
    taken: usize,
    /// A running request frees window pages when it ends.
    has_running: bool,
}

impl WindowBudget {
    /// Starts with the reservations of the running requests: for each request the tokens that it may still generate,
    /// and the tokens of its private pages.
    pub fn new(window: Window, running: impl Iterator<Item = (f64, usize)>) -> Self {
        let mut budget = Self {
            window,
            reserved: 0.0,
            taken: 0,
            has_running: false,
        };
        for (remaining, held) in running {
            budget.reserved += Self::reserve(window, remaining, held);
            budget.has_running = true;
        }
        budget
    }

    /// The window pages, in tokens, that a running request may still need for its `remaining` tokens: at most a full
    /// window, minus the `held` tokens in the request's private window pages.
    pub fn reserve(window: Window, remaining: f64, held: usize) -> f64 {
        let unfilled = window.tail_tokens().saturating_sub(held);
        remaining.min(unfilled as f64)
    }

    pub fn window(&self) -> Window {
        self.window
    }

    /// The tokens of window pages missing for `extend` tokens of a prefill and its decode, with `available` free or
    /// evictable; 0 or less if they fit. For a request that runs alone only the prefill counts.
    pub fn deficit(&self, extend: usize, max_new_tokens: usize, available: usize) -> f64 {
        let at_once = self.taken + self.in_pages(extend);
        if !self.has_running && self.taken == 0 {
            return at_once as f64 - available as f64;
        }
        let later = self.for_decode(max_new_tokens) as f64 + self.reserved;
        (at_once + self.window.page_size.get()) as f64 + later - available as f64
    }

    pub fn take(&mut self, extend: usize, max_new_tokens: usize) {
        self.taken += self.in_pages(extend);
        self.reserved += self.for_decode(max_new_tokens) as f64;
    }

    fn in_pages(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.window.page_size.get())
    }

    fn for_decode(&self, max_new_tokens: usize) -> usize {
        let clipped = max_new_tokens.min(CLIP_MAX_NEW_TOKENS);
        clipped.min(self.window.tail_tokens())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::pages::PageSize;

    #[test]
    fn a_long_decode_needs_no_more_than_a_window() {
        let window = Window {
            tokens: 100,
            page_size: PageSize::new(10).expect("it is positive"),
        };
        let none = || std::iter::empty();
        let mut budget = WindowBudget::new(window, none());
        let alone = budget.deficit(95, 5000, 100);
        assert_eq!(alone, 0.0, "the decode does not count");
        assert_eq!(budget.deficit(101, 0, 100), 10.0);
        budget.take(95, 5000);
        // Each of two requests takes 100 tokens for its prefill and 120 for its decode; one page is 10 tokens.
        assert_eq!(budget.deficit(95, 5000, 100 + 120 + 100 + 120 + 10), 0.0);
        assert_eq!(budget.deficit(95, 5000, 100 + 120 + 100 + 120 + 9), 1.0);
        let running = [(50.0, 100), (300.0, 30), (300.0, 500)];
        let budget = WindowBudget::new(window, running.into_iter());
        // The prefill takes 10 tokens and a page; the running requests may still need 20, 90 and 0 tokens.
        assert_eq!(budget.deficit(10, 0, 20 + 90 + 20), 0.0);
        assert_eq!(budget.deficit(10, 0, 20 + 90), 20.0);
    }
}
