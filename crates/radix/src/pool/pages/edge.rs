//! Buffers with the tokens and page ids of the tree's edges, shared by the nodes of a path and by views.
//!
//! A split copies nothing: both halves use the buffer. The buffer is shrunk when more than an eighth of it is unused.

use std::ops::Range;
use std::sync::Arc;

use super::{PageIds, PageRun, PageSize, Pages, PoolLedger};
use souffleur_base::ids::PageId;

/// Edges with more tokens keep the given list of pages instead of copying it.
const LONG_TOKENS: usize = 512;
/// At most 1/`MAX_WASTE` of a buffer's tokens may be unused.
const MAX_WASTE: usize = 8;

/// The initial content of a short [`EdgeBuffer`].
static ZEROS: [u32; 2 * LONG_TOKENS] = [0; 2 * LONG_TOKENS];

/// Tokens and the pages that hold their K/V.
#[derive(Clone, Debug)]
pub(crate) enum EdgeBuffer {
    /// The tokens, then the ids of their pages: one allocation for the many edges that are short.
    Short(Arc<[u32]>),
    /// Tokens and page ids separately; `None` for an empty edge.
    Long(Option<Arc<LongEdge>>),
}

#[derive(Debug)]
pub(crate) struct LongEdge {
    /// An array with the tokens, possibly a request's.
    array: Arc<[u32]>,
    /// The edge's range of the array.
    range: Range<u32>,
    pages: PageIds,
}

impl LongEdge {
    fn tokens(&self) -> &[u32] {
        &self.array[self.range.start as usize..self.range.end as usize]
    }
}

#[derive(Clone, Copy)]
pub(crate) struct EdgeTokens<'a> {
    pub tokens: &'a [u32],
    /// An array that holds `tokens` from this index on, and that the edge may keep.
    pub array: Option<(&'a Arc<[u32]>, usize)>,
}

impl EdgeTokens<'_> {
    /// An array with little more than the tokens, and their index in it.
    fn to_array(self) -> (Arc<[u32]>, usize) {
        let n_tokens = self.tokens.len();
        match self.array {
            Some((array, at)) if (array.len() - n_tokens) * MAX_WASTE <= array.len() => {
                debug_assert_eq!(&array[at..at + n_tokens], self.tokens);
                (array.clone(), at)
            }
            _ => (Arc::from(self.tokens), 0),
        }
    }
}

impl EdgeBuffer {
    #[inline(always)]
    fn short(tokens: &[u32], pages: &[PageId]) -> Self {
        let mut buffer: Arc<[u32]> = Arc::from(&ZEROS[..tokens.len() + pages.len()]);
        let items = Arc::get_mut(&mut buffer).expect("the buffer is new");
        let (first, second) = items.split_at_mut(tokens.len());
        first.copy_from_slice(tokens);
        for (item, page) in second.iter_mut().zip(pages) {
            *item = page.get();
        }
        Self::Short(buffer)
    }

    #[inline(never)]
    fn long(tokens: EdgeTokens<'_>, mut pages: PageIds) -> Self {
        if pages.capacity() > pages.len() + pages.len() / MAX_WASTE {
            pages.shrink_to_fit();
        }
        let (array, at) = tokens.to_array();
        let range = at as u32..(at + tokens.tokens.len()) as u32;
        Self::Long(Some(Arc::new(LongEdge {
            array,
            range,
            pages,
        })))
    }

    /// The tokens; for a short edge followed by the ids of its pages.
    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Self::Short(items) => items,
            Self::Long(edge) => edge.as_ref().map_or(&[], |edge| edge.tokens()),
        }
    }

    fn n_tokens(&self, page_size: PageSize) -> usize {
        match self {
            Self::Short(items) => items.len() / (page_size.get() + 1) * page_size.get(),
            Self::Long(_) => self.tokens().len(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Short(a), Self::Short(b)) => Arc::ptr_eq(a, b),
            (Self::Long(Some(a)), Self::Long(Some(b))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The page ids in `range`: indices into a long edge's pages, or into all items of a short edge.
    pub(crate) fn ids(&self, range: Range<u32>) -> Ids<'_> {
        let range = range.start as usize..range.end as usize;
        match self {
            Self::Short(items) => Ids::Numbers(items[range].iter()),
            Self::Long(Some(edge)) => Ids::Ids(edge.pages[range].iter()),
            Self::Long(None) => Ids::Numbers([].iter()),
        }
    }

    fn page_range(&self, tokens: Range<u32>, page_size: PageSize) -> Range<u32> {
        let first = match self {
            Self::Short(_) => self.n_tokens(page_size) as u32,
            Self::Long(_) => 0,
        };
        let size = page_size.get() as u32;
        first + tokens.start / size..first + tokens.end / size
    }
}

#[derive(Clone)]
pub(crate) enum Ids<'a> {
    Numbers(std::slice::Iter<'a, u32>),
    Ids(std::slice::Iter<'a, PageId>),
}

impl Iterator for Ids<'_> {
    type Item = PageId;

    fn next(&mut self) -> Option<PageId> {
        match self {
            Self::Numbers(numbers) => numbers.next().copied().map(PageId::new),
            Self::Ids(ids) => ids.next().copied(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Numbers(numbers) => numbers.size_hint(),
            Self::Ids(ids) => ids.size_hint(),
        }
    }
}

/// A part of a buffer, in whole pages. The edges of consecutive nodes on a path divide a buffer from its start to where
/// the rest was evicted.
#[derive(Debug)]
pub(crate) struct Edge {
    buffer: EdgeBuffer,
    /// The edge's range of the buffer, in tokens.
    start: u32,
    end: u32,
    /// The ledger that counts the pages, if there are any.
    ledger: Option<Arc<PoolLedger>>,
}

impl Edge {
    pub(crate) const fn empty() -> Self {
        Self {
            buffer: EdgeBuffer::Long(None),
            start: 0,
            end: 0,
            ledger: None,
        }
    }

    /// Takes the pages from page `at` on, one for each page of `tokens`.
    ///
    /// # Panics
    /// If the number of pages is different, or if there are more than `u32::MAX` tokens.
    #[inline(always)]
    pub(crate) fn new(
        edge: EdgeTokens<'_>,
        pages: &mut Pages,
        at: usize,
        page_size: PageSize,
    ) -> Self {
        let tokens = edge.tokens;
        let n_pages = page_size.full_pages(tokens.len());
        let n_given = pages.len() - at;
        assert!(
            n_given == n_pages,
            "the key needs {n_pages} pages, but {n_given} were given"
        );
        let end = u32::try_from(tokens.len()).expect("an edge must have fewer than 2^32 tokens");
        let buffer = if tokens.len() > LONG_TOKENS {
            EdgeBuffer::long(edge, pages.ids_from(at))
        } else {
            EdgeBuffer::short(tokens, &pages.ids()[at..])
        };
        Self {
            buffer,
            start: 0,
            end,
            ledger: pages.surrender_from(at),
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.buffer.tokens()[self.start as usize..self.end as usize]
    }

    /// The buffer and the edge's range of its tokens.
    pub(crate) fn part(&self) -> (EdgeBuffer, Range<u32>) {
        (self.buffer.clone(), self.start..self.end)
    }

    pub(crate) const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.end == self.start
    }

    pub(crate) fn ledger(&self) -> Option<&Arc<PoolLedger>> {
        self.ledger.as_ref()
    }

    pub(crate) fn pages(&self, page_size: PageSize) -> Ids<'_> {
        let range = self.buffer.page_range(self.start..self.end, page_size);
        self.buffer.ids(range)
    }

    /// Appends the pages, without the first `skip`, to a view.
    pub(crate) fn push_pages(&self, run: &mut PageRun, skip: usize, page_size: PageSize) {
        let range = self.buffer.page_range(self.start..self.end, page_size);
        run.push_edge(&self.buffer, range.start + skip as u32..range.end);
    }

    /// Keeps everything from token `at` on and returns the part before it.
    pub(crate) fn cut_front(&mut self, at: usize) -> Self {
        let middle = self.start + at as u32;
        let front = Self {
            buffer: self.buffer.clone(),
            start: self.start,
            end: middle,
            ledger: self.ledger.clone(),
        };
        self.start = middle;
        front
    }

    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.buffer.is_same(&other.buffer)
    }

    /// A buffer without the unused tokens after this edge, if that is worth the copy.
    pub(crate) fn cut_buffer(&self, page_size: PageSize) -> Option<EdgeBuffer> {
        let (used, held) = (self.end as usize, self.buffer.n_tokens(page_size));
        if (held - used) * MAX_WASTE <= held {
            return None;
        }
        let tokens = &self.buffer.tokens()[..used];
        let pages = self.buffer.page_range(0..self.end, page_size);
        let ids: PageIds = self.buffer.ids(pages).collect();
        Some(if used > LONG_TOKENS {
            let array = None;
            EdgeBuffer::long(EdgeTokens { tokens, array }, ids)
        } else {
            EdgeBuffer::short(tokens, &ids)
        })
    }

    /// Switches to a buffer with the same content at the same indices.
    pub(crate) fn move_to(&mut self, buffer: EdgeBuffer) {
        self.buffer = buffer;
    }
}
