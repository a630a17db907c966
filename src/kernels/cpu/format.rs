//! How weights and activations lie in memory for a product.
//!
//! **Weights** stand in panels of sixteen outputs. A panel is a sequence of *steps*; a step holds the weights of one,
//! two or four successive inputs for all sixteen outputs, one lane an output. **Activations** stand in groups of rows
//! (see [`group_rows`]); a step of a group is one 32-bit word a row, holding the same inputs. A product walks both in
//! one direction.
//!
//! | format | inputs in a step | a panel's step | a row's word |
//! |---|---|---|---|
//! | f32 | 1 | 16 x f32 | f32 |
//! | f16 | 1 | 16 x f16 | f32 |
//! | bf16 | 2 | 16 x (bf16, bf16) | (bf16, bf16) |
//! | int8 | 4 | 16 x (u8 = q + 128) x 4 | 4 x i8 |
//!
//! int8 has a header before each [`INT8_GROUP`] inputs: a panel's is sixteen f32 scales, a row group's is each row's
//! f32 scale, then each row's i32 correction, -128 times the sum of its quantised activations.
//! Inputs are padded with zeros to whole steps (int8: whole groups), outputs to whole panels.

use crate::kernels::dtype::{Dtype, Quantization};
use crate::kernels::tensor_view::Stored;

/// Outputs in a panel.
pub const PANEL: usize = 16;
/// Inputs that share a scale.
pub const INT8_GROUP: usize = 128;
/// Steps of such a group.
pub const INT8_STEPS: usize = INT8_GROUP / 4;

/// An encoding of activations, which products with several formats may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// Pairs of 16-bit brain floats.
    Bf16,
    /// Signed bytes with a scale for each row and `INT8_GROUP` inputs.
    Int8,
}

impl Encoding {
    /// Words of a row of activations.
    pub fn row_words(self, inputs: usize) -> usize {
        match self {
            Self::F32 => inputs,
            Self::Bf16 => inputs.div_ceil(2),
            Self::Int8 => inputs.div_ceil(INT8_GROUP) * (INT8_STEPS + 2),
        }
    }
}

/// The formats of a backend's matrices.
#[derive(Clone, Copy, Debug)]
pub struct FormatRule {
    /// The format of weights that are stored one by one.
    plain: Format,
}

impl FormatRule {
    /// The formats of a model that runs in `dtype`.
    pub fn new(dtype: Dtype, quantization: Option<Quantization>) -> Self {
        Self {
            plain: Format::new(dtype, quantization),
        }
    }

    /// One format for all.
    #[cfg(test)]
    pub fn all(format: Format) -> Self {
        Self { plain: format }
    }

    /// The format of weights that are stored so.
    pub fn format(self, stored: Stored) -> Format {
        match stored {
            Stored::Plain(_) | Stored::Blocks(_) => self.plain,
        }
    }
}

/// An encoding of weights, with the activations that go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats, activations in f32.
    F16,
    /// 16-bit brain floats, activations rounded to them.
    Bf16,
    /// Signed bytes with a scale for each output and `INT8_GROUP` inputs, activations quantised likewise.
    Int8,
}

impl Format {
    /// The format of a model's matrices.
    pub fn new(dtype: Dtype, quantization: Option<Quantization>) -> Self {
        match (quantization, dtype) {
            (Some(Quantization::Int8), _) => Self::Int8,
            (None, Dtype::F32) => Self::F32,
            (None, Dtype::F16) => Self::F16,
            (None, Dtype::BF16) => Self::Bf16,
        }
    }

    /// Steps over `inputs` inputs, headers not counted.
    pub fn steps(self, inputs: usize) -> usize {
        match self {
            Self::F32 | Self::F16 => inputs,
            Self::Bf16 => inputs.div_ceil(2),
            Self::Int8 => inputs.div_ceil(INT8_GROUP) * INT8_STEPS,
        }
    }

    /// Words of a panel.
    pub fn panel_words(self, inputs: usize) -> usize {
        let steps = self.steps(inputs);
        match self {
            Self::F32 | Self::Bf16 => steps * PANEL,
            Self::F16 => steps * PANEL / 2,
            Self::Int8 => steps * PANEL + steps / INT8_STEPS * PANEL,
        }
    }

    /// The encoding of activations that its products read.
    pub fn encoding(self) -> Encoding {
        match self {
            Self::F32 | Self::F16 => Encoding::F32,
            Self::Bf16 => Encoding::Bf16,
            Self::Int8 => Encoding::Int8,
        }
    }
}

/// Cuts `rows` rows into groups of nearly equal size, none above `max`; returns the number of groups.
pub fn n_groups(rows: usize, max: usize) -> usize {
    rows.div_ceil(max)
}

/// The rows of a group.
pub fn group_rows(group: usize, n_groups: usize, rows: usize) -> std::ops::Range<usize> {
    group * rows / n_groups..(group + 1) * rows / n_groups
}
