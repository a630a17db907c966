//! Recurrent states of a row: the slots that a step reads, writes and copies.

use crate::ids::StateSlot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStart {
    /// The slot that the row's steps read and write.
    pub live: StateSlot,
    /// The state after the cached prefix, copied to `live` first. With `None`, `live` is zeroed instead.
    pub from: Option<StateSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// Number of the sequence's tokens after which the state is copied; the step computes the last of them.
    pub position: u32,
    pub slot: StateSlot,
}
