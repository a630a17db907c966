//! The place of a tensor in the files.

use std::ops::Range;

use crate::kernels::tensor_view::{RowOrder, Stored};

/// The place, type and shape of a tensor.
#[derive(Clone)]
pub(crate) struct Entry {
    /// Which of the files.
    pub file: usize,
    /// Its element type, or the name of one without kernels.
    pub stored: Result<Stored, String>,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of the file.
    pub range: Range<usize>,
    /// The order of its rows there.
    pub order: RowOrder,
}
