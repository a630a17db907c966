//! Answers taken apart into text, reasoning and tool calls.

mod format;
mod piece;
mod tools;

pub use format::ToolFormat;
pub use piece::{OutputPiece, push_piece};
pub use tools::{Tool, ToolChoice, ToolUse};
