//! The operations of a vision tower that decoders lack.
//!
//! A tensor has rows of one image. Each element of each result depends on that image only, and the order of every sum
//! follows from the image's shape: results do not depend on threads, on work between two operations, or on the number
//! of rows that an operation gets at a time.
//!
//! An image is encoded in several steps. [`VisionOps::upload`], [`VisionOps::keep`] and [`VisionOps::image_keys`] make
//! the tensors that last from one to the next. They have memory of their own, which is freed with the last of them.

use crate::Backend;

/// An activation without a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// The approximation by tanh.
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
}

/// For [`VisionOps::layer_norm`].
pub struct LayerNorm<B: Backend> {
    /// `[width]`.
    pub weight: B::Vector,
    /// `[width]`.
    pub bias: B::Vector,
    pub eps: f32,
}

/// The heads of an image's queries, keys and values, all of equal width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageHeads {
    pub n_heads: usize,
    pub head_dim: usize,
    /// Factor on scores.
    pub scale: f32,
}

impl ImageHeads {
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }
}

/// The keys and values of all patches of an image, in the backend's order.
pub struct ImageKeys<B: Backend> {
    pub kept: B::Tensor,
    pub n_patches: usize,
}

/// The patches of an image may be divided into blocks, each a tensor. All but the last one have a multiple of this
/// number of patches.
pub const BLOCK_PATCHES: usize = 16;

/// Columns of a tensor, from `first` on; each operation says how many.
pub struct Columns<'a, T> {
    pub rows: &'a T,
    pub first: usize,
}

impl<T> Clone for Columns<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Columns<'_, T> {}

/// The order of values in a row that [`VisionOps::join_rows`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOrder {
    /// Rows are concatenated.
    Rows,
    /// The first columns of all rows, then the second columns.
    Columns,
}

/// A grid of patches, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchGrid {
    /// Rows.
    pub h: usize,
    /// Columns.
    pub w: usize,
}

impl PatchGrid {
    pub fn n_patches(&self) -> usize {
        self.h * self.w
    }
}

/// Operations of vision towers.
pub trait VisionOps: Backend + Sized {
    /// Copies rows of `width` values from the host.
    ///
    /// # Panics
    /// If the values are not whole rows.
    fn upload(&mut self, values: &[f32], width: usize) -> Self::Tensor;

    /// Copies columns, in memory that lasts for several steps.
    ///
    /// # Shapes
    /// Columns and result: `[n, width]`.
    fn keep(&mut self, x: Columns<'_, Self::Tensor>, width: usize) -> Self::Tensor;

    /// Copies all rows to the host.
    fn download(&mut self, x: &Self::Tensor) -> Vec<f32>;

    /// `(x - mean) / sqrt(variance + eps) * weight + bias` of each row.
    fn layer_norm(&mut self, x: &Self::Tensor, norm: &LayerNorm<Self>) -> Self::Tensor;

    fn activate(&mut self, x: &mut Self::Tensor, activation: Activation);

    /// `activation(gates) * ups`.
    ///
    /// # Shapes
    /// Both `[n, width]`, which is the result's shape.
    fn gate(
        &mut self,
        gates: Columns<'_, Self::Tensor>,
        ups: Columns<'_, Self::Tensor>,
        width: usize,
        activation: Activation,
    ) -> Self::Tensor;

    /// Clamps each value to the bounds.
    fn clamped(&mut self, x: &Self::Tensor, bounds: [f32; 2]) -> Self::Tensor;

    /// `(x - bias) * factor`, column by column.
    ///
    /// # Shapes
    /// `bias` and `factor`: `[width]`.
    fn standardize(&mut self, x: &mut Self::Tensor, bias: &Self::Vector, factor: &Self::Vector);

    /// RMSNorm of each of `n_heads` adjacent heads, as wide as the weight, from column `first` on.
    fn norm_heads(
        &mut self,
        x: &mut Self::Tensor,
        heads: (usize, usize),
        norm: (&Self::Vector, f32),
    );

    /// Applies RoPE to the first `n_heads` heads of each row. In each block of `block` elements of a head, element i of the
    /// first half and element i of the second half are a pair.
    ///
    /// # Shapes
    /// `rotations: [n, head_dim]`: the cosines of a head's pairs, in order, then their sines.
    fn rotate_heads(
        &mut self,
        x: &mut Self::Tensor,
        n_heads: usize,
        rotations: &Self::Tensor,
        block: usize,
    );

    /// Memory for the keys and values of an image.
    fn image_keys(&mut self, n_patches: usize, heads: &ImageHeads) -> ImageKeys<Self>;

    /// Keeps the keys and values of a block of patches, of which the first has the index `first`.
    ///
    /// # Shapes
    /// Keys and values: `[n, width]` each.
    ///
    /// # Panics
    /// If the block does not begin at a multiple of [`BLOCK_PATCHES`], or ends neither at a multiple nor at the image's
    /// end.
    fn keep_keys(
        &mut self,
        keys: &mut ImageKeys<Self>,
        first: usize,
        keys_values: [Columns<'_, Self::Tensor>; 2],
        heads: &ImageHeads,
    );

    /// Attention of patches to all patches of their image, whose keys and values were kept.
    ///
    /// # Shapes
    /// Queries: `[n, width]`, which is the result's shape.
    fn attend_image(
        &mut self,
        queries: Columns<'_, Self::Tensor>,
        keys: &ImageKeys<Self>,
        heads: &ImageHeads,
    ) -> Self::Tensor;

    /// Copies rows, by their indices, from blocks with consecutive rows. All blocks but the last have the first one's
    /// number of rows.
    ///
    /// # Shapes
    /// Blocks: `[n, width]` each; result `[rows.len(), width]`.
    ///
    /// # Panics
    /// If there is no block, or an index is out of range.
    fn gather_rows(&mut self, blocks: &[&Self::Tensor], rows: &[u32]) -> Self::Tensor;

    /// Joins rows in groups of `group`, in the order of `rows`, their indices.
    ///
    /// # Shapes
    /// `x: [n, width]`; result `[rows.len() / group, group * width]`.
    fn join_rows(
        &mut self,
        x: &Self::Tensor,
        rows: &[u32],
        group: usize,
        order: JoinOrder,
    ) -> Self::Tensor;

    /// The means of squares of `side` x `side` patches, row by row of squares.
    ///
    /// # Shapes
    /// `x: [grid.h * grid.w, width]`; result `[grid.h / side * (grid.w / side), width]`.
    fn pool(&mut self, x: &Self::Tensor, grid: PatchGrid, side: usize) -> Self::Tensor;
}
