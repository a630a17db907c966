//! The way in which an output ended.

/// Whether the model ended an output, or something else did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputEnding {
    /// The model did, or a stop string or a grammar: there is nothing more to it.
    Whole,
    /// Its length did, or a cancellation: more would have come.
    Cut,
}
