//! Formats texts with `%`, `str.format` and format specifications.

mod braces;
mod numbers;
mod printf;
mod spec;

/// Maximum width of a field, and maximum precision.
const MAX_WIDTH: usize = 1 << 20;
