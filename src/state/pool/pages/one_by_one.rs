//! Pages that are handed out one at a time.

use super::Pages;
use crate::ids::PageId;

/// Owned pages, of which one after the other goes to another owner, in their order. Move-only, as [`Pages`]: what is not
/// handed out is lost.
#[derive(Debug)]
#[must_use]
pub struct OneByOne {
    /// The first `n_given` of them are others' by now.
    pages: Pages,
    n_given: usize,
}

impl OneByOne {
    pub(super) fn new(pages: Pages) -> Self {
        Self { pages, n_given: 0 }
    }

    /// Moves the next page behind those of `owner`, and says which it is; `None` when all are handed out.
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
