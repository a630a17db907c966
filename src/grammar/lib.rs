//! Structured output: compiles the constraints of requests to grammars with llguidance.
//!
//! A [`GrammarWish`] describes the required form of an output. [`GrammarCompiler`] turns it into a
//! [`Grammar`](souffleur_state::grammar::Grammar), outside of the engine, in three steps: it checks the constraints and
//! writes them as a Lark grammar with JSON schemas (`source`); unless the cache has an equal grammar (`cache`),
//! llguidance compiles it on a separate thread (`compiler`); and each output gets a copy of the parser (`state`).
//!
//! # Guarantees
//! - **A finished output is in the language.** This module refuses constraints that it cannot enforce, with a reason,
//!   and never drops one. Some texts of the language may be unreachable: `\u` escapes in JSON strings, and texts that a
//!   longest-match lexer misses.
//! - **The mask depends on the grammar and the tokens only.** Limits end an output, and never change a mask.
//! - **The end of a sequence is allowed exactly where the grammar may end.** Markers (special and added tokens) are
//!   allowed only where the grammar names them. Ordinary tokens with the same letters cannot replace a marker.
//! - **A hostile grammar affects only its own request**: sizes, time, memory and stack are bounded.

mod cache;
mod compiler;
mod ebnf;
mod frame;
mod gate;
mod lexer_start;
mod limits;
mod literals;
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
