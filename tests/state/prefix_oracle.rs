//! Compares the diagnosis of cache misses with a naive one that remembers every prefix ever published.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use souffleur_base::ids::{RequestId, StepId};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::{
    AdmittedPrompt, Cause, HistoryLimits, PrefixEvent, PrefixHistory, StoredPart,
};
use souffleur_state::cache::radix_tree::{Insert, RadixTree};
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{PageSize, PoolLedger};

use crate::deterministic_runner;

/// Only two token values, so that prefixes often coincide and diverge.
const LETTERS: u32 = 2;
/// Extra keys and salts.
const SPACES: [(Option<&str>, Option<&str>); 4] = [
    (None, None),
    (Some("a"), None),
    (Some("b"), None),
    (Some("a"), Some("salt")),
];

fn namespace(space: usize) -> Namespace {
    let (extra_key, salt) = SPACES[space];
    Namespace::new(extra_key, salt)
}

#[derive(Clone, Debug)]
enum Op {
    Publish { space: usize, tokens: Vec<u32> },
    Admit { space: usize, tokens: Vec<u32> },
    Evict { tokens: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let key = || (0..SPACES.len(), prop::collection::vec(0..LETTERS, 1..24));
    prop_oneof![
        3 => key().prop_map(|(space, tokens)| Op::Publish { space, tokens }),
        3 => key().prop_map(|(space, tokens)| Op::Admit { space, tokens }),
        2 => (1..30usize).prop_map(|tokens| Op::Evict { tokens }),
    ]
}

struct Checker {
    page: usize,
    pool: PagePool,
    tree: RadixTree,
    history: PrefixHistory,
    published: HashSet<(usize, Vec<u32>)>,
    step: u64,
}

impl Checker {
    fn new(page_size: u32, policy: &str) -> Self {
        let page_size = PageSize::new(page_size).expect("a page size");
        let ledger = Arc::new(PoolLedger::new(page_size));
        let policy = EvictionPolicy::from_name(policy).expect("a policy");
        Self {
            page: page_size.get(),
            pool: PagePool::new(4096, page_size, ledger.clone()),
            tree: RadixTree::new(page_size, policy, ledger).with_diagnostics(),
            history: PrefixHistory::new(HistoryLimits {
                page_size,
                max_requests: 4,
                max_evicted_pages: usize::MAX,
            }),
            published: HashSet::new(),
            step: 0,
        }
    }

    fn run(&mut self, op: &Op) {
        self.step += 1;
        match op {
            Op::Publish { space, tokens } => self.publish(*space, tokens),
            Op::Admit { space, tokens } => self.admit(*space, tokens),
            Op::Evict { tokens } => self.evict(*tokens),
        }
        assert_eq!(self.tree.check_integrity(), Ok(()));
    }

    fn publish(&mut self, space: usize, tokens: &[u32]) {
        let pages = self.pool.alloc(tokens.len().div_ceil(self.page));
        let inserted = self.tree.insert(Insert {
            namespace: &namespace(space),
            tokens,
            owner: None,
            pages: pages.expect("the pool is large"),
            priority: 0,
            inserted_tokens: 0,
        });
        self.pool.free(inserted.duplicates);
        self.pool.free(inserted.rest);
        for end in (self.page..=tokens.len()).step_by(self.page) {
            self.published.insert((space, tokens[..end].to_vec()));
        }
    }

    fn evict(&mut self, tokens: usize) {
        let evicted = self.tree.evict(tokens);
        let edges = self.tree.take_evicted_edges();
        assert_eq!(edges.len(), evicted.n_nodes());
        self.pool.free_evicted(evicted);
        let step = StepId::new(self.step);
        self.history
            .take(PrefixEvent::Evicted { step, edges }, self.step as f64);
    }

    fn admit(&mut self, space: usize, tokens: &[u32]) {
        let namespace = namespace(space);
        let limit = tokens.len() - 1;
        let locked = self.tree.lock_prefix(&namespace, &tokens[..limit]);
        let departure = self.tree.departure(
            &namespace,
            &locked.lock,
            tokens,
            (locked.tokens, locked.kv_tokens),
            limit,
        );
        self.tree.unlock(locked.lock);
        let admitted = AdmittedPrompt {
            rid: RequestId::new("r"),
            namespace,
            prompt: Arc::from(tokens),
            step: StepId::new(self.step),
            departure: *departure.expect("the tree diagnoses"),
            stored: StoredPart::default(),
        };
        let report = self
            .history
            .take(PrefixEvent::Left(Box::new(admitted)), self.step as f64);
        let report = report.expect("an admission leads to a report").clone();

        let missing = locked.tokens + self.page;
        let is_missing = missing <= limit;
        let was_cached = |end: usize| self.published.contains(&(space, tokens[..end].to_vec()));
        let is_evicted = is_missing && was_cached(missing);
        assert_eq!(report.cause == Cause::Evicted, is_evicted, "{report:?}");
        if let Some(evicted) = &report.evicted {
            let ends = (missing..=limit).step_by(self.page);
            let until = ends.take_while(|end| was_cached(*end)).last();
            assert_eq!(Some(evicted.cached_until), until, "{report:?}");
        }
        let is_unsalted = |space: usize| SPACES[space].1.is_none();
        let others = (0..SPACES.len()).filter(|other| *other != space);
        let others = others.filter(|other| is_unsalted(space) && is_unsalted(*other));
        let longest = others.map(|other| self.tree.peek(&self::namespace(other), &tokens[..limit]));
        let longest = longest.max().filter(|_| is_missing);
        let elsewhere = report.elsewhere.map(|elsewhere| elsewhere.cached_tokens);
        assert_eq!(
            elsewhere,
            longest.filter(|longest| *longest > locked.tokens)
        );
    }
}

#[test]
fn a_miss_is_an_eviction_exactly_if_its_next_page_was_ever_published() {
    for page_size in [1, 2, 3] {
        for policy in ["lru", "lfu", "filo"] {
            let ops = prop::collection::vec(op(), 1..120);
            deterministic_runner(150)
                .run(&ops, |ops| {
                    let mut checker = Checker::new(page_size, policy);
                    ops.iter().for_each(|op| checker.run(op));
                    checker.pool.free(checker.tree.clear());
                    Ok(())
                })
                .unwrap_or_else(|error| panic!("pages of {page_size}, {policy}: {error}"));
        }
    }
}
