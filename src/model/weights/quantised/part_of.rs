//! A matrix that consists of some rows of a quantised one.

use souffleur_kernels::tensor_view::RowOrder;

pub struct PartOf {
    pub whole: String,
    /// `[outputs, inputs]` of that matrix.
    pub shape: [usize; 2],
    pub order: RowOrder,
    pub rows: usize,
}
