//! Numbers that some families multiply their activations with.

use crate::kernels::rope::PositionScale;

/// The values that a factor may have.
pub(crate) const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// How fast queries may grow with their positions.
pub(crate) const SLOPES: std::ops::RangeInclusive<f64> = 0.0..=1e3;

/// The factors of a model; `None` where it has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scales {
    /// On embeddings.
    pub embedding: Option<f32>,
    /// On a block's output before the residual add.
    pub residual: Option<f32>,
    /// On attention's scores, instead of 1/sqrt of a query's elements.
    pub scores: Option<f32>,
    /// The divisor of logits.
    pub logits_divisor: Option<f32>,
    /// On queries, by their positions.
    pub queries: Option<PositionScale>,
}

impl Scales {
    /// No factor.
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

/// A factor that changes something.
pub(crate) fn unless_one(factor: f64) -> Option<f32> {
    Some(factor as f32).filter(|factor| *factor != 1.0)
}
