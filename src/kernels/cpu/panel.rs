//! Sizes of panels of weights, and of the tiles that multiply rows with them.

use std::mem::MaybeUninit;

/// Outputs in a panel.
pub const PANEL: usize = 16;
/// Inputs that share a scale in int8.
pub const INT8_GROUP: usize = 128;
/// Steps of such a group.
pub const INT8_STEPS: usize = INT8_GROUP / 4;

/// Most rows in a tile.
pub const MAX_ROWS: usize = 8;
/// Most panels in a tile. Eight rows by three panels keep 24 of 32 registers for sums and reuse their operands enough
/// to multiply in every cycle.
pub const MAX_PANELS: usize = 3;

/// Values from a row of sums to the next: those of up to [`MAX_PANELS`] panels.
pub const SUMS: usize = MAX_PANELS * PANEL;
/// Sums of a tile. Clearing them would cost about as much as writing them.
pub type Sums = MaybeUninit<[f32; SUMS * MAX_ROWS]>;
