//! Random lifecycles of sequences over pool and cache: every page has one owner, and every sequence reads its own KV.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use souffleur_base::ids::PageId;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_cache::Checkpoint;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{NodeLock, PageSize, Pages, PoolLedger};

use crate::deterministic_runner;

const CASES_PER_CACHE: u32 = 60;
const MAX_EVENTS: usize = 80;
/// Few enough that sequences often evict others' prefixes, or end for lack of memory.
const POOL_PAGES: u32 = 40;
const NO_CACHE: &str = "none";

#[test]
fn no_sequence_leaks_shares_or_overwrites_a_page() {
    for policy in EvictionPolicy::names().chain([NO_CACHE]) {
        for page_size in [1, 4, 16, 64] {
            let outcome =
                deterministic_runner(CASES_PER_CACHE).run(&vec(event(), 1..MAX_EVENTS), |events| {
                    Engine::new(page_size, policy).run(&events);
                    Ok(())
                });
            outcome.unwrap_or_else(|error| panic!("{policy}, page size {page_size}: {error}"));
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Start {
        salted: bool,
        symbols: Vec<u32>,
        cut: usize,
    },
    Prefill {
        which: usize,
        tokens: usize,
    },
    Decode {
        which: usize,
        token: u32,
        extra_pages: usize,
    },
    Finish {
        which: usize,
        cut: usize,
    },
    Abort {
        which: usize,
    },
    Evict {
        tokens: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let which = 0..8usize;
    prop_oneof![
        3 => (any::<bool>(), vec(0..2u32, 1..20), 0..32usize)
            .prop_map(|(salted, symbols, cut)| Event::Start { salted, symbols, cut }),
        4 => (which.clone(), 1..400usize)
            .prop_map(|(which, tokens)| Event::Prefill { which, tokens }),
        6 => (which.clone(), 0..2u32, 0..2usize)
            .prop_map(|(which, token, extra_pages)| Event::Decode { which, token, extra_pages }),
        2 => (which.clone(), 0..6usize).prop_map(|(which, cut)| Event::Finish { which, cut }),
        1 => which.prop_map(|which| Event::Abort { which }),
        1 => (0..200usize).prop_map(|tokens| Event::Evict { tokens }),
    ]
}

struct Sequence {
    namespace: Namespace,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose KV is written.
    committed: usize,
    /// The page table, as a kernel would read it.
    row: Vec<PageId>,
    lock: NodeLock,
    private: Pages,
    protected_pages: usize,
    inserted_tokens: usize,
}

struct Engine {
    page_size: PageSize,
    pool: PagePool,
    cache: RadixTree,
    /// The content of each slot: a digest of the namespace and of all tokens up to and including the slot's.
    kv: HashMap<usize, u64>,
    running: Vec<Sequence>,
    ledger: Arc<PoolLedger>,
}

impl Engine {
    fn new(page_size: u32, policy: &str) -> Self {
        let page_size = PageSize::new(page_size).expect("page sizes are positive");
        let ledger = Arc::new(PoolLedger::new(page_size));
        let cache = match EvictionPolicy::from_name(policy) {
            Ok(policy) => RadixTree::new(page_size, policy, ledger.clone()),
            Err(_) => RadixTree::disabled(page_size, ledger.clone()),
        };
        let pool = PagePool::new(POOL_PAGES, page_size, ledger.clone());
        Self {
            page_size,
            pool,
            cache,
            kv: HashMap::new(),
            running: Vec::new(),
            ledger,
        }
    }

    fn run(mut self, events: &[Event]) {
        for event in events {
            self.apply(event);
            self.check();
        }
        while let Some(sequence) = self.running.pop() {
            self.release(sequence);
        }
        self.check();
        assert_eq!(self.cache.protected_size(), 0);
        self.pool.free(self.cache.clear());
        assert_eq!(self.pool.free_pages(), self.pool.total_pages());
        assert_eq!((self.ledger.lost_pages(), self.ledger.lost_locks()), (0, 0));
    }

    fn apply(&mut self, event: &Event) {
        if let Event::Evict { tokens } = *event {
            let evicted = self.cache.evict(tokens);
            return self.pool.free_evicted(evicted);
        }
        if let Event::Start {
            salted,
            symbols,
            cut,
        } = event
        {
            return self.start(*salted, symbols, *cut);
        }
        let (Event::Prefill { which, .. }
        | Event::Decode { which, .. }
        | Event::Finish { which, .. }
        | Event::Abort { which }) = event
        else {
            return;
        };
        if self.running.is_empty() {
            return;
        }
        let mut sequence = self.running.swap_remove(which % self.running.len());
        let is_prefilled = sequence.committed >= sequence.prompt_tokens;
        let continues = match *event {
            Event::Prefill { tokens, .. } => is_prefilled || self.prefill(&mut sequence, tokens),
            Event::Decode {
                token, extra_pages, ..
            } => !is_prefilled || self.decode(&mut sequence, token, extra_pages),
            Event::Finish { cut, .. } => {
                let published = sequence.committed - cut.min(sequence.committed);
                self.checkpoint(&mut sequence, published);
                false
            }
            _ => false,
        };
        if continues {
            self.running.push(sequence)
        } else {
            self.release(sequence)
        }
    }

    fn start(&mut self, salted: bool, symbols: &[u32], cut: usize) {
        let half_page = self.page_size.get().div_ceil(2);
        let prompt = symbols.iter().flat_map(|&symbol| vec![symbol; half_page]);
        let mut tokens: Vec<u32> = prompt.collect();
        tokens.truncate(tokens.len() - cut % half_page);
        let namespace = Namespace::new(None, salted.then_some("salt"));
        let found = self
            .cache
            .lock_prefix(&namespace, &tokens[..tokens.len() - 1]);
        assert_eq!(found.tokens, self.page_size.tokens_in(found.pages.len()));
        self.running.push(Sequence {
            namespace,
            prompt_tokens: tokens.len(),
            tokens,
            committed: found.tokens,
            row: found.pages.iter().collect(),
            lock: found.lock,
            private: Pages::empty(),
            protected_pages: found.pages.len(),
            inserted_tokens: 0,
        });
    }

    /// Computes a chunk and publishes it; returns false when memory does not suffice.
    fn prefill(&mut self, sequence: &mut Sequence, tokens: usize) -> bool {
        let end = sequence.prompt_tokens.min(sequence.committed + tokens);
        if !self.grow(sequence, self.page_size.pages_for(end)) {
            return false;
        }
        self.write(sequence, end);
        self.checkpoint(sequence, end);
        true
    }

    fn decode(&mut self, sequence: &mut Sequence, token: u32, extra_pages: usize) -> bool {
        sequence.tokens.push(token);
        let end = sequence.committed + 1;
        if !self.grow(sequence, self.page_size.pages_for(end) + extra_pages) {
            return false;
        }
        self.write(sequence, end);
        true
    }

    fn grow(&mut self, sequence: &mut Sequence, n_pages: usize) -> bool {
        let missing = n_pages.saturating_sub(sequence.row.len());
        let shortfall = missing.saturating_sub(self.pool.free_pages());
        let evicted = self.cache.evict(self.page_size.tokens_in(shortfall));
        self.pool.free_evicted(evicted);
        let Some(granted) = self.pool.alloc(missing) else {
            return false;
        };
        sequence.row.extend(granted.ids());
        sequence.private.append(granted);
        true
    }

    fn write(&mut self, sequence: &mut Sequence, end: usize) {
        let digests = digests(sequence, end);
        let written = sequence.committed..end;
        let slots = self.page_size.slots(&sequence.row, written.clone());
        self.kv.extend(slots.zip(digests[written].iter().copied()));
        sequence.committed = end;
    }

    fn checkpoint(&mut self, sequence: &mut Sequence, published: usize) {
        let before = sequence.protected_pages;
        let owner = Arc::from(&sequence.tokens[..]);
        let done = self.cache.checkpoint(Checkpoint {
            namespace: &sequence.namespace,
            tokens: &sequence.tokens[..published],
            owner: Some(&owner),
            prompt_tokens: sequence.prompt_tokens,
            protected_pages: before,
            private: sequence.private.take(),
            lock: std::mem::take(&mut sequence.lock),
            inserted_tokens: sequence.inserted_tokens,
            priority: 0,
            states: Vec::new(),
            windows: None,
            boundaries: &[],
            stored_tokens: 0,
        });
        let remapped: Vec<PageId> = done.remap.iter().collect();
        sequence.row[before..before + remapped.len()].copy_from_slice(&remapped);
        assert_eq!(before + remapped.len(), done.protected_pages);
        self.pool.free(done.duplicates);
        sequence.lock = done.lock;
        sequence.private = done.private;
        sequence.protected_pages = done.protected_pages;
        sequence.inserted_tokens = done.inserted_tokens;
    }

    fn release(&mut self, sequence: Sequence) {
        self.pool.free(sequence.private);
        self.cache.unlock(sequence.lock);
    }

    /// Checks that every page has exactly one owner, and every sequence reads its tokens' KV.
    fn check(&self) {
        assert_eq!(self.cache.check_integrity(), Ok(()));
        let mut owned: Vec<PageId> = self.pool.iter().collect();
        owned.extend(self.cache.iter_pages());
        let n_cached = owned.len() - self.pool.free_pages();
        assert_eq!(self.page_size.tokens_in(n_cached), self.cache.total_size());
        for sequence in &self.running {
            owned.extend(sequence.private.ids());
            assert_eq!(
                sequence.row[sequence.protected_pages..],
                *sequence.private.ids()
            );
            let slots = self.page_size.slots(&sequence.row, 0..sequence.committed);
            let held: Vec<u64> = slots.map(|slot| self.kv[&slot]).collect();
            assert_eq!(held, digests(sequence, sequence.committed));
        }
        assert_eq!(owned.len(), self.pool.total_pages());
        let distinct: HashSet<PageId> = owned.into_iter().collect();
        assert_eq!(distinct.len(), self.pool.total_pages());
        assert!(!distinct.contains(&PageId::new(0)));
    }
}

fn digests(sequence: &Sequence, end: usize) -> Vec<u64> {
    let mut state = DefaultHasher::new();
    sequence.namespace.hash(&mut state);
    let tokens = sequence.tokens[..end].iter();
    tokens
        .map(|token| {
            token.hash(&mut state);
            state.finish()
        })
        .collect()
}
