//! Renders Jinja templates as transformers does: in a sandboxed environment with `trim_blocks`, `lstrip_blocks`, loop
//! controls and Python's values.
//!
//! A template and its values are not trusted. The instructions, memory, output and nesting depth of a rendering are
//! limited, so that no template can crash the process. General Jinja engines have only some of these limits, no hooks
//! to add the others, and integers of at most 128 bits.

mod args;
mod ast;
mod characters;
mod checks;
mod compare;
mod error;
mod eval;
mod filters;
mod format;
mod json;
mod lexer;
mod literals;
mod meter;
mod methods;
mod number;
mod parser;
mod repr;
mod token;
mod value;

use rustc_hash::FxHashMap;

pub(super) use error::{Error, Fault};
pub(super) use value::{MAX_DEPTH, Value};

/// The limits of one rendering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Each expression, each statement and each 64 bytes that a function reads is one instruction.
    pub(super) instructions: u64,
    /// Bytes of the values that the rendering creates.
    pub(super) memory_bytes: usize,
    pub(super) output_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Template(parser::SyntaxTree);

impl Template {
    /// The error names the invalid or unsupported syntax, and its line.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        parser::parse(source).map(Self)
    }

    /// The error is the exception that Python would raise, or the exceeded limit, with its line.
    pub(super) fn render(
        &self,
        variables: &FxHashMap<String, Value>,
        limits: Limits,
    ) -> Result<String, Error> {
        eval::render(&self.0, variables, limits)
    }
}
