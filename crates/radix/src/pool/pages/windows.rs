//! Pages of sliding-window layers, which have ids separate from those of other pages.

use super::{OneByOne, PageRun, PageSize, Pages};
use souffleur_base::ids::PageId;

/// Owned window pages, in sequence order. Move-only like [`Pages`]; the window pool takes back only this type.
#[derive(Debug, Default)]
#[must_use]
pub struct WindowPages(Pages);

impl WindowPages {
    pub fn empty() -> Self {
        Self::default()
    }

    pub(crate) fn of(pages: Pages) -> Self {
        Self(pages)
    }

    pub(crate) fn into_pages(self) -> Pages {
        self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn ids(&self) -> &[PageId] {
        self.0.ids()
    }

    pub fn append(&mut self, other: Self) {
        self.0.append(other.0);
    }

    /// Keeps the first `at` pages and returns the rest.
    ///
    /// # Panics
    /// If `at > len()`.
    pub fn split_off(&mut self, at: usize) -> Self {
        Self(self.0.split_off(at))
    }

    pub fn one_by_one(self) -> OneByOne {
        self.0.one_by_one()
    }
}

/// The window pages that a sequence owns, from page index `first` on.
#[derive(Debug, Default)]
pub struct RowWindows {
    /// Index of the first page. Earlier ones belong to the cache, or are returned.
    pub first: usize,
    pub pages: WindowPages,
}

impl RowWindows {
    /// For a sequence with `first` cached pages, which owns no window pages yet.
    pub fn starting_at(first: usize) -> Self {
        Self {
            first,
            pages: WindowPages::empty(),
        }
    }

    /// Takes out the pages whose index is below `end`.
    pub fn take_below(&mut self, end: usize) -> WindowPages {
        let n = end.saturating_sub(self.first).min(self.pages.len());
        self.first += n;
        WindowPages(self.pages.0.take_front(n))
    }

    /// Takes out the pages whose index is `start` or more.
    pub fn take_from(&mut self, start: usize) -> WindowPages {
        let at = start.saturating_sub(self.first).min(self.pages.len());
        self.pages.split_off(at)
    }

    pub fn take_next(&mut self, pages: &mut OneByOne) -> Option<PageId> {
        pages.next_to(&mut self.pages.0)
    }
}

/// Cached window pages of a sequence, from page index `from` on. Valid while the lock taken with them lives.
#[derive(Clone, Debug, Default)]
pub struct WindowRun {
    /// Index of the first page.
    pub from: usize,
    pub pages: PageRun,
}

/// The window of sliding-window layers, and the size of their pages. A query "sees" the tokens in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens that a query sees, including its own.
    pub tokens: usize,
    pub page_size: PageSize,
}

impl Window {
    /// The first position that the query at `position`, and those after it, see.
    fn first_seen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.tokens)
    }

    /// Pages that no query at or after `position` sees: page `j` if `(j + 1) * page_size <= position - tokens + 1`.
    pub fn passed_pages(&self, position: usize) -> usize {
        self.page_size.full_pages(self.first_seen(position))
    }

    /// Pages that no query at or after `position` sees, nor a sequence resuming after the last whole page before it.
    pub fn passed_by_end(&self, position: usize) -> usize {
        let end = self.page_size.floor(position);
        self.page_size.full_pages(self.start_of(end))
    }

    /// Start of the pages that a sequence resuming after `end` tokens sees, page-aligned; `end` if it sees none.
    pub fn start_of(&self, end: usize) -> usize {
        self.page_size.floor(self.first_seen(end)).min(end)
    }

    /// The start of the pages that a prefix of `end` tokens keeps: those that a sequence resuming after it sees, and
    /// one more, because a repeated prompt resumes one page before its end.
    pub fn tail_of(&self, end: usize) -> usize {
        let seen = self.start_of(end);
        seen.saturating_sub(self.page_size.get())
    }

    /// Upper bound on the tokens in the pages that a prefix keeps.
    pub fn tail_tokens(&self) -> usize {
        self.tokens + 2 * self.page_size.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_passed_when_no_later_query_sees_a_token_of_it() {
        for (tokens, page) in [(1, 1), (5, 1), (4, 4), (5, 4), (7, 4), (24, 16)] {
            let page_size = PageSize::new(page).expect("the page size is positive");
            let window = Window { tokens, page_size };
            for position in 0..100_usize {
                let sees = |key: usize| key + tokens > position && key <= position;
                let page = page as usize;
                let first = (0..=position)
                    .find(|key| sees(*key))
                    .expect("a query sees itself");
                assert_eq!(window.passed_pages(position), first / page);
                let needed = (0..position).find(|key| sees(*key));
                let start = needed.map_or(position, |key| key / page * page);
                if position % page == 0 {
                    assert_eq!(window.start_of(position), start, "{window:?} {position}");
                    assert_eq!(window.tail_of(position), start.saturating_sub(page));
                }
            }
        }
    }
}
