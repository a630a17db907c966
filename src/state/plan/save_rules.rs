//! Where rows leave copies of their states, and by which rules.

use crate::state::pool::state_pool::{SaveReason, StateLimits};

/// A place in an extent where the row's state is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveAt {
    /// How many tokens the state has seen: whole pages.
    pub position: usize,
    /// Why there.
    pub reason: SaveReason,
}

/// How states are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRules {
    /// The memory.
    pub limits: StateLimits,
    /// Tokens a page.
    pub page_size: usize,
    /// States are saved after multiples of so many tokens: whole pages, and blocks where there is a store for them.
    pub grain: usize,
}
