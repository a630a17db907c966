//! Models: configuration, weights, tokenizer, forward pass. [`location`] resolves a model's path.
//!
//! One file for each family, [`llama`] the simplest, holds its record (`family.rs`): names, defaults, keys, tensors and
//! layers; `families.rs` is the table of them. The parts that families share are in [`blocks`], [`attention`],
//! [`latent`], [`layer_inputs`], [`routed_experts`], [`side_experts`] and [`state_mixer`]. All of it is written against
//! [`Backend`] and knows nothing of devices, requests or steps.

pub mod attention;
pub mod blocks;
pub mod config;
pub mod deepseek_v2;
pub mod deepseek_v3;
pub(crate) mod families;
pub(crate) mod family;
pub mod gemma2;
pub mod gemma3;
pub mod gemma4;
pub mod generation;
pub mod gguf;
pub mod glm4_moe_lite;
pub mod gpt_oss;
pub mod granite;
pub(crate) mod json_file;
pub mod latent;
pub mod layer_inputs;
pub(crate) mod layer_spec;
pub mod lfm2;
pub mod llama;
pub mod loader;
pub mod location;
pub mod ministral3;
pub mod mistral;
pub mod mixtral;
pub mod olmo2;
pub mod origin;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_moe;
pub mod random;
pub mod rope;
pub mod routed_experts;
pub mod side_experts;
pub mod smollm3;
pub mod sparsity;
pub mod state_mixer;
pub(crate) mod tensor_spec;
pub mod weights;

pub use souffleur_text as text;

use crate::error::LoadError;
use crate::kernels::Backend;
use crate::model::loader::Loader;

/// The tokens of a step whose logits are needed. The last layer only stores the keys and values of the others.
pub struct Reads<'a, B: Backend> {
    /// Number of tokens.
    pub n_tokens: usize,
    /// Which tokens of the step.
    pub tokens: &'a B::TokenList,
    /// The same tokens as a separate batch, in the list's order.
    pub batch: &'a B::Batch,
}

/// A decoder with its weights.
pub trait Model<B: Backend>: Send {
    /// Runs the tokens of a step through all layers and stores their K/V.
    ///
    /// # Shapes
    /// Result: the residual stream after the last layer, `[n_tokens, hidden]`, or of the tokens in `reads` only.
    fn forward(&self, backend: &mut B, batch: &B::Batch, reads: Option<Reads<'_, B>>) -> B::Tensor;

    /// Projects the rows `tokens` of a result of [`Self::forward`] to the vocabulary.
    ///
    /// # Shapes
    /// Result: `[number of tokens, vocab]`, f32.
    fn logits(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor;

    /// Norms the rows `tokens` of a result of [`Self::forward`], as before the projection to the vocabulary.
    ///
    /// # Shapes
    /// Result: `[number of tokens, hidden]`.
    fn states(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor;
}

/// Loads the model that the loader's configuration names.
///
/// # Errors
/// The element type and shape that [`Weights::tensor`](weights::Weights::tensor) reports.
pub fn load<B: Backend + 'static>(
    loader: &mut Loader<'_, B>,
) -> Result<Box<dyn Model<B>>, LoadError> {
    let layer = loader.config().architecture.family().layer;
    Ok(Box::new(blocks::Decoder::load(loader, layer)?))
}
