//! Location, type and shape of a tensor in the files.

use std::ops::Range;

use souffleur_kernels::tensor_view::{RowOrder, Stored};

#[derive(Clone)]
pub(crate) struct Entry {
    pub file: usize,
    /// The element type, or the name of a type without kernels.
    pub stored: Result<Stored, String>,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub range: Range<usize>,
    pub order: RowOrder,
}
