//! Structured output: grammars from what requests ask for, by the crate llguidance.
//!
//! A [`GrammarWish`] says what an output must be. [`GrammarCompiler`] turns it into a
//! [`Grammar`](crate::state::grammar::Grammar), aside from the engine, in three steps: the wish is checked and written
//! as a grammar in Lark with JSON schemas in it (`source`); llguidance compiles that, on a thread of its own
//! (`compiler`), unless an equal grammar is at hand (`cache`); and each output gets a copy of the compiled parser
//! (`state`).
//!
//! # What is promised
//! - **A finished output is in the language.** What a schema or a grammar asks for and this module cannot promise is
//!   refused with a reason, never dropped. Some texts of the language may be out of reach: `\u` escapes in JSON strings,
//!   and texts that a lexer which always takes the longest match does not find.
//! - **The mask depends on the grammar and the tokens only.** Limits end an output, and never change a mask.
//! - **The end of a sequence is allowed exactly where the grammar may end.** Markers (tokens that are more than their
//!   letters) are allowed only where the grammar names them; letters never stand for a marker that is a token.
//! - **A hostile grammar harms its request alone**: sizes, time, memory and stack are bounded.

mod cache;
mod compiler;
mod ebnf;
mod frame;
mod gate;
mod lexer_start;
mod limits;
mod markers;
mod part;
mod regex;
mod schema;
mod source;
mod state;
mod structural_tag;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;
mod wish;
mod words;
mod writer;

pub use compiler::{CompileNotes, GrammarCompiler};
pub use frame::AnswerFrame;
pub use limits::GrammarLimits;
pub use wish::{GrammarWish, ReasoningGate};
