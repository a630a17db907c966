//! The pixels from which the vectors of an image are computed.

use std::fmt;
use std::ops::Range;

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

    /// The values of those of a view's patches with these indices, `[indices.len(), values of a patch]`. The tower asks
    /// for a block at a time, so that its memory and its first step stay small; by default all patches are computed and
    /// the others dropped.
    fn patches_in(&self, view: usize, indices: Range<usize>) -> Vec<f32> {
        let (all, grid) = (self.patches(view), self.grid(view));
        let n_patches = grid.rows as usize * grid.columns as usize;
        let dim = all.len() / n_patches.max(1);
        let part = all.get(indices.start * dim..indices.end * dim);
        part.unwrap_or_default().to_vec()
    }

    /// Bytes of memory that this holds.
    fn bytes(&self) -> usize;
}
