//! Positions at which a row's recurrent state is copied, and the rules for the copies.

use crate::pool::state_pool::{SaveReason, StateLimits};

/// A position in a row's chunk (its prefill tokens in one step) at which the row's state is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveAt {
    /// Number of tokens that the state covers: whole pages.
    pub position: usize,
    pub reason: SaveReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRules {
    pub limits: StateLimits,
    pub page_size: usize,
    /// States are saved at multiples of this many tokens: the page size, or with a KV store its block size.
    pub grain: usize,
}
