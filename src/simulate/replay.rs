//! Computes the prefix cache's hit rate for a trace and a cache size, without simulating time.
//!
//! For each prompt in order: matches its full pages, evicts to make room for the missing ones, and inserts the prompt.
//! No other request is in flight, so the result depends only on the order of the prompts. With replicas, the engine's
//! router first chooses one by their caches and the prompts that they have computed.

use std::sync::Arc;

use serde::Serialize;

use super::SimulateError;
use super::routing::{Arrival, route};
use super::trace::Trace;
use souffleur_base::ids::IntakeId;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_cache::Checkpoint;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{PageSize, PoolLedger};
use souffleur_state::router::{HIDDEN_S, LoadBalance, RouterState, recent_window};

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

    fn plus(self, other: &Self) -> Self {
        Self {
            prompts: self.prompts + other.prompts,
            too_long: self.too_long + other.too_long,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            hit_tokens: self.hit_tokens + other.hit_tokens,
            evicted_tokens: self.evicted_tokens + other.evicted_tokens,
            evicted_nodes: self.evicted_nodes + other.evicted_nodes,
            cached_tokens: self.cached_tokens + other.cached_tokens,
        }
    }
}

/// Counts of a replay in replicas.
#[derive(Clone, Debug)]
pub struct Replays {
    /// All prompts, those too long for a cache included.
    pub all: Replayed,
    /// The prompts of each replica.
    pub replicas: Vec<Replayed>,
}

impl Replays {
    /// The largest number of prompt tokens that a replica computed, as a multiple of the mean.
    pub fn greatest_load(&self) -> f64 {
        let computed = self.replicas.iter();
        let computed = computed.map(|replica| replica.prompt_tokens - replica.hit_tokens);
        let sum: u64 = computed.clone().sum();
        let mean = sum as f64 / self.replicas.len() as f64;
        computed.max().unwrap_or(0) as f64 / mean.max(1.0)
    }
}

/// Replays a trace. Fails if the cache has too many pages to simulate, or no page.
pub fn replay_prompts(trace: &Trace, cache: ReplayCache) -> Result<Replayed, SimulateError> {
    let replays = replay_in_replicas(trace, cache, (1, LoadBalance::default()))?;
    Ok(replays.all)
}

/// Replays a trace in replicas (at least one), each of which has such a cache. Fails if the caches have too many pages
/// to simulate, or no page.
pub fn replay_in_replicas(
    trace: &Trace,
    cache: ReplayCache,
    (n_replicas, method): (u32, LoadBalance),
) -> Result<Replays, SimulateError> {
    let n_replicas = n_replicas.max(1);
    let n_pages = pages(trace, cache, n_replicas)?;
    let window = recent_window(cache.page_size.tokens_in(n_pages), n_replicas);
    let mut replicas = Replicas {
        router: RouterState::new(method, n_replicas).with_window(window),
        replicas: (0..n_replicas)
            .map(|_| Replay::new(cache, n_pages))
            .collect(),
        routed: 0,
    };
    let mut too_long = Replayed::default();
    for request in &trace.requests {
        let n_tokens = request.prompt.len();
        if cache.page_size.full_pages(n_tokens) > n_pages {
            too_long.prompts += 1;
            too_long.too_long += 1;
            too_long.prompt_tokens += n_tokens as u64;
        } else {
            replicas.prompt(&request.prompt.tokens());
        }
    }
    let replicas: Vec<Replayed> = replicas.replicas.into_iter().map(Replay::end).collect();
    Ok(Replays {
        all: replicas.iter().fold(too_long, Replayed::plus),
        replicas,
    })
}

/// The pages of each replica's cache.
fn pages(trace: &Trace, cache: ReplayCache, n_replicas: u32) -> Result<usize, SimulateError> {
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
    let max_pages = MAX_POOL_PAGES / n_replicas as usize;
    if (1..=max_pages).contains(&n_pages) {
        return Ok(n_pages);
    }
    let pages = format!("{n_pages} pages of {page_size} tokens, limits are 1 to {max_pages} pages");
    Err(match cache.kv_tokens {
        Some(tokens) => {
            let reason =
                format!("is {tokens}, which makes {pages}: change --kv-tokens or --page-size");
            SimulateError::value("kv_tokens", reason)
        }
        None => {
            let reason = format!("make {pages}: set a larger --page-size");
            SimulateError::value("the prompts", reason)
        }
    })
}

struct Replicas {
    router: RouterState,
    replicas: Vec<Replay>,
    /// The number of prompts so far.
    routed: u64,
}

impl Replicas {
    fn prompt(&mut self, tokens: &[u32]) {
        let arrival = Arrival {
            request: IntakeId::new(self.routed),
            tokens,
            // When a prompt arrives, the caches show all earlier ones.
            now_s: self.routed as f64 * 2.0 * HIDDEN_S,
        };
        self.routed += 1;
        let caches = self.replicas.iter().map(|replica| &replica.tree);
        let unit = route(&mut self.router, caches, &arrival);
        self.replicas[unit.index()].prompt(tokens);
        self.router.ended(arrival.request);
    }
}

struct Replay {
    tree: RadixTree,
    pool: PagePool,
    counted: Replayed,
}

impl Replay {
    fn new(cache: ReplayCache, n_pages: usize) -> Self {
        let page_size = cache.page_size;
        let ledger = Arc::new(PoolLedger::new(page_size));
        Self {
            tree: RadixTree::new(page_size, cache.eviction, ledger.clone()),
            pool: PagePool::new(n_pages as u32, page_size, ledger),
            counted: Replayed::default(),
        }
    }

    fn end(mut self) -> Replayed {
        self.counted.cached_tokens = self.tree.total_size();
        self.pool.free(self.tree.clear());
        self.counted
    }

    /// Matches and inserts a prompt that is no longer than the cache.
    fn prompt(&mut self, tokens: &[u32]) {
        let page_size = self.pool.page_size();
        let namespace = Namespace::default();
        let n_pages = page_size.full_pages(tokens.len());
        self.counted.prompts += 1;
        self.counted.prompt_tokens += tokens.len() as u64;
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
