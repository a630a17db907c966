//! Tests of eviction policies that keep queues.

use std::sync::Arc;

use super::*;
use crate::cache::eviction::EvictionPolicy;
use crate::cache::namespace::Namespace;
use crate::cache::radix_tree::Insert;
use crate::pool::pages::{PageIds, PageSize, Pages, PoolLedger};
use souffleur_base::ids::PageId;

/// Second chance: a scanned leaf with hits moves to the end of the queue and loses its hits.
const SECOND_CHANCE: EvictionPolicy =
    EvictionPolicy::with_queues("second-chance", || Box::new(SecondChance));

struct SecondChance;

impl QueuePolicy for SecondChance {
    fn n_queues(&self) -> usize {
        1
    }

    fn admit(&mut self, _entry: PrefixHash) -> usize {
        0
    }

    fn next_queue(&self, _tokens: &[usize]) -> usize {
        0
    }

    fn scan(&mut self, leaf: ScannedLeaf, tokens: &[usize]) -> Scan {
        assert!(leaf.tokens <= tokens[0]);
        match leaf.hits {
            0 => Scan::Evict,
            _ => Scan::Move { queue: 0, hits: 0 },
        }
    }
}

struct Cache {
    tree: RadixTree,
    ledger: Arc<PoolLedger>,
    next_page: u32,
}

impl Cache {
    fn new(policy: EvictionPolicy) -> Self {
        let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
        Self {
            tree: RadixTree::new(PageSize::ONE, policy, ledger.clone()),
            ledger,
            next_page: 1,
        }
    }

    fn insert(&mut self, tokens: &[u32]) {
        let ids = tokens.iter().map(|_| {
            self.next_page += 1;
            PageId::new(self.next_page)
        });
        let ids: Vec<PageId> = ids.collect();
        let inserted = self.tree.insert(Insert {
            namespace: &Namespace::default(),
            tokens,
            owner: None,
            pages: Pages::adopt(PageIds::from_slice(&ids), &self.ledger),
            priority: 0,
            inserted_tokens: 0,
        });
        self.ledger.close();
        drop((inserted.duplicates, inserted.rest));
        self.check();
    }

    fn insert_all(&mut self, keys: &[&[u32]]) {
        keys.iter().for_each(|key| self.insert(key));
    }

    fn evict(&mut self) -> usize {
        let evicted = self.tree.evict(1);
        let n_tokens = evicted.n_tokens();
        drop(evicted);
        self.check();
        n_tokens
    }

    fn cached(&self, keys: &[&[u32]]) -> Vec<usize> {
        let namespace = Namespace::default();
        let cached = keys.iter().map(|key| self.tree.peek(&namespace, key));
        cached.collect()
    }

    fn check(&self) {
        assert_eq!(self.tree.check_integrity(), Ok(()));
    }
}

const A: &[u32] = &[1, 2, 3];
const B: &[u32] = &[4, 5];
const C: &[u32] = &[6, 7, 8, 9];

#[test]
fn a_leaf_with_hits_is_moved_when_it_is_scanned() {
    let mut cache = Cache::new(SECOND_CHANCE);
    cache.insert_all(&[A, B, C, A]);
    assert_eq!(
        (cache.evict(), cache.cached(&[A, B, C])),
        (2, vec![3, 0, 4])
    );
    // A has no hits left, and C precedes it in the queue.
    assert_eq!(
        (cache.evict(), cache.cached(&[A, B, C])),
        (4, vec![3, 0, 0])
    );
    assert_eq!((cache.evict(), cache.evict()), (3, 0));
}

#[test]
fn halves_of_a_split_keep_place_and_hits() {
    let mut cache = Cache::new(SECOND_CHANCE);
    cache.insert_all(&[A, B, A]);
    cache.tree.match_prefix(&Namespace::default(), &A[..1]);
    cache.check();
    // The lower half of A has a hit and moves, so B is evicted first. Later the upper half, then a leaf, moves as well.
    assert_eq!((cache.evict(), cache.cached(&[A, B])), (2, vec![3, 0]));
    cache.insert(C);
    assert_eq!((cache.evict(), cache.cached(&[A, C])), (2, vec![1, 4]));
    assert_eq!((cache.evict(), cache.cached(&[A, C])), (4, vec![1, 0]));
    assert_eq!((cache.evict(), cache.evict()), (1, 0));
}

#[test]
fn locked_nodes_and_parents_keep_their_place() {
    let mut cache = Cache::new(SECOND_CHANCE);
    let namespace = Namespace::default();
    let longer = [A, &[10]].concat();
    cache.insert(A);
    let lock = cache.tree.lock_prefix(&namespace, A).lock;
    cache.insert_all(&[B, &longer, C]);
    assert_eq!(
        (cache.evict(), cache.cached(&[&longer, B])),
        (2, vec![4, 0])
    );
    assert_eq!(
        (cache.evict(), cache.cached(&[&longer, C])),
        (1, vec![3, 4])
    );
    assert_eq!((cache.evict(), cache.evict()), (4, 0));
    cache.insert_all(&[B, C]);
    cache.tree.unlock(lock);
    cache.check();
    // The longer key counts as a hit of A, so A moves to the end.
    assert_eq!([cache.evict(), cache.evict(), cache.evict()], [2, 4, 3]);
}

#[test]
fn a_policy_takes_over_the_nodes_of_another_in_order_of_creation() {
    let mut cache = Cache::new(EvictionPolicy::default());
    let longer = [B, &[10]].concat();
    cache.insert_all(&[A, B, C, &longer, A]);
    cache.tree.match_prefix(&Namespace::default(), &C[..1]);
    cache.tree.set_eviction_policy(SECOND_CHANCE);
    cache.check();
    // A and B have hits, the halves of C have none. The lower half is the older one.
    assert_eq!(
        (cache.evict(), cache.cached(&[C, &longer])),
        (3, vec![1, 3])
    );
    assert_eq!(
        (cache.evict(), cache.cached(&[C, &longer])),
        (1, vec![1, 2])
    );
    assert_eq!(
        (cache.evict(), cache.cached(&[C, &longer])),
        (1, vec![0, 2])
    );
    assert_eq!([cache.evict(), cache.evict(), cache.evict()], [3, 2, 0]);
    cache.tree.set_eviction_policy(EvictionPolicy::default());
    cache.insert(A);
    assert_eq!((cache.tree.clear().len(), cache.evict()), (3, 0));
    cache.check();
}

#[test]
fn a_cleared_cache_starts_with_empty_queues() {
    let mut cache = Cache::new(SECOND_CHANCE);
    cache.insert_all(&[A, B]);
    drop(cache.tree.clear());
    cache.insert_all(&[C, A]);
    assert_eq!([cache.evict(), cache.evict(), cache.evict()], [4, 3, 0]);
}
