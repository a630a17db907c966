//! A matrix that consists of some rows of a quantised matrix.

use souffleur_kernels::tensor_view::RowOrder;

pub struct MatrixRows {
    pub whole: String,
    /// `[outputs, inputs]` of the quantised matrix.
    pub shape: [usize; 2],
    pub order: RowOrder,
    pub rows: usize,
}
