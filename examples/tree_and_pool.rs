//! The radix tree and the page pool alone: no actor, no model, no runtime.
//!
//! The pool allocates pages, which are values with one owner. The tree takes ownership of the pages whose tokens it
//! caches, and returns pages on eviction. The example `prefix_index` does the same with actors.
//!
//! ```text
//! cargo run --example tree_and_pool
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::sync::Arc;

use anyhow::Context;
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::cache::radix_tree::{Insert, RadixTree};
use souffleur::state::pool::page_pool::PagePool;
use souffleur::state::pool::pages::{PageSize, PoolLedger};

fn main() -> anyhow::Result<()> {
    let page_size = PageSize::new(1).context("the page size is 0")?;
    let policy = EvictionPolicy::from_name("lru")?;
    let ledger = Arc::new(PoolLedger::new(page_size));
    let mut pool = PagePool::new(64, page_size, ledger.clone());
    let mut tree = RadixTree::new(page_size, policy, ledger);
    let namespace = Namespace::default();

    let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
    let inserted = tree.insert(Insert {
        namespace: &namespace,
        tokens: &prompt,
        owner: None,
        pages: pool.alloc(prompt.len()).context("the pool is too small")?,
        priority: 0,
        inserted_tokens: 0,
    });
    // The tree returns the pages of tokens that were already cached, and of a partial last page. Here there are none.
    pool.free(inserted.duplicates);
    pool.free(inserted.rest);

    let cached = tree.peek(&namespace, &[&prompt[..], &[9; 4]].concat());
    let evicted = tree.evict(4);
    let n_evicted = evicted.n_tokens();
    pool.free_evicted(evicted);
    let free = pool.free_pages();
    println!("{cached} of 12 tokens are cached, {n_evicted} are evicted, {free} pages are free");

    // A page that is dropped is a leak, which panics in a debug build: the tree's last pages go back to the pool first.
    pool.free_evicted(tree.evict(4));
    Ok(())
}
