//! Matrices whose rows are some of those of a quantised one.

use crate::kernels::tensor_view::RowOrder;

/// A matrix whose rows are some of those of a quantised one.
pub struct PartOf {
    /// The name of that one.
    pub whole: String,
    /// The outputs and inputs of that one.
    pub shape: [usize; 2],
    /// Which rows these are, and how many.
    pub order: RowOrder,
    pub rows: usize,
}
