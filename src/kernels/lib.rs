//! The compute backends: [`Backend`], the trait of a decoder's operations, and its CPU and CUDA implementations.
//!
//! Models are written against [`Backend`], which has tensors, weights, layers and the rows of a step, but no requests,
//! sampling or scheduling. Parameter types are in [`dtype`], [`latent`], [`tensor_view`], [`random`], [`rope`],
//! [`shape`], [`shard`] and [`sparsity`]; model files are out of scope. [`vision`] adds the operations of vision towers. `kernels/README.md` lists each kernel and its
//! CPU version.

#![cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports))]

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod gemm;
pub mod latent;
pub mod random;
pub mod recurrent;
pub mod rope;
pub mod routing;
pub mod shape;
pub mod shard;
pub mod sparsity;
pub mod vision;

use self::blocks::BlockType;
use self::dtype::MatrixRole;
use self::latent::{LatentShape, LatentWeights};
use self::random::RandomTensor;
use self::recurrent::{DeltaNetWeights, GatedConvWeights};
use self::rope::{PositionScale, Rope};
use self::routing::Routing;
use self::shard::Shard;
use self::tensor_view::TensorView;
use souffleur_base::kv_layout::Values;
pub use souffleur_gguf::{blocks, dtype, tensor_view};

/// The operations of a decoder, on one device.
///
/// A tensor is a row-major matrix of activations with one row per query token of the step, in the backend's compute
/// type. No operation returns data to the host, and operations may be asynchronous: a device backend enqueues them. A
/// failure is sticky and reported by the executor when it reads the logits.
///
/// **Batch invariance.** On the CPU each element of each result depends only on its own token's row and history, bit
/// for bit: the order of a reduction follows from positions alone, not from other rows of the step or the thread count.
pub trait Backend {
    /// Activations, `[n_tokens, width]`. Dropping one frees its memory.
    type Tensor;
    /// Activations as the input of a projection, `[n_tokens, width]`, possibly encoded to match its weights.
    type Operand;
    /// A weight matrix, `[outputs, inputs]`.
    type Matrix: Send;
    /// A norm's weight or a bias, `[width]`.
    type Vector: Send;
    type Rope: Send;
    type Experts: Send;
    type HeadMatrices: Send;
    type Routes;
    /// The query tokens of a step: tokens, positions, KV slots, rows and their pages.
    type Batch;
    type TokenList: ?Sized;

    /// Loads weights from the host, several matrices of equal width stacked, in order; `roles` gives each one's use.
    ///
    /// # Shapes
    /// Each part `[outputs_i, inputs]`; the result is `[sum of outputs_i, inputs]`.
    fn matrix(&mut self, parts: &[TensorView<'_>], roles: &[MatrixRole]) -> Self::Matrix;

    /// Whether products of this role read blocks of this type natively. If not, a loader that has more precise values
    /// may provide those instead.
    fn keeps_blocks(&self, _block: BlockType, _role: MatrixRole) -> bool {
        false
    }

    /// Marks a matrix of which this rank has a part. If it has a part of the inputs, products are summed over all ranks
    /// before they are used; if it has a part of the outputs, logits are gathered from all ranks.
    ///
    /// # Panics
    /// By default, if the matrix is divided.
    fn mark_sharded(&mut self, matrix: Self::Matrix, shard: Shard) -> Self::Matrix {
        assert_eq!(shard, Shard::Whole, "the backend must support ranks");
        matrix
    }

    /// As [`Self::matrix`], with random elements, the same on every device.
    fn random_matrix(&mut self, parts: &[RandomTensor], roles: &[MatrixRole]) -> Self::Matrix {
        let bytes: Vec<Vec<u8>> = parts.iter().map(RandomTensor::bytes).collect();
        let views = parts.iter().zip(&bytes);
        let views: Vec<TensorView<'_>> = views.map(|(part, bytes)| part.view(bytes)).collect();
        self.matrix(&views, roles)
    }

    /// Concatenates the parts in order.
    fn vector(&mut self, parts: &[TensorView<'_>]) -> Self::Vector;

    fn rope(&mut self, rope: &Rope) -> Self::Rope;

    /// Collects experts in the order of their ids; all have equal shapes.
    fn experts(&mut self, experts: Vec<Expert<Self>>, gate: Gate) -> Self::Experts
    where
        Self: Sized;

    /// Collects the matrices of the heads, in order; all have equal shapes.
    fn head_matrices(&mut self, heads: Vec<Self::Matrix>) -> Self::HeadMatrices;

    /// Looks up the row of each token, times `factor` if given. A position with a prompt embedding gets the row of its
    /// placeholder token.
    ///
    /// # Shapes
    /// `table: [vocab, width]`, result `[n_tokens, width]`.
    fn look_up(
        &mut self,
        table: &Self::Matrix,
        factor: Option<f32>,
        batch: &Self::Batch,
    ) -> Self::Tensor;

    fn zeros_like(&mut self, x: &Self::Tensor) -> Self::Tensor;

    /// Looks up the embedding of each token, times `factor` if given; a prompt embedding replaces that of its
    /// placeholder token, unscaled.
    ///
    /// # Shapes
    /// `table: [vocab, hidden]`, result `[n_tokens, hidden]`.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        factor: Option<f32>,
        batch: &Self::Batch,
    ) -> Self::Tensor;

    /// Adds, at the positions of images, vector `set` of those that follow the one in the embedding's place. Nothing
    /// changes elsewhere.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`.
    fn add_image_vectors(&mut self, x: &mut Self::Tensor, set: usize, batch: &Self::Batch);

    fn scale(&mut self, x: &mut Self::Tensor, factor: f32);

    /// Multiplies each token's row by the factor of its position.
    fn scale_by_position(
        &mut self,
        x: &mut Self::Tensor,
        scale: PositionScale,
        batch: &Self::Batch,
    );

    /// Computes cos and sin of each token's position, once for all layers.
    ///
    /// # Shapes
    /// Result `[n_tokens, width]`: `width / 2` cosines, then as many sines, both times the attention scale. `width` is
    /// the number of elements of a head with RoPE, zero without RoPE.
    fn rotations(&mut self, rope: &Self::Rope, batch: &Self::Batch) -> Self::Tensor;

    /// RMSNorm of each row, as input of `reader`.
    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        reader: &Self::Matrix,
    ) -> Self::Operand;

    /// RMSNorm of each row, as a tensor for several readers.
    fn norm_rows(&mut self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Self::Tensor;

    /// Projects to queries, keys and values, normalises the heads if the model does, rotates queries and keys, and
    /// stores keys and values of `layer` at the step's slots.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`; result: the rotated queries, `[n_tokens, n_heads * key_dim]`.
    fn project_qkv(
        &mut self,
        x: &Self::Operand,
        weights: &QkvWeights<Self>,
        heads: &HeadShape,
        rotations: &Self::Tensor,
        layer: usize,
        batch: &Self::Batch,
    ) -> Self::Tensor
    where
        Self: Sized;

    /// Projects to queries, normalises the heads if the model does, and rotates them: for layers that share another
    /// layer's KV.
    ///
    /// # Shapes
    /// As for [`Self::project_qkv`].
    fn project_queries(
        &mut self,
        x: &Self::Operand,
        weights: &QueryWeights<Self>,
        heads: &HeadShape,
        rotations: &Self::Tensor,
    ) -> Self::Tensor
    where
        Self: Sized;

    /// Causal attention of each query to its own row, through the page table. `reader` is multiplied with the result.
    /// `sinks: [n_heads]` are scores without values; they only add to the softmax denominator.
    ///
    /// # Shapes
    /// `q: [n_tokens, n_heads * key_dim]`; result `[n_tokens, n_heads * values.dim()]`.
    fn attend(
        &mut self,
        q: &Self::Tensor,
        heads: (&HeadShape, Option<&Self::Vector>),
        layer: usize,
        batch: &Self::Batch,
        reader: &Self::Matrix,
    ) -> Self::Operand;

    /// As [`Self::attend`], with the result times `sigmoid(gate)`.
    ///
    /// # Shapes
    /// `gate` as the result: `[n_tokens, n_heads * values.dim()]`.
    fn attend_gated(
        &mut self,
        queries_and_gate: (&Self::Tensor, &Self::Tensor),
        heads: &HeadShape,
        layer: usize,
        batch: &Self::Batch,
        reader: &Self::Matrix,
    ) -> Self::Operand;

    /// Projects to queries and latents, normalises the latents, rotates the rotary parts, and stores latents and
    /// rotated keys of `layer` at the step's slots.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`; result: each head's absorbed query, then its rotated part, `[n_tokens, n_heads * (rank
    /// + rotary_dim)]`.
    fn project_latent(
        &mut self,
        x: &Self::Operand,
        weights: &LatentWeights<Self>,
        shape: &LatentShape,
        rotations: &Self::Tensor,
        layer: usize,
        batch: &Self::Batch,
    ) -> Self::Tensor
    where
        Self: Sized;

    /// Attends as [`Self::attend`], and computes each head's value from its mean of latents.
    ///
    /// # Shapes
    /// `q`: as [`Self::project_latent`] returns it; result `[n_tokens, n_heads * value_dim]`.
    fn attend_latent(
        &mut self,
        q: &Self::Tensor,
        values: &Self::HeadMatrices,
        shape: &LatentShape,
        layer: usize,
        batch: &Self::Batch,
        reader: &Self::Matrix,
    ) -> Self::Operand;

    fn project(&mut self, x: &Self::Operand, linear: &Linear<Self>) -> Self::Tensor
    where
        Self: Sized;

    /// Computes `g(x gate^T + bias, x up^T + bias)`, where `g` is the [`Gate`]. `reader` is multiplied with the result.
    ///
    /// # Shapes
    /// `gate_up: [2 * intermediate, hidden]`, gate first; result `[n_tokens, intermediate]`.
    fn gated(
        &mut self,
        x: &Self::Operand,
        gate_up: &Linear<Self>,
        gate: Gate,
        reader: &Self::Matrix,
    ) -> Self::Operand
    where
        Self: Sized;

    /// Adds `x weight^T + bias` to the residual stream.
    fn project_add(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Operand,
        linear: &Linear<Self>,
    ) where
        Self: Sized;

    /// Gates a part of the rows of `inputs`: `g(gate, input)`, where `g` is the [`Gate`]. `reader` is multiplied with
    /// the result.
    ///
    /// # Shapes
    /// `gates: [n_tokens, width]`, `inputs: [n_tokens, n * width]` with the index of the part to read.
    fn gated_part(
        &mut self,
        gates: (&Self::Tensor, Gate),
        inputs: (&Self::Tensor, usize),
        reader: &Self::Matrix,
    ) -> Self::Operand;

    /// Adds RMS-normalised rows of `x` to the residual stream. If `norm` is narrower than a row, each
    /// part of the row as wide as `norm` is normalised separately.
    fn add_normed(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        norm: &Self::Vector,
        eps: f32,
    );

    /// Softcap: `cap * tanh(element / cap)`.
    fn soft_cap(&mut self, x: &mut Self::Tensor, cap: f32);

    /// Adds `x * factor` to the residual stream.
    fn add_scaled(&mut self, residual: &mut Self::Tensor, x: &Self::Tensor, factor: f32);

    /// Encodes activations for products with `reader`.
    fn operand(&mut self, x: &Self::Tensor, reader: &Self::Matrix) -> Self::Operand;

    /// Projects to two gates and an input, `[b, c, x]`, and convolves each channel of `b * x` over tokens: `c * (sum of
    /// taps[j] * (b * x)[t - n_taps + 1 + j] + bias)`. Reads and updates each row's state of `layer`, which is `b * x`
    /// of its last `n_taps - 1` tokens.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`; result `[n_tokens, channels]`.
    fn gated_conv(
        &mut self,
        x: &Self::Operand,
        weights: &GatedConvWeights<Self>,
        layer: usize,
        batch: &Self::Batch,
    ) -> Self::Tensor
    where
        Self: Sized;

    /// Applies the gated delta rule of [`DeltaNetWeights`], token by token, then normalises and gates each head. Reads
    /// and updates each row's state of `layer`.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`; result `[n_tokens, value_heads * value_dim]`.
    fn delta_net(
        &mut self,
        x: &Self::Operand,
        weights: &DeltaNetWeights<Self>,
        layer: usize,
        batch: &Self::Batch,
    ) -> Self::Tensor
    where
        Self: Sized;

    /// Chooses the experts of each token by the logits `x weight^T + bias`, in f32.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`; the router's weight is `[n_experts, hidden]`.
    fn route(&mut self, x: &Self::Tensor, router: &Router<Self>) -> Self::Routes
    where
        Self: Sized;

    /// Adds the weighted outputs of each token's experts to the residual stream, by ascending expert id. The output of
    /// an expert is `down(g(gate(x), up(x)))`, where `g` is its [`Gate`].
    fn add_experts(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        routes: Self::Routes,
        experts: &Self::Experts,
    );

    /// Adds the output of the shared expert to the residual stream, times the sigmoid of `x gate^T`.
    ///
    /// # Shapes
    /// `gate: [1, hidden]`.
    fn add_gated_expert(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        gate: &Linear<Self>,
        expert: &Expert<Self>,
    ) where
        Self: Sized;

    /// # Shapes
    /// `tokens`: indices of rows of `x`; result `[number of tokens, width]`, in the list's order.
    fn pick(&mut self, x: &Self::Tensor, tokens: &Self::TokenList) -> Self::Tensor;

    /// RMSNorm of the rows `tokens` of the residual stream.
    ///
    /// # Shapes
    /// `tokens`: indices of rows of `x`; result `[number of tokens, hidden]`.
    fn norm_picked(
        &mut self,
        x: &Self::Tensor,
        tokens: &Self::TokenList,
        norm: &Self::Vector,
        eps: f32,
    ) -> Self::Tensor;

    /// RMSNorm of the rows `tokens` of the residual stream, projected to the vocabulary.
    ///
    /// # Shapes
    /// `tokens`: indices of rows of `x`; result `[number of tokens, vocab]`, f32.
    fn logits(
        &mut self,
        x: &Self::Tensor,
        tokens: &Self::TokenList,
        norm: &Self::Vector,
        eps: f32,
        vocab: &Self::Matrix,
    ) -> Self::Tensor;
}

pub struct Linear<B: Backend> {
    /// `[outputs, inputs]`.
    pub weight: B::Matrix,
    /// `[outputs]`.
    pub bias: Option<B::Vector>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, where gelu is the approximation by tanh.
    GeluTanh,
    /// `g / (1 + e^(-slope g)) * (u + 1)`: g is the gate, clamped to at most `limit`; u is up, clamped to
    /// `-limit..=limit`.
    Clamped {
        limit: f32,
        /// Slope of the sigmoid.
        slope: f32,
    },
}

pub struct Expert<B: Backend> {
    /// Gate and up projections, stacked: `[2 * width, hidden]`.
    pub gate_up: Linear<B>,
    /// `[hidden, width]`.
    pub down: Linear<B>,
}

/// For [`Backend::route`].
pub struct Router<B: Backend> {
    /// `[n_experts, hidden]`, in f32.
    pub logits: Linear<B>,
    /// Added to each expert's score for the choice only, `[n_experts]`.
    pub correction: Option<B::Vector>,
    /// Factors on the weights of chosen experts, `[n_experts]`.
    pub factors: Option<B::Vector>,
    pub routing: Routing,
}

/// For [`Backend::project_qkv`].
pub struct QkvWeights<B: Backend> {
    /// Queries, keys and values stacked: `[(n_heads + n_kv_heads) * key_dim + n_kv_heads * values.dim(), hidden]`.
    pub projection: Linear<B>,
    /// Norm weights of each query head and each key head, `[key_dim]`; or of a token's query heads together, `[n_heads
    /// * key_dim]`, and of its key heads, `[n_kv_heads * key_dim]`.
    pub head_norms: Option<(B::Vector, B::Vector)>,
    /// Whether all query heads of a token are normalised together, across ranks, and all its key heads likewise.
    pub norms_together: bool,
    /// Whether each value head is normalised, without a weight.
    pub norms_values: bool,
    pub eps: f32,
}

/// For [`Backend::project_queries`].
pub struct QueryWeights<B: Backend> {
    /// `[n_heads * key_dim, hidden]`.
    pub projection: Linear<B>,
    /// Norm weight of each query head, `[key_dim]`, or of all together, `[n_heads * key_dim]`.
    pub head_norm: Option<B::Vector>,
    /// Whether all query heads of a token are normalised together, across ranks.
    pub norms_together: bool,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShape {
    pub n_heads: usize,
    /// Key and value heads; query head `h` reads key head `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    pub key_dim: usize,
    pub values: Values,
    pub scale: f32,
    /// Softcap of the scores: `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Sliding window in tokens, including the query's own; `None` for full causal attention.
    pub window: Option<usize>,
}

impl HeadShape {
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    pub fn q_width(&self) -> usize {
        self.n_heads * self.key_dim
    }

    pub fn attended_width(&self) -> usize {
        self.n_heads * self.values.dim()
    }
}
