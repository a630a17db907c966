//! `PageSize`: the arithmetic between tokens, KV pages and slots.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

use souffleur_base::ids::PageId;

/// Tokens in one page: 1 by default, often 16, 32 or 64. Any positive number works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PageSize(NonZeroU32);

impl PageSize {
    /// One token per page: prefixes are shared to the token.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// Wraps a number of tokens, `None` for zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self(tokens)),
            None => None,
        }
    }

    pub const fn get(self) -> usize {
        self.0.get() as usize
    }

    /// Number of pages that `tokens` fill completely.
    #[inline]
    pub const fn full_pages(self, tokens: usize) -> usize {
        match self.get() {
            // Avoids a division for the default size.
            1 => tokens,
            size => tokens / size,
        }
    }

    /// `tokens` cut to a whole number of pages, in tokens.
    pub const fn floor(self, tokens: usize) -> usize {
        self.tokens_in(self.full_pages(tokens))
    }

    /// Number of pages that hold `tokens`; the last page may be partly filled.
    pub const fn pages_for(self, tokens: usize) -> usize {
        tokens.div_ceil(self.get())
    }

    /// Number of new pages for a sequence that grows from `prefix` to `end` tokens.
    ///
    /// # Panics
    /// In debug builds, if `end < prefix`.
    pub const fn pages_to_extend(self, prefix: usize, end: usize) -> usize {
        debug_assert!(end >= prefix);
        self.pages_for(end) - self.pages_for(prefix)
    }

    /// Number of new pages (0 or 1) for one more token after `committed` tokens.
    pub const fn pages_to_decode(self, committed: usize) -> usize {
        match self.get() {
            // Avoids a division for the default size.
            1 => 1,
            size => committed.is_multiple_of(size) as usize,
        }
    }

    /// Tokens in `pages` pages.
    pub const fn tokens_in(self, pages: usize) -> usize {
        pages * self.get()
    }

    /// KV slots of the sequence positions `positions`, where `pages[i]` is page `i` of the sequence.
    ///
    /// # Panics
    /// The iterator panics if `pages` does not reach to the end of `positions`.
    pub fn slots(self, pages: &[PageId], positions: Range<usize>) -> impl Iterator<Item = usize> {
        let size = self.get();
        positions.map(move |position| pages[position / size].index() * size + position % size)
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
