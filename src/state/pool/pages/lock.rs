//! A hold on cached pages.

use std::fmt;
use std::sync::Arc;

use super::PoolLedger;

/// A held `lock_ref` on a tree node and all its ancestors. Move-only, one per sequence.
///
/// While it lives, the pages of the locked path are neither evicted nor moved.
#[must_use]
pub struct NodeLock {
    node: Option<u32>,
    ledger: Option<Arc<PoolLedger>>,
}

impl NodeLock {
    /// The lock on the root: it protects nothing and may be dropped.
    pub const fn root() -> Self {
        Self {
            node: None,
            ledger: None,
        }
    }

    /// Records a lock taken on the node with arena index `node`.
    pub(in crate::state) fn on(node: u32, ledger: &Arc<PoolLedger>) -> Self {
        Self {
            node: Some(node),
            ledger: Some(ledger.clone()),
        }
    }

    /// Returns the arena index of the locked node, `None` for the root.
    pub(in crate::state) fn node(&self) -> Option<u32> {
        self.node
    }

    /// Gives the lock up to the tree, which decrements `lock_ref`.
    pub(in crate::state) fn surrender(mut self) -> Option<u32> {
        self.node.take()
    }
}

impl Default for NodeLock {
    fn default() -> Self {
        Self::root()
    }
}

impl fmt::Debug for NodeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "NodeLock({node})"),
            None => f.write_str("NodeLock(root)"),
        }
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        if let (Some(_), Some(ledger)) = (self.node, &self.ledger) {
            ledger.lose_lock();
        }
    }
}
