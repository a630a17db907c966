//! Changes of a prefix cache's nodes, in order, for observers that track the cache's content.
//!
//! Applying all changes in order to an empty set gives the nodes of the cache.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::namespace::Namespace;
use crate::pool::pages::EdgeBuffer;

/// A change. Nodes are identified by numbers; the number of a removed node may be reused.
#[derive(Debug)]
pub enum CacheChange {
    /// A new node has the K/V of these tokens.
    Stored {
        node: u32,
        above: Above,
        /// Whole pages.
        tokens: NodeTokens,
    },
    /// A node was split in two. The cached tokens stay the same.
    Split {
        /// The new node, with the first tokens and the old node's parent.
        upper: u32,
        /// The old node, with the other tokens and its children.
        lower: u32,
        /// Number of tokens of the upper node: whole pages.
        at: usize,
    },
    Removed {
        node: u32,
    },
    /// Earlier changes are void: every node was removed, or will be reported again.
    Cleared,
}

impl CacheChange {
    /// Tokens that the change keeps in memory.
    pub fn n_tokens(&self) -> usize {
        match self {
            Self::Stored { tokens, .. } => tokens.get().len(),
            Self::Split { .. } | Self::Removed { .. } | Self::Cleared => 0,
        }
    }
}

/// A change without its tokens, for observers that count them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeNote {
    Stored {
        node: u32,
        above: Above,
        tokens: usize,
    },
    Split {
        upper: u32,
        lower: u32,
        at: usize,
    },
    Removed {
        node: u32,
    },
    Cleared,
}

impl From<CacheChange> for TreeNote {
    fn from(change: CacheChange) -> Self {
        match change {
            CacheChange::Stored {
                node,
                above,
                tokens,
            } => Self::Stored {
                node,
                above,
                tokens: tokens.get().len(),
            },
            CacheChange::Split { upper, lower, at } => Self::Split { upper, lower, at },
            CacheChange::Removed { node } => Self::Removed { node },
            CacheChange::Cleared => Self::Cleared,
        }
    }
}

/// Who records a tree's changes. Each takes them at its own pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observer {
    /// The publisher of KV events.
    Publisher,
    /// The server's console.
    Console,
}

impl Observer {
    pub(crate) const COUNT: usize = 2;
}

/// The parent of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Above {
    /// No parent: the node's tokens are the start of prompts in this namespace.
    Root(Namespace),
    Node(u32),
}

/// Tokens of a node, shared with the cache.
#[derive(Clone, Debug)]
pub struct NodeTokens {
    buffer: EdgeBuffer,
    range: Range<u32>,
}

impl NodeTokens {
    /// A copy of `tokens`, which no tree shares.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` tokens.
    pub fn new(tokens: &[u32]) -> Self {
        let end = u32::try_from(tokens.len()).expect("a node must have fewer than 2^32 tokens");
        Self::part_of((EdgeBuffer::Short(Arc::from(tokens)), 0..end))
    }

    pub(crate) fn part_of((buffer, range): (EdgeBuffer, Range<u32>)) -> Self {
        Self { buffer, range }
    }

    pub fn get(&self) -> &[u32] {
        &self.buffer.tokens()[self.range.start as usize..self.range.end as usize]
    }
}
