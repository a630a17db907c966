//! Where a tensor lies in the files.

use std::ops::Range;

use crate::kernels::tensor_view::{RowOrder, Stored};

/// Where a tensor lies.
#[derive(Clone)]
pub(crate) struct Entry {
    /// Which of the files.
    pub file: usize,
    /// Its element type, or the name of one that has no kernels.
    pub stored: Result<Stored, String>,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of the file.
    pub range: Range<usize>,
    /// The order of its rows there.
    pub order: RowOrder,
}
