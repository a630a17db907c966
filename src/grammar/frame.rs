//! The structure around an answer: none, or messages with headers.

use crate::state::output::OutputStart;

/// The structure around an answer and its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerFrame {
    /// None.
    #[default]
    Bare,
    /// Messages with headers, of which the prompt leaves the output at this place.
    Messages(OutputStart),
}
