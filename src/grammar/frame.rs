//! The structure around an answer: none, or messages with headers.

use souffleur_state::output::OutputStart;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerFrame {
    #[default]
    Bare,
    /// Messages with headers, of which the prompt leaves the output at this place.
    Messages(OutputStart),
}
