//! The pieces of an answer.

/// One piece of an answer, in the order of the answer. Calls do not interleave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPiece {
    /// Text of the answer proper.
    Text(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// The function's name, whole.
        name: String,
    },
    /// A part of the call's arguments, as JSON.
    CallArguments(String),
    /// The call is complete.
    CallEnd,
}

impl OutputPiece {
    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let text = match self {
            Self::Text(text) | Self::Reasoning(text) | Self::CallArguments(text) => text.len(),
            Self::CallStart { name } => name.len(),
            Self::CallEnd => 0,
        };
        size_of::<Self>() + text
    }
}

/// Appends a piece; text that continues the last piece is merged with it.
pub fn push_piece(pieces: &mut Vec<OutputPiece>, piece: OutputPiece) {
    use OutputPiece::{CallArguments, Reasoning, Text};
    match (pieces.last_mut(), &piece) {
        (Some(Text(text)), Text(more))
        | (Some(Reasoning(text)), Reasoning(more))
        | (Some(CallArguments(text)), CallArguments(more)) => text.push_str(more),
        _ => pieces.push(piece),
    }
}
