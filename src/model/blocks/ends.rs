//! The decoder without its layers: embedding, RoPE factors, final norm and output projection.

use super::norm::Norm;
use crate::layer_inputs::InputTable;
use crate::loader::Loader;
use souffleur_base::error::LoadError;
use souffleur_kernels::Backend;

pub struct Ends<B: Backend> {
    embedding: B::Matrix,
    /// Factor on embeddings of tokens, but not on prompt embeddings.
    embedding_scale: Option<f32>,
    inputs: Option<InputTable<B>>,
    rope: B::Rope,
    window_rope: Option<B::Rope>,
    /// RoPE that changes nothing, for layers without RoPE.
    no_rope: Option<B::Rope>,
    norm: Norm<B>,
    /// Factor on embeddings of tokens and on prompt embeddings.
    input_scale: Option<f32>,
    logits_divisor: Option<f32>,
    /// `None` if the embedding is tied.
    lm_head: Option<B::Matrix>,
    /// Softcap: `cap * tanh(x / cap)`.
    logits_cap: Option<f32>,
}

pub struct Rotations<B: Backend> {
    /// cos and sin of all layers, or of layers without windows if `windowed` is set.
    pub all: B::Tensor,
    windowed: Option<B::Tensor>,
    /// A tensor of width 0, for layers without RoPE.
    none: Option<B::Tensor>,
}

impl<B: Backend> Rotations<B> {
    pub fn within(&self, window: Option<usize>) -> &B::Tensor {
        match &self.windowed {
            Some(windowed) if window.is_some() => windowed,
            _ => &self.all,
        }
    }

    /// # Panics
    /// If every layer of the model has RoPE.
    pub fn none(&self) -> &B::Tensor {
        let none = self.none.as_ref();
        none.expect("the model must have a layer without RoPE")
    }
}

impl<B: Backend> Ends<B> {
    pub fn load(loader: &mut Loader<'_, B>) -> Result<Self, LoadError> {
        let (vocab, hidden) = (loader.config().vocab_size, loader.config().hidden_size);
        let tied = loader.config().tie_word_embeddings;
        let is_gemma = loader.config().gemma.is_some();
        Ok(Self {
            embedding: loader.matrix(&[("model.embed_tokens.weight", vocab)], hidden)?,
            embedding_scale: loader.embedding_scale().filter(|_| is_gemma),
            inputs: match loader.config().layer_inputs() {
                Some(inputs) => Some(InputTable::load(loader, inputs)?),
                None => None,
            },
            rope: loader.rope(),
            window_rope: loader.window_rope(),
            no_rope: loader.no_rope(),
            norm: Norm::load(loader, "model.norm", hidden)?,
            input_scale: loader.embedding_scale().filter(|_| !is_gemma),
            logits_divisor: loader.config().logits_divisor,
            lm_head: if tied {
                None
            } else {
                Some(loader.matrix(&[("lm_head.weight", vocab)], hidden)?)
            },
            logits_cap: loader
                .config()
                .gemma
                .as_ref()
                .and_then(|gemma| gemma.logits_cap),
        })
    }

    /// Begins a step: computes embeddings, RoPE factors, and per-layer inputs if the model has them.
    pub fn embed(
        &self,
        backend: &mut B,
        batch: &B::Batch,
    ) -> (B::Tensor, Rotations<B>, Option<B::Tensor>) {
        let mut x = backend.embed(&self.embedding, self.embedding_scale, batch);
        if let Some(scale) = self.input_scale {
            backend.scale(&mut x, scale);
        }
        let table = self.inputs.as_ref();
        let inputs = table.map(|table| table.inputs(backend, &x, batch));
        (x, self.rotations(backend, batch), inputs)
    }

    pub fn rotations(&self, backend: &mut B, batch: &B::Batch) -> Rotations<B> {
        let all = backend.rotations(&self.rope, batch);
        let mut optional = |rope: &Option<B::Rope>| {
            let rope = rope.as_ref();
            rope.map(|rope| backend.rotations(rope, batch))
        };
        Rotations {
            all,
            windowed: optional(&self.window_rope),
            none: optional(&self.no_rope),
        }
    }

    pub fn logits(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        let vocab = self.lm_head.as_ref().unwrap_or(&self.embedding);
        let mut logits = backend.logits(hidden, tokens, &self.norm.weight, self.norm.eps, vocab);
        if let Some(cap) = self.logits_cap {
            backend.soft_cap(&mut logits, cap);
        }
        if let Some(divisor) = self.logits_divisor {
            backend.scale(&mut logits, divisor.recip());
        }
        logits
    }

    pub fn states(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        backend.norm_picked(hidden, tokens, &self.norm.weight, self.norm.eps)
    }
}
