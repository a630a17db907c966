//! Nodes by index, and the step from a node along a key.

use std::ops::{Index, IndexMut};

use super::children::{Children, tag_of};
use super::compare::common_prefix;
use super::edge::Edge;
use crate::ids::StepId;
use crate::state::eviction::NodeUse;
use crate::state::pages::PageSize;

/// Stands for "no node" wherever an index is stored.
pub(super) const NO_NODE: u32 = u32::MAX;

/// One edge and its lower end. A root has no parent and no tokens.
#[derive(Debug)]
pub(super) struct Node {
    pub parent: u32,
    pub n_children: u32,
    /// Locks on this node and below it.
    pub lock_ref: u32,
    /// True while the eviction order has an entry for the node.
    pub is_queued: bool,
    pub is_live: bool,
    pub usage: NodeUse,
    pub written_by: StepId,
    /// Whole pages of tokens, with the pages.
    pub edge: Edge,
    /// Under which the parent finds the node.
    tag: u32,
}

impl Node {
    pub(super) fn root() -> Self {
        let usage = NodeUse {
            last_access: 0,
            created: 0,
            hits: 0,
            priority: i64::MIN,
            start_tokens: 0,
            history_tokens: 0,
        };
        Self::new(NO_NODE, Edge::empty(), usage, StepId::new(0))
    }

    pub(super) fn new(parent: u32, edge: Edge, usage: NodeUse, written_by: StepId) -> Self {
        let (n_children, lock_ref, is_queued, is_live) = (0, 0, false, true);
        Self {
            parent,
            n_children,
            lock_ref,
            is_queued,
            is_live,
            usage,
            written_by,
            edge,
            tag: 0,
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent == NO_NODE
    }

    pub(super) fn is_evictable(&self) -> bool {
        self.is_live && self.lock_ref == 0 && self.n_children == 0 && !self.is_root()
    }
}

/// All nodes of a tree. Indices of removed nodes are used again.
pub(super) struct Arena {
    nodes: Vec<Node>,
    free: Vec<u32>,
    children: Children,
    page_size: PageSize,
}

impl Arena {
    pub(super) fn new(page_size: PageSize) -> Self {
        Self {
            nodes: Vec::new(),
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

    /// Adds a node and, unless it is a root, makes it findable from its parent.
    pub(super) fn add(&mut self, node: Node) -> u32 {
        let is_root = node.is_root();
        let index = self.place(node);
        if !is_root {
            self.link(index);
        }
        index
    }

    /// Removes a node without children and returns its parent and its edge.
    pub(super) fn remove(&mut self, index: u32) -> (u32, Edge) {
        let node = &mut self.nodes[index as usize];
        debug_assert!(node.n_children == 0 && node.lock_ref == 0);
        node.is_live = false;
        let edge = std::mem::replace(&mut node.edge, Edge::empty());
        let (parent, tag) = (node.parent, node.tag);
        if parent != NO_NODE {
            self.children.remove(tag, index);
            self[parent].n_children -= 1;
        }
        self.free.push(index);
        (parent, edge)
    }

    /// Returns the child of `parent` that `rest` leads into and how many tokens they share: whole pages, at
    /// least one.
    pub(super) fn step(&self, parent: u32, rest: &[u32]) -> Option<(u32, usize)> {
        let page = rest.get(..self.page_size.get())?;
        self.children.find(tag_of(parent, page)).find_map(|child| {
            let node = &self[child];
            if node.parent != parent {
                return None;
            }
            let common = self
                .page_size
                .floor(common_prefix(node.edge.tokens(), rest));
            (common > 0).then_some((child, common))
        })
    }

    /// Cuts a node after its first `at` tokens. The upper half is a new node, created `now`; the lower half
    /// keeps the index, and with it locks, children and its place in the eviction order.
    pub(super) fn split(&mut self, lower: u32, at: usize, now: u64) -> u32 {
        let node = &mut self[lower];
        let usage = NodeUse {
            created: now,
            ..node.usage
        };
        node.usage.start_tokens += at as u32;
        let (parent, tag) = (node.parent, node.tag);
        let mut upper = Node::new(parent, node.edge.cut_front(at), usage, node.written_by);
        upper.lock_ref = node.lock_ref;
        upper.tag = tag;
        let upper = self.place(upper);
        self.children.replace(tag, lower, upper);
        self[lower].parent = upper;
        self.link(lower);
        upper
    }

    /// Reads a node, for its memory to be near; the value means nothing.
    pub(super) fn glance(&self, index: u32) -> u32 {
        let node = &self[index];
        node.parent ^ node.tag ^ node.usage.last_access as u32 ^ node.edge.len() as u32
    }

    /// Reads what a node refers to and its removal touches; the value means nothing.
    pub(super) fn glance_behind(&self, index: u32) -> u32 {
        let node = &self[index];
        self.children.glance(node.tag) ^ node.edge.glance(self.page_size)
    }

    /// What stood behind `last` in its buffer was evicted: cuts the buffer if that is worth it.
    pub(super) fn cut_buffer(&mut self, last: u32) {
        let Some(buffer) = self[last].edge.cut_buffer(self.page_size) else {
            return;
        };
        let mut at = last;
        loop {
            let parent = self[at].parent;
            let goes_on = parent != NO_NODE && self[at].edge.shares_with(&self[parent].edge);
            self[at].edge.move_to(buffer.clone());
            if !goes_on {
                return;
            }
            at = parent;
        }
    }

    fn place(&mut self, node: Node) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("there are fewer nodes than page ids")
            }
        }
    }

    fn link(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let parent = node.parent;
        let tag = tag_of(parent, &node.edge.tokens()[..self.page_size.get()]);
        node.tag = tag;
        self.children.insert(tag, index);
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
    use crate::ids::PageId;
    use crate::state::pages::{PageIds, Pages, PoolLedger};

    /// Different pages that hash alike below one parent.
    const COLLIDING: [[u32; 2]; 4] = [[0, 0], [1, 1 << 23], [2, 2 << 23], [3, 3 << 23]];

    fn add_child(arena: &mut Arena, parent: u32, page: &[u32]) -> u32 {
        let ledger = Arc::new(PoolLedger::default());
        let mut pages = Pages::adopt(PageIds::from_slice(&[PageId::new(1)]), &ledger);
        let edge = Edge::new(page, &mut pages, 0, arena.page_size);
        let usage = Node::root().usage;
        arena.add(Node::new(parent, edge, usage, StepId::new(0)))
    }

    #[test]
    fn children_whose_pages_hash_alike_are_told_apart_in_any_order_of_removal() {
        let two = PageSize::new(2).expect("2 is positive");
        for removed in 0..COLLIDING.len() {
            let mut arena = Arena::new(two);
            let root = arena.add(Node::root());
            let tags = COLLIDING.map(|page| tag_of(root, &page));
            assert_eq!(tags, [tags[0]; 4]);
            let children = COLLIDING.map(|page| add_child(&mut arena, root, &page));
            let find = |arena: &Arena| COLLIDING.map(|page| arena.step(root, &page));
            assert_eq!(find(&arena), children.map(|child| Some((child, 2))));

            arena.remove(children[removed]);
            let mut expected = children.map(|child| Some((child, 2)));
            expected[removed] = None;
            assert_eq!(find(&arena), expected);

            for child in children
                .into_iter()
                .filter(|child| *child != children[removed])
            {
                arena.remove(child);
            }
            assert_eq!((find(&arena), arena[root].n_children), ([None; 4], 0));
            assert_eq!(arena.children.len(), 0);
        }
    }
}
