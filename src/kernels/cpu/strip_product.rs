//! Operands of a product of rows with a strip of weights (`strips`), and the sizes of both.

use super::panel::{PANEL, SUMS};

/// Outputs of a strip of [`MAX_PANELS`](super::panel::MAX_PANELS) panels.
pub const WIDE_STRIP: usize = SUMS / 2;
/// Outputs of a strip of fewer panels: four rows of them leave registers idle, but none waits for the sum before.
pub const NARROW_STRIP: usize = PANEL;
/// Most rows of a group, whose sums fill twelve registers.
pub const STRIP_ROWS: usize = 4;

/// A product of rows with a strip.
#[derive(Clone, Copy)]
pub struct StripProduct {
    /// Values of the rows, side by side for each input.
    pub rows: *const f32,
    /// Where rows are read next: a prefetch hint, which four rows with a wide strip follow, and any address will do.
    pub ahead: *const f32,
    /// Weights of each input, [`SUMS`] values from one to the next.
    pub strip: *mut f32,
    /// Inputs of both.
    pub inputs: usize,
    /// Whether the sums begin at zero.
    pub begins: bool,
    /// Sums of each row, [`SUMS`] values from one to the next.
    pub sums: *mut f32,
}
