//! A copy of the prefix tree's nodes with the sums of their subtrees, kept up to date by notes of changes.

use super::names::Names;
use souffleur_state::cache::changes::{Above, TreeNote};

/// Means "no node" in the links of nodes.
const NONE: u32 = u32::MAX;

/// A change of a picture, for its animation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeEvent {
    Stored { node: u32, tokens: u64 },
    Split { upper: u32, lower: u32, at: u64 },
    Removed { node: u32, tokens: u64 },
    Cleared,
}

/// A node. Children are a doubly linked list, since a node may have as many as the tree has nodes.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    first_child: u32,
    next: u32,
    previous: u32,
    tokens: u64,
    below_tokens: u64,
    below_nodes: u64,
    /// The number of the namespace, of a node without a parent.
    namespace: i64,
}

/// What a picture shows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeSums {
    pub(crate) parent: Option<u32>,
    pub(crate) tokens: u64,
    pub(crate) below_tokens: u64,
    pub(crate) below_nodes: u64,
    pub(crate) namespace: i64,
}

impl NodeSums {
    /// Tokens of the node and of all nodes below it.
    pub(crate) fn size(&self) -> u64 {
        self.tokens + self.below_tokens
    }
}

/// Numbers of nodes, and of their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) nodes: u64,
    pub(crate) tokens: u64,
}

pub(crate) struct Mirror {
    nodes: Vec<Option<Node>>,
    first_root: u32,
    total: Sums,
    names: Names,
}

impl Default for Mirror {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            first_root: NONE,
            total: Sums::default(),
            names: Names::default(),
        }
    }
}

impl Mirror {
    /// Applies a change, and returns its event. Notes of unknown nodes change nothing.
    pub(crate) fn apply(&mut self, note: &TreeNote) -> Option<TreeEvent> {
        match *note {
            TreeNote::Stored {
                node,
                ref above,
                tokens,
            } => self.store(node, above, tokens as u64),
            TreeNote::Split { upper, lower, at } => self.split(upper, lower, at as u64),
            TreeNote::Removed { node } => self.remove(node),
            TreeNote::Cleared => {
                self.nodes.clear();
                self.first_root = NONE;
                self.total = Sums::default();
                self.names = Names::default();
                Some(TreeEvent::Cleared)
            }
        }
    }

    pub(crate) fn total(&self) -> Sums {
        self.total
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn sums_of(&self, node: u32) -> Option<NodeSums> {
        let node = self.node(node)?;
        Some(NodeSums {
            parent: some(node.parent),
            tokens: node.tokens,
            below_tokens: node.below_tokens,
            below_nodes: node.below_nodes,
            namespace: node.namespace,
        })
    }

    /// The nodes without a parent.
    pub(crate) fn roots(&self) -> impl Iterator<Item = u32> {
        self.list(self.first_root)
    }

    pub(crate) fn children_of(&self, node: u32) -> impl Iterator<Item = u32> {
        self.list(self.node(node).map_or(NONE, |node| node.first_child))
    }

    /// The nodes above `node`, from its parent up.
    pub(crate) fn above(&self, node: u32) -> impl Iterator<Item = u32> {
        let parent_of = |node: &u32| self.node(*node).and_then(|node| some(node.parent));
        std::iter::successors(parent_of(&node), parent_of)
    }

    fn list(&self, first: u32) -> impl Iterator<Item = u32> {
        let next_of = |node: &u32| self.node(*node).and_then(|node| some(node.next));
        std::iter::successors(some(first), next_of)
    }

    fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node as usize)?.as_ref()
    }

    fn node_mut(&mut self, node: u32) -> Option<&mut Node> {
        self.nodes.get_mut(node as usize)?.as_mut()
    }

    fn store(&mut self, node: u32, above: &Above, tokens: u64) -> Option<TreeEvent> {
        let (parent, namespace) = match above {
            Above::Root(namespace) => (NONE, self.names.enter(namespace)),
            Above::Node(parent) => {
                self.node(*parent)?;
                (*parent, 0)
            }
        };
        debug_assert!(self.node(node).is_none(), "node {node} is stored twice");
        let index = node as usize;
        if index >= self.nodes.len() {
            self.nodes.resize_with(index + 1, || None);
        }
        self.nodes[index] = Some(Node {
            parent,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            tokens,
            below_tokens: 0,
            below_nodes: 0,
            namespace,
        });
        self.link(node, parent);
        self.total.nodes += 1;
        self.total.tokens += tokens;
        self.each_above(node, |above| {
            above.below_nodes += 1;
            above.below_tokens += tokens;
        });
        Some(TreeEvent::Stored { node, tokens })
    }

    /// The upper node takes the place of the lower one, whose parent it becomes.
    fn split(&mut self, upper: u32, lower: u32, at: u64) -> Option<TreeEvent> {
        let old = *self.node(lower)?;
        debug_assert!(self.node(upper).is_none() && at < old.tokens);
        let at = at.min(old.tokens);
        self.unlink(lower, old);
        let index = upper as usize;
        if index >= self.nodes.len() {
            self.nodes.resize_with(index + 1, || None);
        }
        self.nodes[index] = Some(Node {
            first_child: NONE,
            next: NONE,
            previous: NONE,
            tokens: at,
            below_tokens: old.below_tokens + old.tokens - at,
            below_nodes: old.below_nodes + 1,
            ..old
        });
        self.link(upper, old.parent);
        if let Some(node) = self.node_mut(lower) {
            node.parent = upper;
            node.tokens = old.tokens - at;
            node.namespace = 0;
        }
        self.link(lower, upper);
        self.total.nodes += 1;
        self.each_above(upper, |above| above.below_nodes += 1);
        Some(TreeEvent::Split { upper, lower, at })
    }

    fn remove(&mut self, node: u32) -> Option<TreeEvent> {
        let old = *self.node(node)?;
        debug_assert!(old.first_child == NONE, "only leaves are removed");
        let tokens = old.tokens;
        self.each_above(node, |above| {
            above.below_nodes -= 1;
            above.below_tokens -= tokens;
        });
        self.unlink(node, old);
        self.nodes[node as usize] = None;
        self.total.nodes -= 1;
        self.total.tokens -= tokens;
        if old.parent == NONE {
            self.names.leave(old.namespace);
        }
        Some(TreeEvent::Removed { node, tokens })
    }

    fn each_above(&mut self, node: u32, mut change: impl FnMut(&mut Node)) {
        let mut at = self.node(node).map_or(NONE, |node| node.parent);
        while let Some(above) = self.node_mut(at) {
            change(above);
            at = above.parent;
        }
    }

    /// The first link of the list of the children of `parent`, or of the nodes without a parent.
    fn first_of(&mut self, parent: u32) -> &mut u32 {
        match self.nodes.get_mut(parent as usize) {
            Some(Some(parent)) => &mut parent.first_child,
            _ => &mut self.first_root,
        }
    }

    fn link(&mut self, node: u32, parent: u32) {
        let next = std::mem::replace(self.first_of(parent), node);
        if let Some(next) = self.node_mut(next) {
            next.previous = node;
        }
        if let Some(node) = self.node_mut(node) {
            (node.next, node.previous) = (next, NONE);
        }
    }

    /// Takes a node out of its list.
    fn unlink(
        &mut self,
        node: u32,
        Node {
            parent,
            next,
            previous,
            ..
        }: Node,
    ) {
        debug_assert!(previous != NONE || *self.first_of(parent) == node);
        match self.node_mut(previous) {
            Some(previous) => previous.next = next,
            None => *self.first_of(parent) = next,
        }
        if let Some(next) = self.node_mut(next) {
            next.previous = previous;
        }
    }
}

fn some(node: u32) -> Option<u32> {
    (node != NONE).then_some(node)
}
