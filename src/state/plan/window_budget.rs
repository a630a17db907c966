//! Admission budget of sliding-window pages: every page comes with a window page, which is freed once no query sees
//! it any more.

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
    /// Starts with the running batch's reservations: tokens each may still generate, and tokens of its private pages.
    pub fn new(window: Window, running: impl Iterator<Item = (f64, usize)>) -> Self {
        let mut budget = Self {
            window,
            reserved: 0.0,
            taken: 0,
            has_running: false,
        };
        for (to_come, own) in running {
            budget.reserved += Self::reserve(window, to_come, own);
            budget.has_running = true;
        }
        budget
    }

    /// The window pages that a running request may still need: `to_come` tokens, as far as its private pages with `own`
    /// tokens leave space for them in its window.
    pub fn reserve(window: Window, to_come: f64, own: usize) -> f64 {
        let room = window.tail_tokens().saturating_sub(own);
        to_come.min(room as f64)
    }

    pub fn window(&self) -> Window {
        self.window
    }

    /// Tokens that are missing for `extend` tokens of a prefill and the decode after it, with `available` free or
    /// evictable; 0 or less where it fits. A request that runs alone must be admitted if its prefill fits.
    pub fn deficit(&self, extend: usize, max_new_tokens: usize, available: usize) -> f64 {
        let at_once = self.taken + self.in_pages(extend);
        if !self.has_running && self.taken == 0 {
            return at_once as f64 - available as f64;
        }
        let to_come = self.for_decode(max_new_tokens) as f64 + self.reserved;
        (at_once + self.window.page_size.get()) as f64 + to_come - available as f64
    }

    pub fn take(&mut self, extend: usize, max_new_tokens: usize) {
        self.taken += self.in_pages(extend);
        self.reserved += self.for_decode(max_new_tokens) as f64;
    }

    fn in_pages(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.window.page_size.get())
    }

    fn for_decode(&self, max_new_tokens: usize) -> usize {
        let most = max_new_tokens.min(CLIP_MAX_NEW_TOKENS);
        most.min(self.window.tail_tokens())
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
        assert_eq!(alone, 0.0, "no other sequence gives pages back");
        assert_eq!(budget.deficit(101, 0, 100), 10.0);
        budget.take(95, 5000);
        // 100 at once, 120 to come, as much for the second one, and a page.
        assert_eq!(budget.deficit(95, 5000, 100 + 120 + 100 + 120 + 10), 0.0);
        assert_eq!(budget.deficit(95, 5000, 100 + 120 + 100 + 120 + 9), 1.0);
        let running = [(50.0, 100), (300.0, 30), (300.0, 500)];
        let budget = WindowBudget::new(window, running.into_iter());
        assert_eq!(budget.deficit(10, 0, 20 + 90 + 20), 0.0);
        assert_eq!(budget.deficit(10, 0, 20 + 90), 20.0);
    }
}
