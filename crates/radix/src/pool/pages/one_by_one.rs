//! `OneByOne`: owned KV pages that go to other owners one at a time.

use super::Pages;
use souffleur_base::ids::PageId;

/// Owned pages that go to other owners one at a time, in order. The remaining pages must not be dropped.
#[derive(Debug)]
#[must_use]
pub struct OneByOne {
    /// The first `n_given` pages belong to other owners.
    pages: Pages,
    n_given: usize,
}

impl OneByOne {
    pub(super) fn new(pages: Pages) -> Self {
        Self { pages, n_given: 0 }
    }

    /// Appends the next page to `owner`, and returns its id; `None` when all are handed out.
    pub fn next_to(&mut self, owner: &mut Pages) -> Option<PageId> {
        let page = *self.pages.ids.get(self.n_given)?;
        self.n_given += 1;
        if owner.ledger.is_none() {
            owner.ledger.clone_from(&self.pages.ledger);
        }
        owner.ids.push(page);
        Some(page)
    }
}

impl Drop for OneByOne {
    fn drop(&mut self) {
        self.pages.ids.drain(..self.n_given);
    }
}
