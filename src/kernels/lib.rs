//! Device kernels: one trait for all backends.
//!
//! Models are written against [`Backend`]. It knows tensors, weights, layers and the rows of a step, and does not know
//! requests, sampling or scheduling. The values that a model hands to a backend are in [`dtype`], [`latent`],
//! [`tensor_view`], [`random`], [`rope`], [`shape`] and [`sparsity`]; nothing here knows of a model's files.
//! `kernels/README.md` lists every kernel and its CPU twin.

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
pub mod sparsity;

use self::blocks::BlockType;
use self::dtype::MatrixRole;
use self::latent::{LatentShape, LatentWeights};
use self::random::RandomTensor;
use self::recurrent::{DeltaNetWeights, GatedConvWeights};
use self::rope::{PositionScale, Rope};
use self::routing::Routing;
use self::tensor_view::TensorView;
use souffleur_base::kv_layout::Values;
pub use souffleur_gguf::{blocks, dtype, tensor_view};

/// The operations of a decoder, on one device.
///
/// A tensor is a matrix of activations with one row for each query token of the step, row-major, in the backend's
/// compute type. Nothing here returns data to the host, and no operation has to be complete when it returns: a device
/// backend enqueues it. A failure is sticky and reported by the executor when it reads the logits.
///
/// **Batch invariance.** On the CPU each element of each result depends on its own token's row and history only, bit
/// for bit: the order of a reduction is fixed by positions, never by the other rows of the step or the thread count.
pub trait Backend {
    /// Activations, `[n_tokens, width]`. Dropping one gives its memory back to the backend.
    type Tensor;
    /// Activations as a projection reads them, `[n_tokens, width]`: they may be encoded like its weights.
    type Operand;
    /// A weight matrix, `[outputs, inputs]`.
    type Matrix: Send;
    /// A norm's weight or a bias, `[width]`.
    type Vector: Send;
    /// The frequencies of a rotary embedding.
    type Rope: Send;
    /// The experts of a layer.
    type Experts: Send;
    /// A matrix for each head of a layer.
    type HeadMatrices: Send;
    /// Which experts the tokens of a step go through.
    type Routes;
    /// The subject of a step: tokens, positions, KV slots, rows and their pages.
    type Batch;
    /// Indices of tokens of the step.
    type TokenList: ?Sized;

    /// Takes weights over from the host, several matrices of equal width stacked into one, outputs in order; `roles`
    /// gives the use of each.
    ///
    /// # Shapes
    /// Each part `[outputs_i, inputs]`; the result is `[sum of outputs_i, inputs]`.
    fn matrix(&mut self, parts: &[TensorView<'_>], roles: &[MatrixRole]) -> Self::Matrix;

    /// Whether products of this role read weights in blocks of a type natively. If not, a loader that has more precise
    /// values may hand these over.
    fn keeps_blocks(&self, _block: BlockType, _role: MatrixRole) -> bool {
        false
    }

    /// Makes the parts' random elements, then does as [`Self::matrix`]. The elements are the same on every device.
    fn random_matrix(&mut self, parts: &[RandomTensor], roles: &[MatrixRole]) -> Self::Matrix {
        let bytes: Vec<Vec<u8>> = parts.iter().map(RandomTensor::bytes).collect();
        let views = parts.iter().zip(&bytes);
        let views: Vec<TensorView<'_>> = views.map(|(part, bytes)| part.view(bytes)).collect();
        self.matrix(&views, roles)
    }

    /// Takes vectors over from the host, joined in order.
    fn vector(&mut self, parts: &[TensorView<'_>]) -> Self::Vector;

    /// Takes the frequencies over from the host.
    fn rope(&mut self, rope: &Rope) -> Self::Rope;

    /// Takes the experts of a layer, all of equal shapes, by id.
    fn experts(&mut self, experts: Vec<Expert<Self>>, gate: Gate) -> Self::Experts
    where
        Self: Sized;

    /// Takes the matrices of a layer's heads, all of equal shapes, by head.
    fn head_matrices(&mut self, heads: Vec<Self::Matrix>) -> Self::HeadMatrices;

    /// Looks up the row of each token of the step, and multiplies it with `factor` if there is one; where the batch has a
    /// vector in a token's place, that of the placeholder.
    ///
    /// # Shapes
    /// `table: [vocab, width]`, result `[n_tokens, width]`.
    fn look_up(
        &mut self,
        table: &Self::Matrix,
        factor: Option<f32>,
        batch: &Self::Batch,
    ) -> Self::Tensor;

    /// Makes zeros in the shape of a tensor.
    fn zeros_like(&mut self, x: &Self::Tensor) -> Self::Tensor;

    /// Looks up the embedding of each token of the step, and multiplies it with `factor` if there is one; where the batch
    /// has a vector in a token's place, takes that as it is.
    ///
    /// # Shapes
    /// `table: [vocab, hidden]`, result `[n_tokens, hidden]`.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        factor: Option<f32>,
        batch: &Self::Batch,
    ) -> Self::Tensor;

    /// Multiplies every element with a number.
    fn scale(&mut self, x: &mut Self::Tensor, factor: f32);

    /// Multiplies each token's row with the factor of its position.
    fn scale_by_position(
        &mut self,
        x: &mut Self::Tensor,
        scale: PositionScale,
        batch: &Self::Batch,
    );

    /// Computes cos and sin of each token's position, once for all layers.
    ///
    /// # Shapes
    /// Result `[n_tokens, width]`: `width / 2` cosines, then as many sines, both times the attention scale. The width is
    /// that of a head, or of its first elements, where only these rotate; zero where none does.
    fn rotations(&mut self, rope: &Self::Rope, batch: &Self::Batch) -> Self::Tensor;

    /// Divides each row by its root mean square and multiplies it by `weight`. `reader` is multiplied with the result.
    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        reader: &Self::Matrix,
    ) -> Self::Operand;

    /// Does as [`Self::rms_norm`], for readers of any number.
    fn norm_rows(&mut self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Self::Tensor;

    /// Projects to queries, keys and values, norms the heads where the model does, rotates queries and keys, and
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

    /// Projects to queries, norms the heads where the model does, and rotates them: for layers that read the keys and values
    /// of another one.
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

    /// Attends each query to the keys of its own row at positions up to its own, through the page table. `reader` is
    /// multiplied with the result. `sinks: [n_heads]` are scores that count in the softmax's sum and have no value.
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

    /// Does as [`Self::attend`], and multiplies the result with `1 / (1 + e^-gate)`.
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

    /// Projects to queries and latents, norms the latents, rotates the rotary parts, and stores latents and rotated
    /// keys of `layer` at the step's slots.
    ///
    /// # Shapes
    /// `x: [n_tokens, hidden]`; result: for each head the query as latents are multiplied with it, then its rotated part,
    /// `[n_tokens, n_heads * (rank + rotary_dim)]`.
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

    /// Attends as [`Self::attend`] does, and takes each head's value of the latents' mean.
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

    /// Computes `x weight^T + bias`.
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

    /// Gates parts of the rows of `inputs`: `g(gate, input)`, where `g` is the [`Gate`]. `reader` is multiplied with
    /// the result.
    ///
    /// # Shapes
    /// `gates: [n_tokens, width]`, `inputs: [n_tokens, n * width]`, of which the part of that number is read.
    fn gated_part(
        &mut self,
        gates: (&Self::Tensor, Gate),
        inputs: (&Self::Tensor, usize),
        reader: &Self::Matrix,
    ) -> Self::Operand;

    /// Adds the rows of `x`, normed, to those of the residual stream; or parts of rows, as wide as the norm.
    fn add_normed(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        norm: &Self::Vector,
        eps: f32,
    );

    /// Replaces each element by `cap * tanh(element / cap)`.
    fn soft_cap(&mut self, x: &mut Self::Tensor, cap: f32);

    /// Adds `x` times a number to the residual stream.
    fn add_scaled(&mut self, residual: &mut Self::Tensor, x: &Self::Tensor, factor: f32);

    /// Encodes activations for products with `reader`.
    fn operand(&mut self, x: &Self::Tensor, reader: &Self::Matrix) -> Self::Operand;

    /// Projects to two gates and an input, `[b, c, x]`, and mixes each channel of `b * x` with the tokens before it:
    /// `c * (sum of taps[j] * (b * x)[t - n_taps + 1 + j] + bias)`. Continues the state of `layer` of each row, which
    /// is `b * x` of its last `n_taps - 1` tokens, and updates it.
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

    /// Applies the gated delta rule of [`DeltaNetWeights`], token by token, then norms and gates each head. Continues
    /// the state of `layer` of each row and updates it.
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

    /// Adds to each token's row of the residual stream the outputs of its experts for its row of `x`, each times its
    /// weight, by ascending id: `down(g(gate(x), up(x)))`, where `g` is the experts' [`Gate`].
    fn add_experts(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        routes: Self::Routes,
        experts: &Self::Experts,
    );

    /// Adds to each token's row of the residual stream the output of the shared expert for its row of `x`, times the
    /// sigmoid of `x gate^T`.
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

    /// Takes rows of a tensor.
    ///
    /// # Shapes
    /// `tokens`: indices of rows of `x`; result `[number of tokens, width]`, in the list's order.
    fn pick(&mut self, x: &Self::Tensor, tokens: &Self::TokenList) -> Self::Tensor;

    /// Norms the rows `tokens` of the residual stream.
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

    /// Norms the rows `tokens` of the residual stream and projects them to the vocabulary.
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

/// A projection: `x weight^T + bias`.
pub struct Linear<B: Backend> {
    /// `[outputs, inputs]`.
    pub weight: B::Matrix,
    /// `[outputs]`.
    pub bias: Option<B::Vector>,
}

/// The activation function of gate and up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, where gelu is the approximation by tanh.
    GeluTanh,
    /// `g / (1 + e^(-slope g)) * (u + 1)`, where g is the gate and at most `limit`, u is up and from `-limit` to `limit`.
    Clamped {
        /// Bound of both.
        limit: f32,
        /// How steep the sigmoid is.
        slope: f32,
    },
}

/// A feed-forward block that only some tokens go through.
pub struct Expert<B: Backend> {
    /// Gate and up projections, stacked: `[2 * width, hidden]`.
    pub gate_up: Linear<B>,
    /// `[hidden, width]`.
    pub down: Linear<B>,
}

/// The weights by which [`Backend::route`] chooses experts.
pub struct Router<B: Backend> {
    /// `[n_experts, hidden]`, in f32.
    pub logits: Linear<B>,
    /// Added to each expert's score for the choice only, `[n_experts]`.
    pub correction: Option<B::Vector>,
    /// Factors on the weights of the chosen, by expert.
    pub factors: Option<B::Vector>,
    /// The formula for the logits.
    pub routing: Routing,
}

/// The weights that [`Backend::project_qkv`] multiplies and norms with.
pub struct QkvWeights<B: Backend> {
    /// Queries, keys and values stacked: `[(n_heads + n_kv_heads) * key_dim + n_kv_heads * values.dim(), hidden]`.
    pub projection: Linear<B>,
    /// Weight of the norm of each query head, `[key_dim]`, and of each key head; or of all of a token's query heads as
    /// one vector, `[n_heads * key_dim]`, and of its key heads, `[n_kv_heads * key_dim]`.
    pub head_norms: Option<(B::Vector, B::Vector)>,
    /// Every value head is normed, without a weight.
    pub norms_values: bool,
    /// Added to the mean square in the head norms.
    pub eps: f32,
}

/// The operands of [`Backend::project_queries`].
pub struct QueryWeights<B: Backend> {
    /// `[n_heads * key_dim, hidden]`.
    pub projection: Linear<B>,
    /// Weight of the norm of each query head, `[key_dim]`, or of all of them, `[n_heads * key_dim]`.
    pub head_norm: Option<B::Vector>,
    /// Added to the mean square in the head norm.
    pub eps: f32,
}

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; query head `h` reads key head `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Elements of a query head and of a key head.
    pub key_dim: usize,
    /// The values of a key head.
    pub values: Values,
    /// Factor on the scores.
    pub scale: f32,
    /// Soft cap of the scores: each becomes `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// How many tokens a query sees, itself included; `None` for all before it.
    pub window: Option<usize>,
}

impl HeadShape {
    /// Query heads of a key head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Width of all query heads of a token, in elements.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.key_dim
    }

    /// Width of the attended values of all query heads of a token, in elements.
    pub fn attended_width(&self) -> usize {
        self.n_heads * self.values.dim()
    }
}
