//! `PageRun`: a view of cached pages, which a match returns without their ownership.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::edge::{EdgeBuffer, Ids};
use souffleur_base::ids::PageId;

/// A view of cached pages, in sequence order. Valid while the [`NodeLock`](super::NodeLock) taken with it lives.
#[derive(Clone, Default)]
pub struct PageRun {
    /// One part for each tree node.
    parts: SmallVec<[(Part, Range<u32>); 4]>,
    n_pages: usize,
}

#[derive(Clone)]
enum Part {
    Ids(Arc<[PageId]>),
    Edge(EdgeBuffer),
}

impl PageRun {
    pub fn empty() -> Self {
        Self::default()
    }

    pub fn push(&mut self, pages: &Arc<[PageId]>, range: Range<u32>) {
        if !range.is_empty() {
            self.n_pages += range.len();
            self.parts.push((Part::Ids(pages.clone()), range));
        }
    }

    pub(crate) fn push_edge(&mut self, edge: &EdgeBuffer, range: Range<u32>) {
        if !range.is_empty() {
            self.n_pages += range.len();
            self.parts.push((Part::Edge(edge.clone()), range));
        }
    }

    pub fn len(&self) -> usize {
        self.n_pages
    }

    pub fn is_empty(&self) -> bool {
        self.n_pages == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.parts.iter().flat_map(|(part, range)| match part {
            Part::Ids(ids) => Ids::Ids(ids[range.start as usize..range.end as usize].iter()),
            Part::Edge(edge) => edge.ids(range.clone()),
        })
    }
}

impl fmt::Debug for PageRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PageRun({} pages in {} parts)",
            self.n_pages,
            self.parts.len()
        )
    }
}
