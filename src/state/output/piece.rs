//! The pieces that an output consists of.

/// One piece of an output, in order. Calls never interleave: what follows a [`CallStart`](Self::CallStart) up to the
/// next piece that is no [`CallArguments`](Self::CallArguments) belongs to that call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPiece {
    /// Content.
    Text(String),
    /// Thoughts.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// The name of the function, whole.
        name: String,
    },
    /// The next part of the arguments of the call, which are JSON.
    CallArguments(String),
    /// The call is complete. A call that was cut or that broke off has none.
    CallEnd,
    /// The call broke off, and is none. Whole answers have its text in place of it; in streams it remains without an end.
    CallBroken {
        /// All of the call as far as it was read, its markers among it.
        text: String,
    },
}

impl OutputPiece {
    /// About how many bytes it takes.
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

/// Appends a piece, as a part of the last one if both are text, reasoning or arguments.
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
