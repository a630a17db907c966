//! Embedding, rotations, final norm and output projection: a decoder without its layers.

use super::norm::Norm;
use crate::error::LoadError;
use crate::kernels::Backend;
use crate::model::layer_inputs::InputTable;
use crate::model::loader::Loader;

/// The parts before the first layer and after the last one.
pub struct Ends<B: Backend> {
    embedding: B::Matrix,
    /// Factor on embeddings of tokens, and not on vectors of a prompt.
    embedding_scale: Option<f32>,
    /// The weights of the per-layer inputs, if layers have some.
    inputs: Option<InputTable<B>>,
    rope: B::Rope,
    /// The rotation of layers with windows, where it differs.
    window_rope: Option<B::Rope>,
    /// The identity rotation, if some layers have no RoPE.
    no_rope: Option<B::Rope>,
    norm: Norm<B>,
    /// Factor on embeddings of tokens and on vectors of a prompt.
    input_scale: Option<f32>,
    logits_divisor: Option<f32>,
    /// `None` when the output projection is the embedding.
    lm_head: Option<B::Matrix>,
    /// Softcap of logits: `cap * tanh(x / cap)`.
    logits_cap: Option<f32>,
}

/// The rotations of the tokens of a step.
pub struct Rotations<B: Backend> {
    /// In all layers, or in layers without windows.
    pub all: B::Tensor,
    /// In layers with windows, where they differ.
    windowed: Option<B::Tensor>,
    /// In layers without RoPE, of width 0, if there are such layers.
    none: Option<B::Tensor>,
}

impl<B: Backend> Rotations<B> {
    /// The rotations in layers with this window, or with none.
    pub fn within(&self, window: Option<usize>) -> &B::Tensor {
        match &self.windowed {
            Some(windowed) if window.is_some() => windowed,
            _ => &self.all,
        }
    }

    /// The rotations in layers without RoPE.
    ///
    /// # Panics
    /// If the configuration has no such layer.
    pub fn none(&self) -> &B::Tensor {
        let none = self.none.as_ref();
        none.expect("made wherever a layer of the configuration is not rotated")
    }
}

impl<B: Backend> Ends<B> {
    /// Loads embedding, rotation, final norm and output projection.
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

    /// Begins a step: the embedded tokens, the rotations of their positions, and the inputs of layers that have some.
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

    /// The rotations of the positions of tokens.
    pub fn rotations(&self, backend: &mut B, batch: &B::Batch) -> Rotations<B> {
        let all = backend.rotations(&self.rope, batch);
        let mut some = |rope: &Option<B::Rope>| {
            let rope = rope.as_ref();
            rope.map(|rope| backend.rotations(rope, batch))
        };
        Rotations {
            all,
            windowed: some(&self.window_rope),
            none: some(&self.no_rope),
        }
    }

    /// Ends a step for the rows `tokens` of the residual stream.
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

    /// The rows `tokens` of the residual stream, normed.
    pub fn states(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        backend.norm_picked(hidden, tokens, &self.norm.weight, self.norm.eps)
    }
}
