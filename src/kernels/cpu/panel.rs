//! Sizes of weight panels and of matrix-product tiles.

use std::mem::MaybeUninit;

pub const PANEL: usize = 16;
/// Inputs that share a scale in int8.
pub const INT8_GROUP: usize = 128;
pub const INT8_STEPS: usize = INT8_GROUP / 4;

pub const MAX_ROWS: usize = 8;
/// Eight rows by three panels: sums take 24 of 32 registers, and operands are reused enough to multiply in every cycle.
pub const MAX_PANELS: usize = 3;

pub const SUMS: usize = MAX_PANELS * PANEL;
/// Uninitialised: clearing would cost about as much as writing.
pub type Sums = MaybeUninit<[f32; SUMS * MAX_ROWS]>;
