//! The generic decoder: layers of a token mixer and an MLP or experts, assembled from the families' specs.

pub(super) mod ends;
pub(super) mod mixed;
mod mixture;
pub(super) mod mlp;
pub(super) mod norm;

pub use self::ends::{Ends, Rotations};
pub use self::mixed::Mixed;
pub use self::mixture::Mixture;
pub use self::mlp::{Mlp, add_projected};
pub use self::norm::Norm;
use crate::attention::Attention;
use crate::config::ModelConfig;
use crate::latent::LatentAttention;
use crate::layer_inputs::LayerInput;
pub use crate::layer_spec::{FeedForwardSpec, LayerSpec, MixerSpec};
use crate::loader::Loader;
use crate::parallel_experts::ParallelExperts;
use crate::state_mixer::StateMixer;
use souffleur_base::beat::Beat;
use souffleur_base::error::LoadError;
use souffleur_kernels::{Backend, Gate};

/// Loads a decoder of the family that the loader's configuration names.
///
/// # Errors
/// An unsupported element type or a wrong shape, from [`Weights::tensor`](crate::weights::Weights::tensor).
pub fn load<B: Backend>(loader: &mut Loader<'_, B>) -> Result<Decoder<B>, LoadError> {
    let layer = loader.config().architecture.family().layer;
    Decoder::load(loader, layer)
}

/// The tokens of a step whose logits are needed. For all others, the last layer with K/V or a state only stores it.
pub struct ReadTokens<'a, B: Backend> {
    pub n_tokens: usize,
    pub tokens: &'a B::TokenList,
    /// The same tokens as a separate batch, in the order of `tokens`.
    pub batch: &'a B::Batch,
}

/// Each layer is a token mixer, then a gated MLP or experts.
pub struct Decoder<B: Backend> {
    ends: Ends<B>,
    layers: Vec<Layer<B>>,
    /// The first layers, to whose outputs vectors of images are added; the last layer is not among them.
    n_deepstack: usize,
    /// Beats at the end of each layer.
    beat: Beat,
}

impl<B: Backend> Decoder<B> {
    /// `spec` describes the layer with a given index.
    pub fn load(
        loader: &mut Loader<'_, B>,
        spec: fn(&ModelConfig, usize) -> LayerSpec,
    ) -> Result<Self, LoadError> {
        // The embedding, often the largest tensor, is loaded first: packing briefly needs memory for a second copy, and
        // no other weights are loaded yet.
        let ends = Ends::load(loader)?;
        let layers = (0..loader.config().num_hidden_layers).map(|layer| {
            let spec = spec(loader.config(), layer);
            Layer::load(loader, layer, spec)
        });
        Ok(Self {
            layers: layers.collect::<Result<_, LoadError>>()?,
            ends,
            n_deepstack: loader.config().deepstack,
            beat: Beat::default(),
        })
    }

    /// The decoder beats at the end of each layer from now on.
    pub fn set_beat(&mut self, beat: Beat) {
        self.beat = beat;
    }

    /// Runs the tokens of a step through all layers, and stores their K/V.
    ///
    /// # Shapes
    /// Result: the residual stream after the last layer, `[n_tokens, hidden]`, or only of the tokens in `reads`.
    pub fn forward(
        &self,
        backend: &mut B,
        batch: &B::Batch,
        reads: Option<ReadTokens<'_, B>>,
    ) -> B::Tensor {
        let (mut x, mut rotations, mut inputs) = self.ends.embed(backend, batch);
        // After the last layer that keeps KV or a state, only the tokens in `reads` are computed.
        let keeps = |layer: &Layer<B>| layer.keeps_kv_or_state();
        let Some(last) = self.layers.iter().rposition(keeps) else {
            return x;
        };
        let (layers, after) = self.layers.split_at(last);
        for (index, layer) in layers.iter().enumerate() {
            let mixed = layer.mix(backend, &x, &rotations, batch);
            layer.add(backend, &mut x, &mixed, (batch, inputs.as_ref()));
            if index < self.n_deepstack {
                backend.add_image_vectors(&mut x, index, batch);
            }
            self.beat.beat();
        }
        let mut mixed = after[0].mix(backend, &x, &rotations, batch);
        let mut batch = batch;
        if let Some(reads) = reads {
            x = backend.pick(&x, reads.tokens);
            if reads.n_tokens == 0 {
                return x;
            }
            mixed = mixed.pick(backend, reads.tokens);
            inputs = inputs.map(|inputs| backend.pick(&inputs, reads.tokens));
            batch = reads.batch;
            if after.len() > 1 {
                rotations = self.ends.rotations(backend, batch);
            }
        }
        after[0].add(backend, &mut x, &mixed, (batch, inputs.as_ref()));
        self.beat.beat();
        for layer in &after[1..] {
            let mixed = layer.mix(backend, &x, &rotations, batch);
            layer.add(backend, &mut x, &mixed, (batch, inputs.as_ref()));
            self.beat.beat();
        }
        x
    }

    /// Projects rows of a result of [`Self::forward`] to the vocabulary.
    ///
    /// # Shapes
    /// Result: `[number of tokens, vocab]`, f32.
    pub fn logits(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        self.ends.logits(backend, hidden, tokens)
    }

    /// Final norm of rows of a result of [`Self::forward`], without the projection to the vocabulary.
    ///
    /// # Shapes
    /// Result: `[number of tokens, hidden]`.
    pub fn states(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        self.ends.states(backend, hidden, tokens)
    }
}

struct Layer<B: Backend> {
    /// `None` if the mixer reads the residual stream directly.
    input_norm: Option<Norm<B>>,
    mixer: Mixer<B>,
    feed_forward: FeedForward<B>,
    /// The module of the per-layer input, and its activation.
    input: Option<(LayerInput<B>, Gate)>,
    /// Factor on the residual stream after the layer.
    factor: Option<f32>,
}

enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Latent(LatentAttention<B>),
    State(StateMixer<B>),
}

impl<B: Backend> Mixer<B> {
    fn load(loader: &mut Loader<'_, B>, layer: usize, spec: MixerSpec) -> Result<Self, LoadError> {
        Ok(match spec {
            MixerSpec::Attention(spec) => Self::Attention(Attention::load(loader, layer, spec)?),
            MixerSpec::Latent => Self::Latent(LatentAttention::load(loader, layer)?),
        })
    }

    /// Normalises the residual stream `x`, stores its KV or state, and returns the queries or the mixer's output.
    fn mix(
        &self,
        backend: &mut B,
        norm: Option<&Norm<B>>,
        x: &B::Tensor,
        rotations: &Rotations<B>,
        batch: &B::Batch,
    ) -> Mixed<B> {
        match self {
            Self::Attention(attention) => {
                let normed = operand(backend, norm, x, attention.reader());
                attention.queries(backend, &normed, rotations, batch)
            }
            Self::Latent(attention) => {
                let normed = operand(backend, norm, x, attention.reader());
                Mixed::plain(attention.queries(backend, &normed, &rotations.all, batch))
            }
            Self::State(state) => {
                let normed = operand(backend, norm, x, state.reader());
                Mixed::plain(state.mix(backend, &normed, batch))
            }
        }
    }

    fn add(&self, backend: &mut B, x: &mut B::Tensor, mixed: &Mixed<B>, batch: &B::Batch) {
        match self {
            Self::Attention(attention) => attention.add(backend, x, mixed, batch),
            Self::Latent(attention) => attention.add(backend, x, &mixed.rows, batch),
            Self::State(state) => state.add(backend, x, &mixed.rows),
        }
    }
}

/// The input of `reader`: `x`, normalised if there is a norm.
fn operand<B: Backend>(
    backend: &mut B,
    norm: Option<&Norm<B>>,
    x: &B::Tensor,
    reader: &B::Matrix,
) -> B::Operand {
    match norm {
        Some(norm) => norm.forward(backend, x, reader),
        None => backend.operand(x, reader),
    }
}

enum FeedForward<B: Backend> {
    Mlp(Option<Norm<B>>, Mlp<B>),
    Experts(Norm<B>, Mixture<B>),
}

impl<B: Backend> FeedForward<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        spec: FeedForwardSpec,
    ) -> Result<Self, LoadError> {
        let config = loader.config();
        let (norms, hidden) = (config.norms(), config.hidden_size);
        let name = |name: &str| format!("model.layers.{layer}.{name}");
        let norm = match norms.of_feed_forward_input() {
            Some(norm) => Some(Norm::load(loader, &name(norm), hidden)?),
            None => None,
        };
        let experts = config.experts.as_ref().filter(|all| all.are_in(layer));
        let bias = match (spec, experts) {
            (FeedForwardSpec::Experts, Some(experts)) => {
                let norm = norm.expect("blocks of experts must have an input norm");
                return Ok(Self::Experts(norm, Mixture::load(loader, layer, experts)?));
            }
            (FeedForwardSpec::Experts, None) => config.bias.mlp,
            (FeedForwardSpec::Mlp { bias }, _) => bias,
        };
        let post_norm = if norms.follow() {
            Some(Norm::load(
                loader,
                &name("post_feedforward_layernorm"),
                hidden,
            )?)
        } else {
            None
        };
        let mlp = Mlp {
            post_norm,
            parallel: match experts {
                Some(experts) => Some(ParallelExperts::load(loader, layer, experts)?),
                None => None,
            },
            ..Mlp::load(loader, layer, bias)?
        };
        Ok(Self::Mlp(norm, mlp))
    }

    fn add(&self, backend: &mut B, x: &mut B::Tensor) {
        match self {
            Self::Mlp(norm, mlp) => {
                let normed = operand(backend, norm.as_ref(), x, &mlp.gate_up.weight);
                mlp.add(backend, x, &normed);
            }
            Self::Experts(norm, mixture) => mixture.add(backend, norm, x),
        }
    }
}

impl<B: Backend> Layer<B> {
    fn load(loader: &mut Loader<'_, B>, layer: usize, spec: LayerSpec) -> Result<Self, LoadError> {
        let norm = |name: &str| format!("model.layers.{layer}.{name}");
        let hidden = loader.config().hidden_size;
        Ok(Self {
            input_norm: if loader.config().norms().precede() {
                Some(Norm::load(loader, &norm("input_layernorm"), hidden)?)
            } else {
                None
            },
            mixer: match loader.config().states_in(layer) {
                Some(_) => Mixer::State(StateMixer::load(loader, layer)?),
                None => Mixer::load(loader, layer, spec.mixer)?,
            },
            feed_forward: FeedForward::load(loader, layer, spec.feed_forward)?,
            input: match loader.config().layer_inputs() {
                Some(inputs) => {
                    let input = LayerInput::load(loader, layer, inputs)?;
                    Some((input, loader.config().gate()))
                }
                None => None,
            },
            factor: match loader.config().gemma4() {
                Some(_) => Some(loader.number(&norm("layer_scalar"))?),
                None => None,
            },
        })
    }

    fn keeps_kv_or_state(&self) -> bool {
        match &self.mixer {
            Mixer::Attention(attention) => attention.keeps_kv(),
            Mixer::Latent(_) | Mixer::State(_) => true,
        }
    }

    fn mix(
        &self,
        backend: &mut B,
        x: &B::Tensor,
        rotations: &Rotations<B>,
        batch: &B::Batch,
    ) -> Mixed<B> {
        let norm = self.input_norm.as_ref();
        self.mixer.mix(backend, norm, x, rotations, batch)
    }

    /// Adds the mixer's output, the feed-forward block and any per-layer input to `x`, then applies the layer's factor.
    fn add(
        &self,
        backend: &mut B,
        x: &mut B::Tensor,
        mixed: &Mixed<B>,
        (batch, inputs): (&B::Batch, Option<&B::Tensor>),
    ) {
        self.mixer.add(backend, x, mixed, batch);
        self.feed_forward.add(backend, x);
        if let (Some((input, gate)), Some(inputs)) = (&self.input, inputs) {
            input.add(backend, x, inputs, *gate);
        }
        if let Some(factor) = self.factor {
            backend.scale(x, factor);
        }
    }
}
