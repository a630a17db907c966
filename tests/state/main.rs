//! Tests of the engine's state without actors: prefix cache, pools, scheduler, storage tiers.

mod chaos;
mod chaos_drafts;
mod chaos_load;
mod chaos_table;
mod corner_cases;
mod counting_allocator;
mod deadlines;
mod drafts;
mod drafts_seen;
#[path = "../common/grammars.rs"]
mod grammars;
mod images;
mod kv_events;
mod lifecycle;
mod long_requests;
mod lost_steps;
mod memory_use;
mod naive_model;
mod planted_drafts;
mod planted_waits;
mod policy_model;
mod policy_tables;
mod pools;
mod prefill_adder;
mod prefill_pace;
mod prefix_misses;
mod prefix_oracle;
mod router;
mod s3fifo;
mod scheduler_corners;
mod scheduler_lives;
mod scheduler_prefix_wait;
mod scheduler_priorities;
mod scheduler_protection;
mod scheduler_requests;
mod scheduler_script;
mod scheduler_waits;
mod scheduler_watch;
mod scheduler_world;
mod slices;
mod soft_pins;
mod state_defects;
mod states;
mod tiers;
mod tlru;
mod vision;
mod warm_up;
mod window_defects;
mod windows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_cache::{Checkpoint, Checkpointed};
use souffleur_state::cache::radix_tree::{Insert, RadixTree};
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{NodeLock, PageSize, Pages, PoolLedger};

/// A radix tree with its page pool.
struct Memory {
    page_size: PageSize,
    pool: PagePool,
    tree: RadixTree,
    ledger: Arc<PoolLedger>,
}

impl Memory {
    fn new(page_size: u32, policy: &str, n_pages: u32) -> Self {
        let policy = EvictionPolicy::from_name(policy).expect("tests name policies that exist");
        Self::with_policy(page_size, policy, n_pages)
    }

    fn with_policy(page_size: u32, policy: EvictionPolicy, n_pages: u32) -> Self {
        let page_size = PageSize::new(page_size).expect("tests use positive page sizes");
        let ledger = Arc::new(PoolLedger::new(page_size));
        let pool = PagePool::new(n_pages, page_size, ledger.clone());
        let tree = RadixTree::new(page_size, policy, ledger.clone());
        Self {
            page_size,
            pool,
            tree,
            ledger,
        }
    }

    fn alloc(&mut self, tokens: usize) -> Pages {
        let n_pages = self.page_size.pages_for(tokens);
        self.pool
            .alloc(n_pages)
            .expect("the test's pool is large enough")
    }

    /// Inserts `tokens` with new pages and returns how many of them were already cached.
    fn insert_in(&mut self, namespace: &Namespace, tokens: &[u32]) -> usize {
        let pages = self.alloc(tokens.len());
        let inserted = self.tree.insert(Insert {
            namespace,
            tokens,
            owner: None,
            pages,
            priority: 0,
            inserted_tokens: 0,
        });
        self.pool.free(inserted.duplicates);
        self.pool.free(inserted.rest);
        self.check();
        inserted.prefix_tokens
    }

    fn insert(&mut self, tokens: &[u32]) -> usize {
        self.insert_in(&Namespace::default(), tokens)
    }

    fn matched(&mut self, tokens: &[u32]) -> usize {
        self.tree.match_prefix(&Namespace::default(), tokens).tokens
    }

    fn lock(&mut self, tokens: &[u32]) -> NodeLock {
        self.tree.lock_prefix(&Namespace::default(), tokens).lock
    }

    fn peek(&self, tokens: &[u32]) -> usize {
        self.tree.peek(&Namespace::default(), tokens)
    }

    /// Evicts at least `tokens` if possible, frees their pages and returns the number of evicted tokens.
    fn evict(&mut self, tokens: usize) -> usize {
        let evicted = self.tree.evict(tokens);
        let n_tokens = evicted.n_tokens();
        assert_eq!(n_tokens, self.page_size.tokens_in(evicted.iter().count()));
        self.pool.free_evicted(evicted);
        self.check();
        n_tokens
    }

    fn checkpoint(&mut self, tokens: &[u32], prompt_tokens: usize, held: HeldKv) -> Checkpointed {
        let done = self.tree.checkpoint(Checkpoint {
            namespace: &Namespace::default(),
            tokens,
            owner: None,
            prompt_tokens,
            protected_pages: held.protected_pages,
            private: held.private,
            lock: held.lock,
            inserted_tokens: held.inserted_tokens,
            priority: 0,
            states: Vec::new(),
            windows: None,
            boundaries: &[],
            stored_tokens: 0,
        });
        self.check();
        done
    }

    /// Publishes a whole sequence that uses no cached prefix, and releases it.
    fn run_request(&mut self, tokens: &[u32], prompt_tokens: usize) {
        let held = HeldKv {
            private: self.alloc(tokens.len()),
            ..HeldKv::default()
        };
        let done = self.checkpoint(tokens, prompt_tokens, held);
        self.release(done);
    }

    fn release(&mut self, done: Checkpointed) {
        self.pool.free(done.duplicates);
        self.pool.free(done.private);
        self.tree.unlock(done.lock);
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.tree.check_integrity(), Ok(()));
    }

    /// Asserts that nothing is locked and every page is either free or cached.
    fn assert_idle(&self) {
        let n_cached = self.page_size.full_pages(self.tree.total_size());
        assert_eq!(self.pool.free_pages() + n_cached, self.pool.total_pages());
        assert_eq!(self.tree.protected_size(), 0);
        assert_eq!((self.ledger.lost_pages(), self.ledger.lost_locks()), (0, 0));
    }
}

/// The memory that a sequence holds before a checkpoint.
#[derive(Default)]
struct HeldKv {
    private: Pages,
    lock: NodeLock,
    protected_pages: usize,
    inserted_tokens: usize,
}

/// A runner that generates the same cases at every run, on every machine.
fn deterministic_runner(cases: u32) -> TestRunner {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn panics(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_err()
}
