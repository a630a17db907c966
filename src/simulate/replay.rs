//! Computes the prefix cache's hit rate for a trace and a cache size, without simulating time.
//!
//! For each prompt in order: matches its full pages, evicts to make room for the missing ones, and inserts the prompt.
//! No other request is in flight, so the result depends only on the order of the prompts.

use std::sync::Arc;

use serde::Serialize;

use super::SimulateError;
use super::trace::Trace;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_cache::Checkpoint;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{PageSize, PoolLedger};

/// The largest number of pages of a simulated pool: their ids alone take 1 GiB.
pub const MAX_POOL_PAGES: usize = 1 << 28;

#[derive(Clone, Copy, Debug)]
pub struct ReplayCache {
    pub page_size: PageSize,
    pub eviction: EvictionPolicy,
    /// Capacity in tokens, rounded down to whole pages; `None` for all tokens of the trace.
    pub kv_tokens: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    pub prompts: usize,
    /// Prompts that are longer than the cache: they miss, and are not inserted.
    pub too_long: usize,
    pub prompt_tokens: u64,
    /// Prompt tokens that were cached.
    pub hit_tokens: u64,
    pub evicted_tokens: u64,
    pub evicted_nodes: u64,
    pub cached_tokens: usize,
}

impl Replayed {
    pub fn hit_rate(&self) -> f64 {
        self.hit_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// Replays a trace. Fails if the cache has too many pages to simulate, or no page.
pub fn replay_prompts(trace: &Trace, cache: ReplayCache) -> Result<Replayed, SimulateError> {
    let page_size = cache.page_size;
    let all_pages = || {
        let pages = trace
            .requests
            .iter()
            .map(|request| page_size.full_pages(request.prompt.len()));
        pages.sum::<usize>().max(1)
    };
    let n_pages = cache
        .kv_tokens
        .map_or_else(all_pages, |tokens| page_size.full_pages(tokens));
    if !(1..=MAX_POOL_PAGES).contains(&n_pages) {
        let pages = format!(
            "{n_pages} pages of {page_size} tokens, limits are 1 to {MAX_POOL_PAGES} pages"
        );
        return Err(match cache.kv_tokens {
            Some(tokens) => {
                let reason =
                    format!("is {tokens}, which makes {pages}: change --kv-tokens or --page-size");
                SimulateError::value("kv_tokens", reason)
            }
            None => {
                let reason = format!("make {pages}: set a larger --page-size");
                SimulateError::value("the prompts", reason)
            }
        });
    }
    let ledger = Arc::new(PoolLedger::new(page_size));
    let mut replay = Replay {
        tree: RadixTree::new(page_size, cache.eviction, ledger.clone()),
        pool: PagePool::new(n_pages as u32, page_size, ledger),
        counted: Replayed::default(),
    };
    for request in &trace.requests {
        replay.prompt(&request.prompt.tokens());
    }
    let Replay {
        mut tree,
        mut pool,
        mut counted,
    } = replay;
    counted.cached_tokens = tree.total_size();
    pool.free(tree.clear());
    Ok(counted)
}

struct Replay {
    tree: RadixTree,
    pool: PagePool,
    counted: Replayed,
}

impl Replay {
    fn prompt(&mut self, tokens: &[u32]) {
        let page_size = self.pool.page_size();
        let namespace = Namespace::default();
        let n_pages = page_size.full_pages(tokens.len());
        self.counted.prompts += 1;
        self.counted.prompt_tokens += tokens.len() as u64;
        if n_pages > self.pool.total_pages() {
            self.counted.too_long += 1;
            return;
        }
        let cached = self.tree.lock_prefix(&namespace, tokens);
        self.counted.hit_tokens += cached.tokens as u64;
        let missing = n_pages - cached.pages.len();
        let shortage = missing.saturating_sub(self.pool.free_pages());
        let evicted = self.tree.evict(page_size.tokens_in(shortage));
        self.counted.evicted_tokens += evicted.n_tokens() as u64;
        self.counted.evicted_nodes += evicted.n_nodes() as u64;
        self.pool.free_evicted(evicted);
        let private = self
            .pool
            .alloc(missing)
            .expect("only this prompt's prefix is locked, and the prompt fits");
        let published = self.tree.checkpoint(Checkpoint {
            namespace: &namespace,
            tokens,
            owner: None,
            prompt_tokens: tokens.len(),
            protected_pages: cached.pages.len(),
            private,
            states: Vec::new(),
            windows: None,
            boundaries: &[],
            stored_tokens: 0,
            lock: cached.lock,
            inserted_tokens: 0,
            priority: 0,
        });
        self.tree.unlock(published.lock);
        self.pool.free(published.duplicates);
        self.pool.free(published.private);
    }
}
