//! The arena of tree nodes, and the step from a node to its child along a key.

use std::ops::{Index, IndexMut};

use super::children::{Children, Spot, tag_of};
use super::compare::common_prefix;
use crate::cache::eviction::NodeUse;
use crate::pool::pages::{Edge, PageSize};
use crate::prefetch::prefetch;

/// Means "no node" wherever an index is stored.
pub(super) const NO_NODE: u32 = u32::MAX;

/// A node and the edge above it, in one cache line: all of a node that walks read. A root has no parent and no tokens.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// Whole pages of tokens, with the pages.
    pub edge: Edge,
    /// When a match or an insert last passed through the node.
    pub last_access: u64,
    pub parent: u32,
    pub n_children: u32,
    /// Locks on this node and below it.
    pub lock_ref: u32,
    /// The parent's lookup key for the node.
    tag: u32,
    /// The node's slot in the table of children.
    spot: Spot,
    /// How many requests inserted a key that contains the node.
    pub hits: u32,
    pub is_live: bool,
    /// True while the eviction order has an entry for the node.
    pub is_queued: bool,
    /// True if the node was used since that entry was made, so that its key may have changed.
    pub is_used_since: bool,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Node>() == 64, "a node fills one cache line");

/// The rest of a node's [`NodeUse`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    pub created: u64,
    pub priority: i64,
    pub start_tokens: u32,
    pub history_tokens: u32,
}

impl Node {
    fn new(parent: u32, edge: Edge, last_access: u64, hits: u32) -> Self {
        Self {
            edge,
            last_access,
            parent,
            n_children: 0,
            lock_ref: 0,
            tag: 0,
            spot: Spot::FAR,
            hits,
            is_live: true,
            is_queued: false,
            is_used_since: false,
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent == NO_NODE
    }

    pub(super) fn is_evictable(&self) -> bool {
        self.is_live && self.lock_ref == 0 && self.n_children == 0 && !self.is_root()
    }
}

pub(super) struct RemovedLeaf {
    pub edge: Edge,
    pub parent: u32,
    /// The parent has no other child.
    pub is_only_child: bool,
    /// The edge shares its buffer with the parent's edge.
    pub shares_buffer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub child: u32,
    /// Tokens that the edge and the key have in common: whole pages, at least one.
    pub common: usize,
    /// The tag of the key's next page after the edge, if a whole page follows.
    pub tag: Option<u32>,
}

/// All nodes of a tree. Indices of removed nodes are reused.
pub(super) struct Arena {
    nodes: Vec<Node>,
    stats: Vec<Stats>,
    free: Vec<u32>,
    children: Children,
    page_size: PageSize,
}

impl Arena {
    pub(super) fn new(page_size: PageSize) -> Self {
        Self {
            nodes: Vec::new(),
            stats: Vec::new(),
            free: Vec::new(),
            children: Children::default(),
            page_size,
        }
    }

    /// Number of nodes, roots included.
    pub(super) fn n_live(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.is_live)
    }

    /// Indices that were ever in use.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.nodes.len() as u32
    }

    pub(super) fn add_root(&mut self) -> u32 {
        self.insert_node(Node::new(NO_NODE, Edge::empty(), 0, 0), Stats::default())
    }

    /// Adds a node and links it to its parent, under `tag` if that is known.
    #[inline(always)]
    pub(super) fn add(&mut self, parent: u32, tag: Option<u32>, edge: Edge, usage: NodeUse) -> u32 {
        let stats = Stats {
            created: usage.created,
            priority: usage.priority,
            start_tokens: usage.start_tokens,
            history_tokens: usage.history_tokens,
        };
        let node = Node::new(parent, edge, usage.last_access, usage.hits);
        let index = self.insert_node(node, stats);
        self.link(index, tag);
        index
    }

    pub(super) fn usage(&self, index: u32) -> NodeUse {
        let (node, stats) = (&self[index], &self.stats[index as usize]);
        NodeUse {
            last_access: node.last_access,
            created: stats.created,
            hits: node.hits,
            priority: stats.priority,
            start_tokens: stats.start_tokens,
            history_tokens: stats.history_tokens,
        }
    }

    pub(super) fn mark_used(&mut self, index: u32) -> (&mut Node, &mut Stats) {
        let node = &mut self.nodes[index as usize];
        node.is_used_since = true;
        (node, &mut self.stats[index as usize])
    }

    /// Removes a root without children.
    pub(super) fn remove_root(&mut self, index: u32) {
        self[index].is_live = false;
        self.free.push(index);
    }

    /// Removes a leaf that is not a root.
    #[inline(always)]
    pub(super) fn remove_leaf(&mut self, index: u32) -> RemovedLeaf {
        let node = &mut self.nodes[index as usize];
        debug_assert!(node.n_children == 0 && node.lock_ref == 0);
        node.is_live = false;
        let edge = std::mem::replace(&mut node.edge, Edge::empty());
        let parent = node.parent;
        self.children.remove(node.tag, index, node.spot);
        self.free.push(index);
        let above = &mut self[parent];
        above.n_children -= 1;
        RemovedLeaf {
            parent,
            is_only_child: above.n_children == 0,
            shares_buffer: edge.shares_with(&above.edge),
            edge,
        }
    }

    /// The tag of the child of `parent` that `rest` leads into; `None` if `rest` is shorter than a page.
    #[inline]
    pub(super) fn tag_below(&self, parent: u32, rest: &[u32]) -> Option<u32> {
        let page = rest.get(..self.page_size.get())?;
        Some(tag_of(parent, page))
    }

    /// Finds the child of `parent` that continues with a page or more of `rest`. `tag` is the tag of that child.
    pub(super) fn step(&self, parent: u32, tag: Option<u32>, rest: &[u32]) -> Option<Step> {
        self.children.find(tag?, |child| {
            let node = &self[child];
            if node.parent != parent {
                return None;
            }
            let after = rest.get(node.edge.len()..);
            let tag = after.and_then(|after| self.tag_below(child, after));
            if let Some(tag) = tag {
                // Fetches the next lookup's memory while the edge is compared.
                self.children.prefetch(tag);
            }
            let common = common_prefix(node.edge.tokens(), rest);
            let common = self.page_size.floor(common);
            (common > 0).then_some(Step { child, common, tag })
        })
    }

    /// The child at this node's recorded spot.
    pub(super) fn at_spot_of(&self, index: u32) -> u32 {
        let node = &self[index];
        self.children.at(node.tag, index, node.spot)
    }

    /// Cuts a node after its first `at` tokens. The upper half is a new node, created `now`; the lower half
    /// keeps the index, and with it locks, children and its place in the eviction order.
    pub(super) fn split(&mut self, lower: u32, at: usize, now: u64) -> u32 {
        let (node, stats) = self.mark_used(lower);
        let upper_stats = Stats {
            created: now,
            ..*stats
        };
        stats.start_tokens += at as u32;
        let (parent, tag, spot) = (node.parent, node.tag, node.spot);
        let front = node.edge.cut_front(at);
        let mut upper = Node::new(parent, front, node.last_access, node.hits);
        upper.lock_ref = node.lock_ref;
        (upper.tag, upper.spot) = (tag, spot);
        let upper = self.insert_node(upper, upper_stats);
        self.children.replace(tag, lower, spot, upper);
        self[lower].parent = upper;
        self.link(lower, None);
        upper
    }

    /// Reads a node and its entry in the table of children, to bring both into the CPU cache. The value has no meaning.
    pub(super) fn preload(&self, index: u32) -> u32 {
        self.children.preload(self[index].tag)
    }

    /// Shrinks the buffer of `last`, whose tokens after that node were evicted, if enough of it is unused.
    #[inline(never)]
    pub(super) fn cut_buffer(&mut self, last: u32) {
        let Some(buffer) = self[last].edge.cut_buffer(self.page_size) else {
            return;
        };
        let mut at = last;
        loop {
            let parent = self[at].parent;
            let continues = parent != NO_NODE && self[at].edge.shares_with(&self[parent].edge);
            self[at].edge.move_to(buffer.clone());
            if !continues {
                return;
            }
            at = parent;
        }
    }

    /// Prefetches the memory of the next new node.
    #[inline]
    pub(super) fn prefetch_free(&self) {
        if let Some(&index) = self.free.last() {
            prefetch(&self[index]);
            prefetch(&self.stats[index as usize]);
        }
    }

    #[inline(always)]
    fn insert_node(&mut self, node: Node, stats: Stats) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let before = std::mem::replace(&mut self[index], node);
                debug_assert!(
                    before.edge.is_empty(),
                    "the edge of a removed node must be empty"
                );
                // Skips the drop of an empty edge, which would read memory that is in no CPU cache.
                std::mem::forget(before);
                self.stats[index as usize] = stats;
                index
            }
            None => {
                self.nodes.push(node);
                self.stats.push(stats);
                u32::try_from(self.nodes.len() - 1).expect("there are fewer nodes than page ids")
            }
        }
    }

    #[inline(always)]
    fn link(&mut self, index: u32, tag: Option<u32>) {
        let node = &self[index];
        let parent = node.parent;
        let tag = tag.or_else(|| self.tag_below(parent, node.edge.tokens()));
        let tag = tag.expect("an edge has at least one page");
        let nodes = &mut self.nodes;
        let on_move = |child: u32, spot| nodes[child as usize].spot = spot;
        let spot = self.children.insert(tag, index, on_move);
        let node = &mut self[index];
        (node.tag, node.spot) = (tag, spot);
        self[parent].n_children += 1;
    }
}

impl Index<u32> for Arena {
    type Output = Node;

    fn index(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }
}

impl IndexMut<u32> for Arena {
    fn index_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pool::pages::EdgeTokens;
    use crate::pool::pages::{PageIds, Pages, PoolLedger};
    use souffleur_base::ids::PageId;

    /// Different pages with equal tags below one parent.
    const COLLIDING: [[u32; 2]; 4] = [[0, 0], [1, 1 << 23], [2, 2 << 23], [3, 3 << 23]];

    fn add_child(arena: &mut Arena, parent: u32, page: &[u32]) -> u32 {
        let ledger = Arc::new(PoolLedger::new(arena.page_size));
        let mut pages = Pages::adopt(PageIds::from_slice(&[PageId::new(1)]), &ledger);
        let tokens = EdgeTokens {
            tokens: page,
            array: None,
        };
        let edge = Edge::new(tokens, &mut pages, 0, arena.page_size);
        let usage = arena.usage(parent);
        arena.add(parent, None, edge, usage)
    }

    #[test]
    fn children_with_colliding_tags_are_distinguished_in_any_order_of_removal() {
        let two = PageSize::new(2).expect("2 is positive");
        for removed in 0..COLLIDING.len() {
            let mut arena = Arena::new(two);
            let root = arena.add_root();
            let tags = COLLIDING.map(|page| tag_of(root, &page));
            assert_eq!(tags, [tags[0]; 4]);
            let children = COLLIDING.map(|page| add_child(&mut arena, root, &page));
            let find = |arena: &Arena| {
                COLLIDING.map(|page| arena.step(root, arena.tag_below(root, &page), &page))
            };
            let found = |child| {
                Some(Step {
                    child,
                    common: 2,
                    tag: None,
                })
            };
            assert_eq!(find(&arena), children.map(found));

            arena.remove_leaf(children[removed]);
            let mut expected = children.map(found);
            expected[removed] = None;
            assert_eq!(find(&arena), expected);

            for child in children
                .into_iter()
                .filter(|child| *child != children[removed])
            {
                arena.remove_leaf(child);
            }
            assert_eq!((find(&arena), arena[root].n_children), ([None; 4], 0));
            assert_eq!(arena.children.len(), 0);
        }
    }
}
