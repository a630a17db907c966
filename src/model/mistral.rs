//! Mistral: Llama without biases, and with a sliding window in every layer where the configuration has one.
//!
//! The window is a mask: a query at position p sees the keys at positions above `p - window`. Keys that left the window
//! keep their pages.

use crate::error::LoadError;
use crate::kernels::Backend;
use crate::model::Model;
use crate::model::blocks::{Attention, AttentionSpec, Ends, Mlp, Norm};
use crate::model::loader::Loader;

/// A Mistral decoder.
pub struct Mistral<B: Backend> {
    ends: Ends<B>,
    layers: Vec<Layer<B>>,
}

struct Layer<B: Backend> {
    input_norm: Norm<B>,
    attention: Attention<B>,
    post_attention_norm: Norm<B>,
    mlp: Mlp<B>,
}

impl<B: Backend> Mistral<B> {
    /// Loads the weights.
    pub fn load(loader: &mut Loader<'_, B>) -> Result<Self, LoadError> {
        let (hidden, n_layers) = (
            loader.config().hidden_size,
            loader.config().num_hidden_layers,
        );
        let layers = (0..n_layers)
            .map(|layer| {
                let norm = |name: &str| format!("model.layers.{layer}.{name}");
                let spec = AttentionSpec {
                    qkv_bias: false,
                    o_bias: false,
                    qk_norm: false,
                    window: loader.config().windows[layer],
                };
                Ok(Layer {
                    input_norm: Norm::load(loader, &norm("input_layernorm"), hidden)?,
                    attention: Attention::load(loader, layer, spec)?,
                    post_attention_norm: Norm::load(
                        loader,
                        &norm("post_attention_layernorm"),
                        hidden,
                    )?,
                    mlp: Mlp::load(loader, layer, false)?,
                })
            })
            .collect::<Result<_, LoadError>>()?;
        Ok(Self {
            ends: Ends::load(loader)?,
            layers,
        })
    }
}

impl<B: Backend> Model<B> for Mistral<B> {
    fn forward(&self, backend: &mut B, batch: &B::Batch) -> B::Tensor {
        let (mut x, rotations) = self.ends.embed(backend, batch);
        for layer in &self.layers {
            let normed = layer.input_norm.forward(backend, &x);
            layer
                .attention
                .add(backend, &mut x, &normed, &rotations, batch);
            let normed = layer.post_attention_norm.forward(backend, &x);
            layer.mlp.add(backend, &mut x, &normed);
        }
        x
    }

    fn logits(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        self.ends.logits(backend, hidden, tokens)
    }
}
