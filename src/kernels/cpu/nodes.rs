//! NUMA partitioning: which node owns which outputs of a weight and which heads of the KV pool.
//!
//! Threads are numbered node by node, and ordered items are divided among nodes in proportion to their threads, in
//! order. Packing, first touch and kernels use the same functions, so a thread finds its data on its own node. Inputs
//! have no owner: sums are never divided among nodes, so the partition does not change results.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

const USUAL_NODES: usize = 8;

pub type PerNode<T> = SmallVec<[T; USUAL_NODES]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The end of each node's range of threads.
    ends: Arc<[usize]>,
}

impl Nodes {
    /// Nodes with these thread counts, except those without a thread.
    ///
    /// # Panics
    /// If there is no thread.
    pub fn new(threads: impl IntoIterator<Item = usize>) -> Self {
        let used = threads.into_iter().filter(|threads| *threads > 0);
        let ends: Arc<[usize]> = used
            .scan(0, |end, threads| {
                *end += threads;
                Some(*end)
            })
            .collect();
        assert!(!ends.is_empty(), "at least one node must have a thread");
        Self { ends }
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    pub fn n_threads(&self) -> usize {
        self.ends[self.count() - 1]
    }

    pub fn threads(&self, node: usize) -> Range<usize> {
        let first = node.checked_sub(1).map_or(0, |before| self.ends[before]);
        first..self.ends[node]
    }

    pub fn of_thread(&self, thread: usize) -> usize {
        self.ends.partition_point(|end| *end <= thread)
    }

    /// The range of `count` ordered items that a node owns.
    pub fn share(&self, node: usize, count: usize) -> Range<usize> {
        let first = |thread: usize| thread * count / self.n_threads();
        let threads = self.threads(node);
        first(threads.start)..first(threads.end)
    }

    /// The node that owns one of `count` ordered items.
    pub fn owner(&self, index: usize, count: usize) -> usize {
        let ends = (0..self.count()).map(|node| self.share(node, count).end);
        ends.take_while(|end| *end <= index).count()
    }

    pub fn shares(&self, count: usize) -> PerNode<Range<usize>> {
        (0..self.count())
            .map(|node| self.share(node, count))
            .collect()
    }

    /// The heads that each node owns. If a node would have none, a single range of all heads, which no node owns.
    pub fn heads(&self, n_heads: usize) -> PerNode<Range<usize>> {
        let shares = self.shares(n_heads);
        if shares.iter().any(Range::is_empty) {
            std::iter::once(0..n_heads).collect()
        } else {
            shares
        }
    }
}

/// The node of an item, and the item's index within the node; `node_items` has the number of items per node.
///
/// # Panics
/// If `item` is not below the number of items.
#[inline(always)]
pub fn locate(node_items: &[usize], mut item: usize) -> (usize, usize) {
    let mut node = 0;
    while item >= node_items[node] {
        item -= node_items[node];
        node += 1;
    }
    (node, item)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPINGS: [&[usize]; 6] = [&[1], &[5], &[1, 1], &[3, 1], &[1, 2, 1], &[8, 8, 8, 8]];

    #[test]
    fn every_item_has_one_owner_and_shares_are_contiguous() {
        for threads in GROUPINGS {
            let nodes = Nodes::new(threads.iter().copied());
            for count in [0, 1, 2, 7, 8, 31, 4096] {
                let shares = nodes.shares(count);
                assert_eq!(shares.len(), threads.len());
                let all: Vec<usize> = shares.iter().cloned().flatten().collect();
                assert!(all.into_iter().eq(0..count), "{threads:?}, {count}");
                for (node, share) in shares.into_iter().enumerate() {
                    for index in share {
                        assert_eq!(nodes.owner(index, count), node, "{threads:?}, {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn shares_are_in_proportion_to_threads() {
        let nodes = Nodes::new([3, 1]);
        assert_eq!(nodes.shares(8).as_slice(), [0..6, 6..8]);
        assert_eq!(
            Nodes::new([4; 4]).shares(32).as_slice(),
            [0..8, 8..16, 16..24, 24..32]
        );
        let alone = Nodes::new([7]);
        assert_eq!((alone.share(0, 5), alone.shares(5).len()), (0..5, 1));
    }

    #[test]
    fn threads_are_numbered_node_by_node() {
        let nodes = Nodes::new([2, 0, 1, 3]);
        assert_eq!((nodes.count(), nodes.n_threads()), (3, 6));
        let threads: Vec<usize> = (0..6).map(|thread| nodes.of_thread(thread)).collect();
        assert_eq!(threads, [0, 0, 1, 2, 2, 2]);
        for node in 0..3 {
            let own = nodes.threads(node);
            assert!(
                own.into_iter()
                    .all(|thread| nodes.of_thread(thread) == node)
            );
        }
    }

    #[test]
    fn fewer_heads_than_nodes_have_no_owner() {
        let nodes = Nodes::new([1; 4]);
        assert_eq!(nodes.heads(8).as_slice(), [0..2, 2..4, 4..6, 6..8]);
        assert_eq!(nodes.heads(4).as_slice(), [0..1, 1..2, 2..3, 3..4]);
        for (nodes, n_heads) in [(nodes, 3), (Nodes::new([4]), 1)] {
            let all: Vec<_> = nodes.heads(n_heads).into_iter().collect();
            assert!(all.len() == 1 && all[0] == (0..n_heads), "{all:?}");
        }
    }

    #[test]
    fn items_are_located_after_nodes_without_items() {
        let node_items = [0, 2, 0, 3];
        let places: Vec<_> = (0..5).map(|item| locate(&node_items, item)).collect();
        assert_eq!(places, [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2)]);
    }
}
