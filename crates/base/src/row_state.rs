//! Recurrent states of a row: the slots that a step reads, writes and copies.

use crate::ids::StateSlot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStart {
    /// Read and written by the row's steps.
    pub live: StateSlot,
    /// The state after the cached prefix, copied to `live` first. With `None`, `live` is zeroed instead.
    pub from: Option<StateSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// Tokens that the state covers: more than before the step, at most as many as after it.
    pub position: u32,
    pub slot: StateSlot,
}
