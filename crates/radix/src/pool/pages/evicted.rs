//! Evicted pages in transit from the tree to the pool.

use std::fmt;

use super::edge::{Edge, Ids};
use super::{PageIds, PageSize, Pages};
use souffleur_base::ids::PageId;

/// Owned evicted pages, in order of eviction. Their ids stay in the edges' buffers. Move-only, as [`Pages`].
#[must_use]
pub struct EvictedPages {
    /// Empty if nothing was evicted.
    first: Edge,
    more: Option<Box<MoreEdges>>,
}

#[derive(Default)]
struct MoreEdges {
    edges: Vec<Edge>,
}

impl EvictedPages {
    pub const fn empty() -> Self {
        Self {
            first: Edge::empty(),
            more: None,
        }
    }

    #[inline]
    pub(crate) const fn of(first: Edge) -> Self {
        Self { first, more: None }
    }

    pub(crate) fn push(&mut self, edge: Edge) {
        let more = self.more.get_or_insert_default();
        more.edges.push(edge);
    }

    /// Transfers the ids to `take`, one edge at a time.
    pub(crate) fn surrender(mut self, mut take: impl FnMut(Ids<'_>)) {
        let page_size = self.page_size();
        take(self.first.pages(page_size));
        self.first = Edge::empty();
        let more = self.more.take().map(|more| more.edges);
        for edge in more.into_iter().flatten() {
            take(edge.pages(page_size));
        }
    }

    fn edges(&self) -> impl Iterator<Item = &Edge> {
        let more = self.more.iter().flat_map(|more| &more.edges);
        let first = (!self.first.is_empty()).then_some(&self.first);
        first.into_iter().chain(more)
    }

    fn page_size(&self) -> PageSize {
        let ledger = self.first.ledger();
        ledger.map_or(PageSize::ONE, |ledger| ledger.page_size())
    }

    pub fn len(&self) -> usize {
        self.page_size().full_pages(self.n_tokens())
    }

    pub fn n_tokens(&self) -> usize {
        self.edges().map(Edge::len).sum()
    }

    /// Number of tree nodes that the pages were in.
    pub fn n_nodes(&self) -> usize {
        self.edges().count()
    }

    pub const fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        let page_size = self.page_size();
        self.edges().flat_map(move |edge| edge.pages(page_size))
    }
}

impl Default for EvictedPages {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<EvictedPages> for Pages {
    fn from(evicted: EvictedPages) -> Self {
        let ledger = evicted.first.ledger().cloned();
        let mut ids = PageIds::with_capacity(evicted.len());
        evicted.surrender(|part| ids.extend(part));
        Self { ids, ledger }
    }
}

impl fmt::Debug for EvictedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EvictedPages({})", self.len())
    }
}

impl Drop for EvictedPages {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        if let Some(ledger) = self.first.ledger() {
            ledger.lose_pages(self.len());
        }
    }
}
