//! The message log: records the inputs and outcomes of the Scheduler's state, so that decisions can be replayed.
//!
//! - [`scheduler`]: the actor's only access to its state; a method for each input writes the input to the log
//! - [`entry`] and [`digest`]: the records of the log
//! - [`file`](mod@file): the file format; [`sink`]: the thread that writes the file
//! - [`replay`](mod@replay): repeats the calls in a log and compares their outcomes
//!
//! The states use no randomness and no clock, so the calls determine all outcomes. Three inputs arrive without a
//! message: raised cancel flags ([`entry::Entry::CancelsSeen`]), the clock for timeouts ([`entry::Entry::ExpirePins`],
//! [`entry::Entry::ExpireRequests`]), and step durations that bound later steps ([`entry::Entry::StepTook`]). The only
//! inputs of the tree and the pools are plans, one at a time, which have no entries of their own: a replay runs a plan
//! when it reads the entry of the answer.
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
