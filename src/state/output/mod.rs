//! Answers taken apart into text, reasoning and tool calls.

mod piece;
mod tools;

pub use piece::{OutputPiece, push_piece};
pub use tools::{Tool, ToolChoice, ToolUse};
