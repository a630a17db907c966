//! How an output ended: complete or truncated.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputEnding {
    /// Ended by the model, a stop string or a grammar: the output is complete.
    Whole,
    /// Ended by its length or a cancellation: the output is truncated.
    Cut,
}
