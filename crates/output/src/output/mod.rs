//! Streaming parser for tool calls and reasoning in an output.
//!
//! A model writes tool calls and reasoning into the same stream as its answer, in a format specific to its family. The
//! [`OutputEngine`] parses that stream into [`OutputPiece`]s. **The merged pieces depend only on the whole output, not
//! on its chunks**: the engine reads one character at a time, and decides only once it has read all relevant input.
//!
//! # Input
//! The input is an ordered sequence of text and marker tokens. A marker (`<think>`, `<tool_call>`) that is one token of
//! the vocabulary counts only as that token; its letters as plain text are content. A marker without a token is
//! recognised in the text. [`Markers`] distinguishes the two. A marker token in a place where it has no meaning is
//! text, or is dropped if special tokens are hidden.
//!
//! # When pieces are emitted
//! Text is emitted at once, except for a possible beginning of a marker, and whitespace that may still be dropped. The
//! opening of a call is held until the name and the first character of the arguments have been read; then the name is
//! emitted, and the arguments stream.
//!
//! - **JSON arguments are emitted unchanged**, byte by byte, up to the first character that makes the JSON object
//!   invalid. Arguments that are a JSON string are decoded; missing arguments, `null` and `""` are `{}`.
//! - **Arguments in other notations become JSON.** A parameter of Qwen3-Coder takes its type from the tool's schema: a
//!   string streams, other values are held until they are complete and are strings if they do not parse. Values of
//!   Python (the pythonic format) are translated while they stream.
//! - **A call is complete** ([`OutputPiece::CallEnd`]) after its last bracket, with or without the end tag. If the
//!   object around complete arguments is broken (a missing `}`), the call is still complete at the first character that
//!   does not belong to it. A truncated call has no end.
//! - **A call with an unknown name** is still a call: the client decides how to handle it.
//!
//! # Calls without the tag of the format
//! Models also write calls in other forms than their templates specify. A JSON object in the content that names a tool
//! is a call: alone, in a Markdown fence, in a list, or between tags that llama.cpp also accepts around calls. It
//! is held until it is whole and valid JSON, and it must have only the keys of a call. Objects in reasoning, in answers
//! constrained to JSON, and in code blocks of languages other than JSON and XML are not calls. The object of a strict
//! tool must begin in a form that the grammar accepts ([`strict_openings`]).
//!
//! # Openings that are not calls
//! An opening that turns out to be invalid before its name was emitted is text: its tag is emitted unchanged, and
//! parsing resumes right after that tag. The same holds for an opening at the end of a complete output. If the output
//! was truncated ([`OutputEnding::Cut`]) or must call a tool, the opening is dropped, as is the beginning of a tag
//! after a call.
//!
//! A call whose arguments become invalid (an illegal character, a marker outside a string, the end of a complete
//! output) is not a call either, but its name was emitted: it has no end, and [`OutputPiece::CallBroken`] has its text,
//! for non-streaming answers. Text resumes at the offending character. The end tag of a call is dropped after a call,
//! and is text after an opening that was text and after a broken call. An unmatched end tag is text if it came as
//! characters, and is dropped if it came as a token.
//!
//! If an item that is not a call follows the calls of a list, the list's opening bracket is emitted before the item.
//!
//! # Messages with headers
//! The outputs of gpt-oss are messages. The channel in each header selects the part: `analysis` is reasoning, `final`
//! and `commentary` are content, and a function as recipient makes a call. Headers are not emitted. An invalid header
//! is text, including its tag; a truncated one is dropped. A newline separates two messages of one kind. A call without
//! arguments is complete when its message ends, even if the token that ends it ends the output.
//!
//! # Reasoning
//! The start tag is recognised at the start of the content, if only whitespace precedes it (since the start of the
//! output, the last reasoning or the last call), and at the start of the reasoning, where it is dropped. Elsewhere it
//! is text. Without an end tag, the whole rest is reasoning. An end tag in the content is dropped, unless its start tag
//! was text. A call ends the reasoning.
//!
//! # Whitespace
//! Newlines at both ends of reasoning are dropped, as are those between reasoning and content: chat templates restore
//! them. So are newlines right before a call, and whitespace between a call and an end tag. Whitespace-only content
//! between two calls, before the first or after the last is dropped. All other whitespace is kept.
//!
//! # Bounds
//! Held input is limited ([`MAX_HELD_CHARS`], [`MAX_VALUE_BYTES`]): beyond the limit, an opening is text, and a value
//! is a string. Nesting is limited by [`MAX_DEPTH`]. The time is linear in the length of the output.

mod braced;
mod call;
mod closers;
mod code;
mod content;
mod ending;
mod engine;
mod escape;
mod format;
mod json;
mod keyed;
mod lexer;
mod loose;
mod markers;
mod named;
mod number;
mod object;
mod parameters;
mod piece;
mod python;
mod schema;
mod separated;
mod start;
mod syntax;
#[cfg(test)]
mod tests;
mod thinking;
mod tools;
mod xml;

pub use ending::OutputEnding;
pub use engine::{MAX_HELD_CHARS, OutputEngine};
pub use format::{OutputFormats, ReasoningFormat, ToolFormat};
pub use json::MAX_DEPTH;
pub use loose::{loose_strict_tools, strict_openings};
pub use markers::Markers;
pub use parameters::MAX_VALUE_BYTES;
pub use piece::{OutputPiece, push_piece};
pub use start::OutputStart;
pub use tools::{Tool, ToolChoice, ToolUse};
