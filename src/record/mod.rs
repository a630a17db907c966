//! The message log: what enters the control plane, in the order in which the Scheduler's state takes it, and what comes
//! out, so that a decision can be replayed on another machine.
//!
//! - [`scheduler`]: the only way by which the actor reaches its state; one method for each input, which writes it
//! - [`entry`] and [`digest`]: what is written
//! - [`file`](mod@file): blocks with length and checksum; [`sink`]: the thread that writes them
//! - [`replay`](mod@replay): the same states on what was written, compared call by call
//!
//! Nothing random and no clock is inside the states, so the calls decide everything. Three inputs come in no message: when a
//! raised cancel flag was seen ([`entry::Entry::CancelsSeen`]), the clock that pins expire by ([`entry::Entry::ExpirePins`]), and
//! how long steps took, where they are bounded by time ([`entry::Entry::StepTook`]). The tree and the pools have no inputs but the plans, one at a time, so that they need
//! no entries: a replay runs them at the call that brought their answer.
//!
//! **A new input of the state** is a method in [`scheduler`] (the actor has no other way to it), a variant of
//! [`entry::Entry`], and an arm in [`replay`](mod@replay); the compiler asks for the last two.

pub mod diff;
pub mod digest;
pub mod entry;
pub mod file;
pub mod replay;
pub mod scheduler;
pub mod sink;

#[cfg(test)]
mod tests;

pub use replay::{Replayed, replay};
pub use scheduler::RecordedScheduler;
pub use sink::{LogSink, Recorder};
