//! The trait of eviction policies that keep nodes in FIFO queues, such as S3-FIFO.

use crate::cache::prefix_history::PrefixHash;

/// A policy that keeps nodes in FIFO queues.
///
/// The tree keeps the queues. Eviction scans the unlocked leaves of a queue, the oldest first; all other nodes keep
/// their place until they are unlocked leaves. The halves of a split node share its place and its hits: only one of
/// them can be a leaf. When a policy replaces another one, all nodes enter its queues in the order of their creation.
pub trait QueuePolicy: Send {
    fn n_queues(&self) -> usize;

    /// Chooses the queue of a new node. `entry` is the hash of the prefix up to the end of the node's first page.
    fn admit(&mut self, entry: PrefixHash) -> usize;

    /// Returns the queue to scan next. `tokens` counts the tokens of the unlocked leaves in each queue. If the returned
    /// queue has no unlocked leaf, the tree scans the first queue that has one.
    fn next_queue(&self, tokens: &[usize]) -> usize;

    /// Decides whether to evict or move the oldest unlocked leaf of a queue. `tokens` is as for
    /// [`next_queue`](Self::next_queue), and includes the leaf.
    ///
    /// A leaf must be evicted after a bounded number of scans without hits, or eviction does not end.
    fn scan(&mut self, leaf: ScannedLeaf, tokens: &[usize]) -> Scan;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedLeaf {
    pub queue: usize,
    /// Requests that used the leaf since its insertion, or since its last move, plus the `hits` of that move.
    pub hits: u32,
    pub tokens: usize,
    /// As for [`QueuePolicy::admit`]: the same if the leaf is evicted and inserted again.
    pub entry: PrefixHash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    Evict,
    /// The leaf moves to the tail of a queue and keeps `hits` hits.
    Move {
        queue: usize,
        hits: u32,
    },
}
