//! Ownership of KV pages as values: [`Pages`] owns, [`PageRun`] views, [`NodeLock`] holds a lock;
//! [`PageSize`] is the arithmetic between tokens, pages and slots.
//!
//! At any time a page is owned by exactly one of: the free list, a tree node, a sequence's `Pages`, a
//! `Pages` inside a message under way. None of the owning types is `Clone`; an exit path that forgets to
//! hand them back is counted in the [`PoolLedger`] and panics in debug builds.

mod evicted;
mod one_by_one;

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::ids::PageId;
use crate::state::radix_tree::{EdgeBuffer, Ids};
pub use evicted::EvictedPages;
pub use one_by_one::OneByOne;

/// Ids of pages; a few need no allocation.
pub(in crate::state) type PageIds = SmallVec<[PageId; 4]>;

/// Tokens in one page: 1 by default; 16, 32 and 64 are usual, anything positive works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PageSize(NonZeroU32);

impl PageSize {
    /// One token a page: the finest sharing.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// Wraps a number of tokens, `None` for zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self(tokens)),
            None => None,
        }
    }

    /// Tokens in a page.
    pub const fn get(self) -> usize {
        self.0.get() as usize
    }

    /// Number of pages that `tokens` fill completely.
    #[inline]
    pub const fn full_pages(self, tokens: usize) -> usize {
        match self.get() {
            // The usual size, without a division.
            1 => tokens,
            size => tokens / size,
        }
    }

    /// `tokens` cut to a whole number of pages, in tokens.
    pub const fn floor(self, tokens: usize) -> usize {
        self.tokens_in(self.full_pages(tokens))
    }

    /// Number of pages that hold `tokens`, the last one perhaps in part.
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

    /// Number of new pages (0 or 1) for one more token behind `committed` tokens.
    pub const fn pages_to_decode(self, committed: usize) -> usize {
        match self.get() {
            // The usual size, without a division.
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

/// Counts what was dropped instead of handed back, for one pool.
///
/// It is closed when the pool itself is torn down: whatever is dropped after that is no leak.
#[derive(Debug)]
pub struct PoolLedger {
    page_size: PageSize,
    lost_pages: AtomicU64,
    lost_locks: AtomicU64,
    closed: AtomicBool,
}

impl PoolLedger {
    /// Makes the ledger of a pool of such pages.
    pub const fn new(page_size: PageSize) -> Self {
        Self {
            page_size,
            lost_pages: AtomicU64::new(0),
            lost_locks: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Tokens in a page.
    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Returns how many pages were dropped while the pool lived.
    pub fn lost_pages(&self) -> u64 {
        self.lost_pages.load(Ordering::Relaxed)
    }

    /// Returns how many locks were dropped while the pool lived.
    pub fn lost_locks(&self) -> u64 {
        self.lost_locks.load(Ordering::Relaxed)
    }

    /// Declares the pool gone: from now on nothing counts as lost.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn record(&self, counter: &AtomicU64, count: u64, what: &str) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        counter.fetch_add(count, Ordering::Relaxed);
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("{count} {what} dropped without being handed back");
        }
    }
}

/// Owned KV pages, in sequence order. Move-only: whoever holds the value must hand it back.
#[must_use]
pub struct Pages {
    ids: PageIds,
    ledger: Option<Arc<PoolLedger>>,
}

impl Pages {
    /// Returns a value that owns nothing.
    pub fn empty() -> Self {
        Self {
            ids: PageIds::new(),
            ledger: None,
        }
    }

    /// Takes ownership of `ids`. Only the page pool and the tree make pages out of ids.
    pub(in crate::state) fn adopt(ids: PageIds, ledger: &Arc<PoolLedger>) -> Self {
        Self {
            ids,
            ledger: Some(ledger.clone()),
        }
    }

    /// Gives the ids away: the caller now is the owner.
    pub(in crate::state) fn surrender(mut self) -> PageIds {
        std::mem::take(&mut self.ids)
    }

    /// The ids from `at` on, for a caller who then has them surrendered: all of them as they come, some as a copy.
    pub(in crate::state) fn ids_from(&mut self, at: usize) -> PageIds {
        match at {
            0 => std::mem::take(&mut self.ids),
            _ => PageIds::from_slice(&self.ids[at..]),
        }
    }

    /// Gives the ids from `at` on away to a caller who has read them, with the ledger in which they count.
    pub(in crate::state) fn surrender_from(&mut self, at: usize) -> Option<Arc<PoolLedger>> {
        self.ids.truncate(at);
        match at {
            0 => self.ledger.take(),
            _ => self.ledger.clone(),
        }
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True when nothing is owned.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The owned pages, in order.
    pub fn ids(&self) -> &[PageId] {
        &self.ids
    }

    /// Moves all of `other` behind the own pages.
    pub fn append(&mut self, mut other: Self) {
        if self.ledger.is_none() {
            self.ledger = other.ledger.take();
        }
        if self.ids.is_empty() {
            self.ids = std::mem::take(&mut other.ids);
        } else {
            self.ids.append(&mut other.ids);
        }
    }

    /// Keeps the first `at` pages and returns the rest.
    ///
    /// # Panics
    /// If `at > len()`.
    pub fn split_off(&mut self, at: usize) -> Self {
        if at == 0 {
            return self.take();
        }
        let ids = PageIds::from_slice(&self.ids[at..]);
        if ids.is_empty() {
            return Self::empty();
        }
        self.ids.truncate(at);
        let ledger = self.ledger.clone();
        Self { ids, ledger }
    }

    /// To hand them out one at a time.
    pub fn one_by_one(self) -> OneByOne {
        OneByOne::new(self)
    }

    /// Leaves nothing behind and returns everything.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({})", self.ids.len())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        if let Some(ledger) = &self.ledger {
            ledger.record(&ledger.lost_pages, self.ids.len() as u64, "pages");
        }
    }
}

/// A held `lock_ref` on a tree node and all its ancestors. Move-only, one per sequence.
///
/// While it lives, the pages of the locked path are neither evicted nor moved.
#[must_use]
pub struct NodeLock {
    node: Option<u32>,
    ledger: Option<Arc<PoolLedger>>,
}

impl NodeLock {
    /// The lock on the root: it protects nothing and may be dropped.
    pub const fn root() -> Self {
        Self {
            node: None,
            ledger: None,
        }
    }

    /// Records a lock taken on the node with arena index `node`.
    pub(in crate::state) fn on(node: u32, ledger: &Arc<PoolLedger>) -> Self {
        Self {
            node: Some(node),
            ledger: Some(ledger.clone()),
        }
    }

    /// Returns the arena index of the locked node, `None` for the root.
    pub(in crate::state) fn node(&self) -> Option<u32> {
        self.node
    }

    /// Gives the lock up to the tree, which decrements `lock_ref`.
    pub(in crate::state) fn surrender(mut self) -> Option<u32> {
        self.node.take()
    }
}

impl Default for NodeLock {
    fn default() -> Self {
        Self::root()
    }
}

impl fmt::Debug for NodeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "NodeLock({node})"),
            None => f.write_str("NodeLock(root)"),
        }
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        if let (Some(_), Some(ledger)) = (self.node, &self.ledger) {
            ledger.record(&ledger.lost_locks, 1, "node locks");
        }
    }
}

/// A view of cached pages, in sequence order. Valid while the [`NodeLock`] taken with it lives.
#[derive(Clone, Default)]
pub struct PageRun {
    /// One part for each tree node.
    parts: SmallVec<[(Part, Range<u32>); 4]>,
    n_pages: usize,
}

/// What holds the ids of a part.
#[derive(Clone)]
enum Part {
    Ids(Arc<[PageId]>),
    Edge(EdgeBuffer),
}

impl PageRun {
    /// Returns a view of nothing.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Appends `range` of `pages` to the view.
    pub fn push(&mut self, pages: &Arc<[PageId]>, range: Range<u32>) {
        if !range.is_empty() {
            self.n_pages += range.len();
            self.parts.push((Part::Ids(pages.clone()), range));
        }
    }

    /// Appends `range` of a tree edge's ids to the view.
    pub(in crate::state) fn push_edge(&mut self, edge: &EdgeBuffer, range: Range<u32>) {
        if !range.is_empty() {
            self.n_pages += range.len();
            self.parts.push((Part::Edge(edge.clone()), range));
        }
    }

    /// Number of pages in view.
    pub fn len(&self) -> usize {
        self.n_pages
    }

    /// True when nothing is in view.
    pub fn is_empty(&self) -> bool {
        self.n_pages == 0
    }

    /// The pages in order.
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
