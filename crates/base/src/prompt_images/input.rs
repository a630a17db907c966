//! The pixels from which the vectors of an image are computed.

use std::fmt;

use super::ImageGrid;

/// The pixels of an image, as the vision tower needs them. Only the executor reads the patches.
pub trait ImageInput: fmt::Debug + Send + Sync {
    /// Number of pictures that the tower encodes one after another: 1, or the tiles and the thumbnail of a large image.
    fn n_views(&self) -> usize;

    /// Rows and columns of patches of a view, from 0 on.
    fn grid(&self, view: usize) -> ImageGrid;

    /// The values of a view's patches, `[rows * columns, values of a patch]`, in the tower's order. They are computed when
    /// this is called, since they take several times the memory of the pixels.
    fn patches(&self, view: usize) -> Vec<f32>;

    /// Bytes of memory that this holds.
    fn bytes(&self) -> usize;
}
