//! Defines the structure around an answer: none, or gpt-oss messages with headers.

use souffleur_state::output::OutputStart;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerFrame {
    #[default]
    Bare,
    /// Messages with headers, in which the output starts at the given point.
    Messages(OutputStart),
}
