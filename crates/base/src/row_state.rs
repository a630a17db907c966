//! The recurrent state of a row: the slots that a step reads, writes and copies.

use crate::ids::StateSlot;

/// A row's initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStart {
    /// The slot that the row's steps read and write.
    pub live: StateSlot,
    /// The state after the prefix, which is copied to `live` before the row computes; `None` for a row without a
    /// prefix, whose slot is zeroed, since it holds another sequence's state.
    pub from: Option<StateSlot>,
}

/// A copy of a row's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// Number of tokens in the state: more than before the row's work, at most as many as after it.
    pub position: u32,
    /// The destination slot.
    pub slot: StateSlot,
}
