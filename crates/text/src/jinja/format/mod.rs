//! Formatting of texts: `%`, `str.format` and format specifications.

mod braces;
mod numbers;
mod printf;
mod spec;

/// Widest field and most digits.
const MAX_WIDTH: usize = 1 << 20;
