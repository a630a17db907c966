//! The interface of the benchmark to either radix tree: this engine's or kv-index.

use std::sync::Arc;

use kv_index::TokenTree;
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::cache::radix_tree::{Insert, RadixTree};
use souffleur::state::pool::page_pool::PagePool;
use souffleur::state::pool::pages::{EvictedPages, PageSize, Pages, PoolLedger};

/// A radix tree that the benchmark times. Pages are allocated before an operation is timed and freed after it.
pub trait Subject {
    /// Pages for an insert, allocated before the clock starts.
    type NewPages;
    /// Pages that an insert did not use, freed after the clock stops.
    type Unused;
    /// Evicted pages, freed after the clock stops.
    type Evicted;

    fn allocate(&mut self, n_tokens: usize) -> Self::NewPages;
    fn insert(&mut self, key: &Arc<[u32]>, pages: Self::NewPages) -> Self::Unused;
    fn matched(&mut self, key: &[u32]) -> usize;
    /// Splits the node in which `key` ends, after the last token of `key`.
    fn split(&mut self, key: &[u32]);
    /// Evicts the least recently used leaves.
    fn evict(&mut self, n_tokens: usize) -> Self::Evicted;
    fn put_back(&mut self, unused: Self::Unused);
    fn free(&mut self, evicted: Self::Evicted);
    fn cached_tokens(&self) -> usize;

    /// An insert that is not timed.
    fn add(&mut self, key: &Arc<[u32]>) {
        let pages = self.allocate(key.len());
        let unused = self.insert(key, pages);
        self.put_back(unused);
    }

    /// An eviction that is not timed.
    fn remove(&mut self, n_tokens: usize) {
        let evicted = self.evict(n_tokens);
        self.free(evicted);
    }
}

/// This engine's tree, with pages of one token and LRU eviction.
pub struct Ours {
    pub tree: RadixTree,
    pub namespace: Namespace,
    pool: PagePool,
}

impl Ours {
    pub fn new(capacity_tokens: usize) -> Self {
        let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
        let policy = EvictionPolicy::default();
        Self {
            tree: RadixTree::new(PageSize::ONE, policy, ledger.clone()),
            namespace: Namespace::default(),
            pool: PagePool::new(capacity_tokens as u32, PageSize::ONE, ledger),
        }
    }
}

impl Subject for Ours {
    type NewPages = Pages;
    type Unused = [Pages; 2];
    type Evicted = EvictedPages;

    fn allocate(&mut self, n_tokens: usize) -> Pages {
        self.pool.alloc(n_tokens).expect("the pool is large enough")
    }

    fn insert(&mut self, key: &Arc<[u32]>, pages: Pages) -> [Pages; 2] {
        let inserted = self.tree.insert(Insert {
            namespace: &self.namespace,
            tokens: key,
            owner: Some(key),
            pages,
            priority: 0,
            inserted_tokens: 0,
        });
        [inserted.duplicates, inserted.rest]
    }

    fn matched(&mut self, key: &[u32]) -> usize {
        self.tree.match_prefix(&self.namespace, key).pages().len()
    }

    fn split(&mut self, key: &[u32]) {
        self.tree.touch_prefix(&self.namespace, key);
    }

    fn evict(&mut self, n_tokens: usize) -> EvictedPages {
        self.tree.evict(n_tokens)
    }

    fn put_back(&mut self, unused: [Pages; 2]) {
        unused.into_iter().for_each(|pages| self.pool.free(pages));
    }

    fn free(&mut self, evicted: EvictedPages) {
        self.pool.free_evicted(evicted);
    }

    fn cached_tokens(&self) -> usize {
        self.tree.total_size()
    }
}

/// smg's tree, with pages of sixteen tokens and one tenant.
pub struct KvIndex {
    tree: TokenTree,
    tenant: Arc<str>,
}

impl KvIndex {
    pub fn new() -> Self {
        Self {
            tree: TokenTree::new(),
            tenant: Arc::from("worker"),
        }
    }
}

impl Subject for KvIndex {
    type NewPages = ();
    type Unused = ();
    type Evicted = ();

    fn allocate(&mut self, _: usize) {}

    fn insert(&mut self, key: &Arc<[u32]>, (): ()) {
        self.tree.insert_tokens(key, &self.tenant);
    }

    fn matched(&mut self, key: &[u32]) -> usize {
        self.tree.match_prefix_with_counts(key).matched_token_count
    }

    /// A match does not split nodes of this tree; an insert of the prefix does.
    fn split(&mut self, key: &[u32]) {
        self.tree.insert_tokens(key, &self.tenant);
    }

    fn evict(&mut self, n_tokens: usize) {
        let kept = self.cached_tokens().saturating_sub(n_tokens);
        self.tree.evict_tenant(&self.tenant, kept);
    }

    fn put_back(&mut self, (): ()) {}

    fn free(&mut self, (): ()) {}

    fn cached_tokens(&self) -> usize {
        self.tree.tenant_token_size(&self.tenant)
    }
}
