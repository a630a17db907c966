//! The message log: the inputs and outcomes of the Scheduler's state, in its order, so that another machine can replay
//! a decision.
//!
//! - [`scheduler`]: the actor's only access to its state; one method per input, which writes it
//! - [`entry`] and [`digest`]: the records
//! - [`file`](mod@file): blocks with length and checksum; [`sink`]: the thread that writes them
//! - [`replay`](mod@replay): runs the states on a log and compares them call by call
//!
//! The states use no randomness and no clock, so the calls determine everything. Three inputs have no message: raised
//! cancel flags ([`entry::Entry::CancelsSeen`]), the clock for expiring pins ([`entry::Entry::ExpirePins`]), and step
//! durations that bound steps ([`entry::Entry::StepTook`]). Tree and pools have no inputs but the plans, one at a time,
//! and need no entries: a replay runs a plan at its answer's entry.
//!
//! **A new input of the state** is a method in [`scheduler`] (the actor has no other access), a variant of
//! [`entry::Entry`], and an arm in [`replay`](mod@replay); the compiler checks the last two.

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
