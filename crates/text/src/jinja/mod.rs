//! Jinja as transformers configures it: Python's sandboxed environment with `trim_blocks`, `lstrip_blocks`, loop
//! controls and Python's values.
//!
//! A template and its values are not trusted. Rendering is bounded in instructions, memory, output and depth, and every
//! value counts its memory, so that no template ends the process. No general engine is used because those
//! bound only some of these and have no hook for the others, and their integers have at most 128 bits.

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
pub(super) use value::Value;

/// The limits of one rendering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Expressions and statements, and each 64 bytes that a function reads.
    pub(super) instructions: u64,
    /// Bytes of the values that the rendering makes.
    pub(super) memory_bytes: usize,
    pub(super) output_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Template(parser::Parsed);

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
