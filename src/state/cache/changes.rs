//! How the nodes of a prefix cache change, told in order to whoever keeps an account of what is cached.
//!
//! Applied one after the other, from an empty account on, the changes give the nodes that the cache has.

use std::ops::Range;
use std::sync::Arc;

use crate::state::cache::namespace::Namespace;
use crate::state::pool::pages::EdgeBuffer;

/// A change. Nodes are named by numbers, which are used again once their nodes are gone.
#[derive(Debug)]
pub enum CacheChange {
    /// A node holds the K/V of tokens from now on.
    Stored {
        /// The node.
        node: u32,
        /// The node or root above it.
        above: Above,
        /// Whole pages.
        tokens: NodeTokens,
    },
    /// A node was cut in two. Nothing is cached more or less.
    Split {
        /// Has the first tokens from now on, and stands where the node stood.
        upper: u32,
        /// The node: has the others, and everything that was below.
        lower: u32,
        /// How many tokens are the upper one's, in whole pages.
        at: usize,
    },
    /// A node without others below it is gone, with all that it held.
    Removed {
        /// The node.
        node: u32,
    },
    /// Every node is gone, or is told again from here on.
    Cleared,
}

impl CacheChange {
    /// How many tokens the change holds on to.
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
    /// Nothing: its tokens begin a prefix in this namespace.
    Root(Namespace),
    /// Another node.
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
        let end = u32::try_from(tokens.len()).expect("a node has fewer than 2^32 tokens");
        Self::part_of((EdgeBuffer::Short(Arc::from(tokens)), 0..end))
    }

    pub(in crate::state) fn part_of((buffer, range): (EdgeBuffer, Range<u32>)) -> Self {
        Self { buffer, range }
    }

    /// The tokens.
    pub fn get(&self) -> &[u32] {
        &self.buffer.tokens()[self.range.start as usize..self.range.end as usize]
    }
}
