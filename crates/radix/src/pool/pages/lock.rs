//! `NodeLock`: protects cached pages from eviction while it exists.

use std::fmt;
use std::sync::Arc;

use super::PoolLedger;

/// A held `lock_ref` on a tree node and all its ancestors. Move-only, one per sequence.
///
/// While it lives, the pages of the locked path are neither evicted nor moved; where layers have windows, nor are the
/// window pages at the end of the path, unless [`take_windows`](Self::take_windows) took that part.
#[must_use]
pub struct NodeLock {
    node: Option<u32>,
    part: LockPart,
    ledger: Option<Arc<PoolLedger>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockPart {
    /// The path, and the window pages at its end.
    Whole,
    Path,
    Windows,
}

impl NodeLock {
    /// The lock on the root: it protects nothing and may be dropped.
    pub const fn root() -> Self {
        Self {
            node: None,
            part: LockPart::Whole,
            ledger: None,
        }
    }

    pub(crate) fn on(node: u32, ledger: &Arc<PoolLedger>) -> Self {
        Self {
            node: Some(node),
            part: LockPart::Whole,
            ledger: Some(ledger.clone()),
        }
    }

    /// The arena index of the locked node, `None` for the root.
    pub fn node(&self) -> Option<u32> {
        self.node
    }

    pub(crate) fn part(&self) -> LockPart {
        self.part
    }

    /// Splits off the part that keeps window pages: a separate lock, to be released too. `None` without that part.
    pub fn take_windows(&mut self) -> Option<Self> {
        if self.node.is_none() || self.part != LockPart::Whole {
            return None;
        }
        self.part = LockPart::Path;
        Some(Self {
            node: self.node,
            part: LockPart::Windows,
            ledger: self.ledger.clone(),
        })
    }

    /// Hands the lock to the tree, which decrements `lock_ref`.
    pub(crate) fn surrender(mut self) -> Option<u32> {
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
