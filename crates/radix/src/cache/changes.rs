//! Changes of a prefix cache's nodes, in order, for observers that track the cache's content.
//!
//! Applied in order to an empty set, the changes give the nodes of the cache.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::namespace::Namespace;
use crate::pool::pages::EdgeBuffer;

/// A change. Nodes are named by numbers, which are reused once their nodes are removed.
#[derive(Debug)]
pub enum CacheChange {
    /// A node holds the K/V of tokens from now on.
    Stored {
        node: u32,
        above: Above,
        /// Whole pages.
        tokens: NodeTokens,
    },
    /// A node was cut in two. The cached tokens stay the same.
    Split {
        /// The new node, which has the first tokens and takes the old node's place.
        upper: u32,
        /// The old node, which keeps the other tokens and its children.
        lower: u32,
        /// Number of tokens of the upper node: whole pages.
        at: usize,
    },
    Removed {
        node: u32,
    },
    /// Every node was removed, or is reported again from here on.
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

/// The place above a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Above {
    /// No node: its tokens begin a prefix in this namespace.
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
    /// Tokens of a node that is in no tree.
    ///
    /// # Panics
    /// If there are more than `u32::MAX`.
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
