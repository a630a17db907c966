//! Operands and sizes of matrix products with strips of weights (`strips`).

use super::panel::{PANEL, SUMS};

/// Outputs of a strip of [`MAX_PANELS`](super::panel::MAX_PANELS) panels.
pub const WIDE_STRIP: usize = SUMS / 2;
/// Outputs of a strip of a single panel. Four rows leave registers idle, but no sum waits for the previous sum.
pub const NARROW_STRIP: usize = PANEL;
/// Maximum rows of a group: their sums fill twelve registers.
pub const STRIP_ROWS: usize = 4;

#[derive(Clone, Copy)]
pub struct StripProduct {
    /// Values of the rows, which are adjacent for each input.
    pub rows: *const f32,
    /// Prefetch hint, any address: the rows that are read next. Used only by four rows with a wide strip.
    pub ahead: *const f32,
    /// Weights of each input, with a stride of [`SUMS`] values.
    pub strip: *mut f32,
    pub inputs: usize,
    /// Whether these are the first inputs, so that the sums start from zero.
    pub begins: bool,
    /// Sums of each row, with a stride of [`SUMS`].
    pub sums: *mut f32,
}
