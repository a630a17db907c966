//! Scale factors on activations, which some families configure.

use souffleur_kernels::rope::PositionScale;

pub(crate) const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// Limits of [`PositionScale`]'s slope.
pub(crate) const SLOPES: std::ops::RangeInclusive<f64> = 0.0..=1e3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scales {
    pub embedding: Option<f32>,
    /// Factor on a block's output, before the residual add.
    pub residual: Option<f32>,
    /// Factor on attention scores, instead of 1/sqrt of a query's elements.
    pub scores: Option<f32>,
    pub logits_divisor: Option<f32>,
    /// Factor on queries, by position.
    pub queries: Option<PositionScale>,
}

impl Scales {
    pub const NONE: Self = Self {
        embedding: None,
        residual: None,
        scores: None,
        logits_divisor: None,
        queries: None,
    };
}

/// Sizes that factors depend on.
pub(crate) struct Widths {
    pub hidden: usize,
    /// The model's context, in tokens.
    pub max_positions: usize,
}

/// `None` for a factor of 1.
pub(crate) fn unless_one(factor: f64) -> Option<f32> {
    Some(factor as f32).filter(|factor| *factor != 1.0)
}
