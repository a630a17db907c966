//! Recurrent states of a row: the slots that a step reads, writes and copies.

use crate::ids::StateSlot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStart {
    /// Read and written by the row's steps.
    pub live: StateSlot,
    /// The state after the prefix, copied to `live` first; `None` zeroes `live`, which holds another sequence's state.
    pub from: Option<StateSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// Number of tokens in the state: more than before the step, at most as many as after it.
    pub position: u32,
    pub slot: StateSlot,
}
