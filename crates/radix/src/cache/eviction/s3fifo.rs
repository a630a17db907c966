//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! A new node enters the small queue. When eviction scans it there, it moves to the main queue if more than one request
//! has used it (`freq > 1`, as in the paper's Algorithm 1; its hits start again from 0, as in section 4.1), and is
//! evicted otherwise. The main queue reinserts a node with one hit fewer as long as it has any. The ghost queue
//! remembers nodes that the small queue evicted: a node that returns enters the main queue.
//!
//! Queue sizes are in tokens of unlocked leaves, because other nodes cannot be evicted. The small queue is scanned
//! while it has at least a tenth of all these tokens. The ghost queue remembers as many tokens as the other nine
//! tenths.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::queues::{QueuePolicy, Scan, ScannedLeaf};
use crate::cache::prefix_history::PrefixHash;

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue should have 1/`SMALL_DIVISOR` of the evictable tokens.
const SMALL_DIVISOR: usize = 10;
/// The frequency has two bits.
const MAX_FREQUENCY: u32 = 3;

#[derive(Default)]
pub(super) struct S3Fifo {
    ghosts: Ghosts,
}

impl QueuePolicy for S3Fifo {
    fn n_queues(&self) -> usize {
        2
    }

    fn admit(&mut self, entry: PrefixHash) -> usize {
        if self.ghosts.take(entry) { MAIN } else { SMALL }
    }

    fn next_queue(&self, tokens: &[usize]) -> usize {
        if tokens[SMALL] >= (tokens[SMALL] + tokens[MAIN]).div_ceil(SMALL_DIVISOR) {
            SMALL
        } else {
            MAIN
        }
    }

    fn scan(&mut self, leaf: ScannedLeaf, tokens: &[usize]) -> Scan {
        match (leaf.queue, leaf.hits.min(MAX_FREQUENCY)) {
            (SMALL, 0 | 1) => {
                let all = tokens[SMALL] + tokens[MAIN];
                self.ghosts.add(leaf, all - all / SMALL_DIVISOR);
                Scan::Evict
            }
            (SMALL, _) => Scan::Move {
                queue: MAIN,
                hits: 0,
            },
            (_, 0) => Scan::Evict,
            (_, frequency) => Scan::Move {
                queue: MAIN,
                hits: frequency - 1,
            },
        }
    }
}

/// Evicted nodes, the oldest first. A node that returns to the cache stays in this queue, as in the paper.
#[derive(Default)]
struct Ghosts {
    /// Each node with its number of tokens.
    queue: VecDeque<(PrefixHash, usize)>,
    /// The number of a node's latest ghost, until the node returns to the cache.
    numbers: FxHashMap<PrefixHash, u64>,
    /// Number of ghosts ever added.
    n_added: u64,
    tokens: usize,
}

impl Ghosts {
    fn take(&mut self, entry: PrefixHash) -> bool {
        self.numbers.remove(&entry).is_some()
    }

    /// Adds a leaf and forgets the oldest ghosts beyond `limit` tokens.
    fn add(&mut self, leaf: ScannedLeaf, limit: usize) {
        self.numbers.insert(leaf.entry, self.n_added);
        self.queue.push_back((leaf.entry, leaf.tokens));
        self.n_added += 1;
        self.tokens += leaf.tokens;
        while self.tokens > limit {
            let number = self.n_added - self.queue.len() as u64;
            let Some((entry, tokens)) = self.queue.pop_front() else {
                return;
            };
            self.tokens -= tokens;
            if self.numbers.get(&entry) == Some(&number) {
                self.numbers.remove(&entry);
            }
        }
    }
}
