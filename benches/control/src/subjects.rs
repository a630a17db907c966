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
    /// The arguments of an insert in addition to its key.
    type Given;
    /// Leftovers of an insert, which are dropped after the clock stops.
    type Left;
    /// Leftovers of an eviction, which are dropped after the clock stops.
    type Evicted;

    fn given(&mut self, n_tokens: usize) -> Self::Given;
    fn insert(&mut self, key: &Arc<[u32]>, given: Self::Given) -> Self::Left;
    fn matched(&mut self, key: &[u32]) -> usize;
    /// Splits the node that `key` ends in at the end of `key`.
    fn split(&mut self, key: &[u32]);
    /// Evicts the least recently used leaves.
    fn evict(&mut self, n_tokens: usize) -> Self::Evicted;
    fn put_away(&mut self, left: Self::Left);
    fn free(&mut self, evicted: Self::Evicted);
    fn cached_tokens(&self) -> usize;

    /// An insert that is not timed.
    fn add(&mut self, key: &Arc<[u32]>) {
        let given = self.given(key.len());
        let left = self.insert(key, given);
        self.put_away(left);
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
    type Given = Pages;
    type Left = [Pages; 2];
    type Evicted = EvictedPages;

    fn given(&mut self, n_tokens: usize) -> Pages {
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

    fn put_away(&mut self, left: [Pages; 2]) {
        left.into_iter().for_each(|pages| self.pool.free(pages));
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
    type Given = ();
    type Left = ();
    type Evicted = ();

    fn given(&mut self, _: usize) {}

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

    fn put_away(&mut self, (): ()) {}

    fn free(&mut self, (): ()) {}

    fn cached_tokens(&self) -> usize {
        self.tree.tenant_token_size(&self.tenant)
    }
}
