//! The pieces that an output is parsed into: content, reasoning and calls.

/// One piece of an output, in order. Calls never interleave: [`CallArguments`](Self::CallArguments) belong to the
/// [`CallStart`](Self::CallStart) before them, up to the next piece of another kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPiece {
    Text(String),
    Reasoning(String),
    CallStart {
        name: String,
    },
    CallArguments(String),
    /// The call is complete. A truncated or broken call has no such piece.
    CallEnd,
    /// The call is invalid. Non-streaming answers contain its text instead; in streams it has no end.
    CallBroken {
        /// The whole text of the call so far, including its markers.
        text: String,
    },
}

impl OutputPiece {
    pub fn bytes(&self) -> usize {
        let text = match self {
            Self::Text(text) | Self::Reasoning(text) | Self::CallArguments(text) => text.len(),
            Self::CallBroken { text } => text.len(),
            Self::CallStart { name } => name.len(),
            Self::CallEnd => 0,
        };
        size_of::<Self>() + text
    }
}

/// Appends a piece; merges it with the last one if both are text, reasoning or arguments.
pub fn push_piece(pieces: &mut Vec<OutputPiece>, piece: OutputPiece) {
    match piece {
        OutputPiece::Text(text) => push_text(pieces, &text),
        OutputPiece::Reasoning(text) => push_reasoning(pieces, &text),
        OutputPiece::CallArguments(text) => push_arguments(pieces, &text),
        OutputPiece::CallStart { .. } | OutputPiece::CallEnd | OutputPiece::CallBroken { .. } => {
            pieces.push(piece);
        }
    }
}

pub(super) fn push_text(pieces: &mut Vec<OutputPiece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputPiece::Text(last)) => last.push_str(text),
        _ => pieces.push(OutputPiece::Text(text.to_owned())),
    }
}

pub(super) fn push_reasoning(pieces: &mut Vec<OutputPiece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputPiece::Reasoning(last)) => last.push_str(text),
        _ => pieces.push(OutputPiece::Reasoning(text.to_owned())),
    }
}

pub(super) fn push_arguments(pieces: &mut Vec<OutputPiece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputPiece::CallArguments(last)) => last.push_str(text),
        _ => pieces.push(OutputPiece::CallArguments(text.to_owned())),
    }
}
