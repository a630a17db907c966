//! Nodes by index, and the lookup from a node and a page of tokens to the child that starts with it.

use std::ops::{Index, IndexMut};

use rustc_hash::FxHashMap;

use super::slice::{Slice, common_prefix};
use crate::ids::{PageId, StepId};
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
    /// Whole pages of tokens.
    pub tokens: Slice<u32>,
    /// One id for each page of `tokens`.
    pub pages: Slice<PageId>,
    /// The hash under which the parent finds the node, and the next node with the same hash.
    hash: u64,
    twin: u32,
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
        Self::new(
            NO_NODE,
            Slice::empty(),
            Slice::empty(),
            usage,
            StepId::new(0),
        )
    }

    pub(super) fn new(
        parent: u32,
        tokens: Slice<u32>,
        pages: Slice<PageId>,
        usage: NodeUse,
        written_by: StepId,
    ) -> Self {
        let (hash, twin) = (0, NO_NODE);
        let (n_children, lock_ref, is_queued, is_live) = (0, 0, false, true);
        Self {
            parent,
            n_children,
            lock_ref,
            is_queued,
            is_live,
            usage,
            written_by,
            tokens,
            pages,
            hash,
            twin,
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
    /// The first node under each hash of (parent, first page of tokens).
    children: FxHashMap<u64, u32>,
    page_size: PageSize,
}

impl Arena {
    pub(super) fn new(page_size: PageSize) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            children: FxHashMap::default(),
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
        let index = match self.free.pop() {
            Some(index) => {
                self[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("there are fewer nodes than page ids")
            }
        };
        if !is_root {
            self.link(index);
        }
        index
    }

    /// Removes a node without children and returns its parent and its pages.
    pub(super) fn remove(&mut self, index: u32) -> (u32, Slice<PageId>) {
        debug_assert!(self[index].n_children == 0 && self[index].lock_ref == 0);
        let parent = self[index].parent;
        if parent != NO_NODE {
            self.unlink(index);
        }
        let node = &mut self[index];
        node.is_live = false;
        node.tokens = Slice::empty();
        let pages = std::mem::replace(&mut node.pages, Slice::empty());
        self.free.push(index);
        (parent, pages)
    }

    /// Returns the child of `parent` that `rest` leads into and how many tokens they share: whole pages, at
    /// least one.
    pub(super) fn step(&self, parent: u32, rest: &[u32]) -> Option<(u32, usize)> {
        let page = rest.get(..self.page_size.get())?;
        let mut child = *self.children.get(&hash(parent, page))?;
        while child != NO_NODE {
            let node = &self[child];
            if node.parent == parent {
                let common = self.page_size.floor(common_prefix(node.tokens.get(), rest));
                if common > 0 {
                    return Some((child, common));
                }
            }
            child = node.twin;
        }
        None
    }

    /// Cuts a node after its first `at` tokens. The upper half is a new node, created `now`; the lower half
    /// keeps the index, and with it locks, children and its place in the eviction order.
    pub(super) fn split(&mut self, lower: u32, at: usize, now: u64) -> u32 {
        self.unlink(lower);
        let n_pages = self.page_size.full_pages(at);
        let node = &mut self[lower];
        let (tokens, pages) = (node.tokens.cut_front(at), node.pages.cut_front(n_pages));
        let usage = NodeUse {
            created: now,
            ..node.usage
        };
        node.usage.start_tokens += at as u32;
        let mut upper = Node::new(node.parent, tokens, pages, usage, node.written_by);
        upper.lock_ref = node.lock_ref;
        let upper = self.add(upper);
        self[lower].parent = upper;
        self.link(lower);
        upper
    }

    fn link(&mut self, index: u32) {
        let page = &self[index].tokens.get()[..self.page_size.get()];
        let parent = self[index].parent;
        let hash = hash(parent, page);
        let twin = self.children.insert(hash, index).unwrap_or(NO_NODE);
        let node = &mut self[index];
        (node.hash, node.twin) = (hash, twin);
        self[parent].n_children += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Node {
            hash, twin, parent, ..
        } = self[index];
        self[parent].n_children -= 1;
        let mut before = self.children[&hash];
        if before == index {
            match twin {
                NO_NODE => self.children.remove(&hash),
                twin => self.children.insert(hash, twin),
            };
            return;
        }
        while self[before].twin != index {
            before = self[before].twin;
        }
        self[before].twin = twin;
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

/// Hashes a parent and a page. With one token a page nothing is lost, so the hash is exact.
fn hash(parent: u32, page: &[u32]) -> u64 {
    const ODD: u64 = 0xf135_7aea_2e62_a9c5;
    let start = u64::from(parent) << 32 | u64::from(page[0]);
    page[1..].iter().fold(start, |hash, &token| {
        (hash.rotate_left(23) ^ u64::from(token)).wrapping_mul(ODD)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Different pages that hash alike below one parent.
    const COLLIDING: [[u32; 2]; 4] = [[0, 0], [1, 1 << 23], [2, 2 << 23], [3, 3 << 23]];

    fn add_child(arena: &mut Arena, parent: u32, page: &[u32]) -> u32 {
        let (tokens, pages) = (Slice::new(page), Slice::new(&[PageId::new(1)]));
        let usage = Node::root().usage;
        arena.add(Node::new(parent, tokens, pages, usage, StepId::new(0)))
    }

    #[test]
    fn children_whose_pages_hash_alike_are_told_apart_in_any_order_of_removal() {
        let two = PageSize::new(2).expect("2 is positive");
        for removed in 0..COLLIDING.len() {
            let mut arena = Arena::new(two);
            let root = arena.add(Node::root());
            let hashes = COLLIDING.map(|page| hash(root, &page));
            assert_eq!(hashes, [hashes[0]; 4]);
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
            assert!(arena.children.is_empty());
        }
    }
}
