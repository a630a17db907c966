//! Calls of tools and reasoning, found in an output while it comes.
//!
//! A model writes its calls of tools and its thoughts into the same stream as its answer, each family in a format of
//! its own. The [`OutputEngine`] reads that stream and gives out [`OutputPiece`]s. **The pieces, merged, depend on the
//! whole output only, never on how it was cut**: the engine reads one character at a time, and decides on nothing
//! before it has read all of what decides.
//!
//! # Input
//! The input is an ordered sequence of text and of marker tokens. A marker (`<think>`, `<tool_call>`) that is one token
//! of the vocabulary counts only as that token; its letters as plain text are content. A marker without a token of
//! its own is recognised in the text. [`Markers`] says which is which. A marker token that means nothing where it
//! stands is text, and none if special tokens are hidden.
//!
//! # What is given out when
//! Text goes out at once, except for what may still be the start of a marker, and whitespace that may still be
//! dropped. An opening of a call is held until the name and the first character of the arguments have been read; then
//! the name goes out, and the arguments follow as they come.
//!
//! - **JSON arguments are given out unchanged**, byte by byte, up to the first character with which they are no JSON
//!   object. Arguments that are a JSON string are decoded; missing arguments, `null` and `""` are `{}`.
//! - **Arguments in other notations become JSON.** A parameter of Qwen3-Coder takes the type that the tool's schema
//!   gives it: a string streams, other values are held until they are complete and are strings if they do not parse.
//!   Values of Python (the pythonic format) are translated as they come.
//! - **A call is complete** ([`OutputPiece::CallEnd`]) when its last bracket has been read, whether or not the end tag
//!   follows. If what surrounds complete arguments is broken (a missing `}`), the call is complete all the same, as
//!   soon as something follows that does not belong. A call that the end of the output cuts has no end.
//! - **A name that no tool has** is a call as well: only the client can tell what to do with it.
//!
//! # Calls without the tag of the format
//! Models write calls in other forms than their templates ask for. A JSON object in the content that names a tool is a
//! call, alone, in a fence of Markdown, in a list, or between tags that llama.cpp's parser of the same name knows. Nothing else
//! tells that it is one, so it is held until it is whole and was found to be JSON, and it has nothing but what a call
//! has. It is none inside of a block of code of another language, in reasoning, and where the answer must follow a
//! constraint. The object of a strict tool must begin as a grammar knows it ([`strict_openings`]).
//!
//! # What is not a call
//! An opening that turns out not to be one, before its name has gone out, is text: its tag is emitted unchanged, and
//! reading resumes right after that tag. So is an opening in an output that ended by itself; one in an output that was
//! cut ([`OutputEnding::Cut`]), or that must call, is dropped, and so is the beginning of a tag after a call.
//!
//! A call whose arguments break off (a character that no JSON has there, a marker outside of a string, the end of an
//! output that ended by itself) is none either, and its name has gone out: it remains without an end, and
//! [`OutputPiece::CallBroken`] tells its text, for answers that are sent whole. Text goes on at the character that broke
//! it. The end tag of a call is dropped after a call, and is text after an opening that was text and after a call that
//! broke off. An end tag of nothing is text as letters and nothing as a token.
//!
//! Where something that is no call follows in a list, or after its calls, the bracket of the list is text before it.
//!
//! # Messages with headers
//! The outputs of gpt-oss are messages. A header names the channel of each: `analysis` is reasoning, `final` and
//! `commentary` are content, and a recipient that is a function makes it a call. Headers of messages are not given out.
//! A header that breaks off is text, its tag included; one that the end of the output cuts is dropped. Two messages of
//! one kind are parted by the end of a line. A call without arguments is complete when its message ends, also where the
//! token that ends it ends the output.
//!
//! # Reasoning
//! The start tag is understood at the start of the content, where nothing but whitespace came before it (since the
//! start of the output, the last reasoning or the last call), and at the start of the reasoning, where it is dropped.
//! Elsewhere it is text. The end tag may never come; then all is reasoning. An end tag in the content is dropped,
//! unless its start tag was text. A call ends the reasoning.
//!
//! # Whitespace
//! Newlines at both ends of reasoning are dropped, and those between reasoning and content: chat templates put them
//! back. So are newlines right before a call, and whitespace between a call and an end tag. Content between two calls,
//! before the first or after the last, that is only whitespace is dropped. All other whitespace is kept.
//!
//! # Bounds
//! Held input has a limit ([`MAX_HELD_CHARS`], [`MAX_VALUE_BYTES`]): beyond it, an opening is text, and a value is a
//! string. Nesting ends at [`MAX_DEPTH`]. The time is linear in the length of the output.

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
