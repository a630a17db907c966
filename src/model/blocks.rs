//! The parts that decoder families share.

use crate::error::LoadError;
use crate::kernels::{Backend, Gate, Linear};
use crate::model::attention::{Attention, AttentionSpec};
use crate::model::config::ModelConfig;
use crate::model::config::experts::ExpertsConfig;
use crate::model::latent::LatentAttention;
use crate::model::layer_inputs::{InputTable, LayerInput};
use crate::model::loader::Loader;
use crate::model::routed_experts::RoutedExperts;
use crate::model::side_experts::SideExperts;
use crate::model::state_mixer::{GatedExpert, StateMixer, load_gated_expert};
use crate::model::{Model, Reads};

/// A decoder whose layers norm what they read: attention, then a gated MLP.
pub struct Decoder<B: Backend> {
    ends: Ends<B>,
    layers: Vec<Layer<B>>,
}

impl<B: Backend> Decoder<B> {
    /// Loads the weights of layers that are made as `spec` says, by index.
    pub fn load(
        loader: &mut Loader<'_, B>,
        spec: fn(&ModelConfig, usize) -> LayerSpec,
    ) -> Result<Self, LoadError> {
        // First: the embedding's bytes in the file, often the most of all tensors, are in memory until it is packed, and
        // there is little beside them yet.
        let ends = Ends::load(loader)?;
        let layers = (0..loader.config().num_hidden_layers).map(|layer| {
            let spec = spec(loader.config(), layer);
            Layer::load(loader, layer, spec)
        });
        Ok(Self {
            layers: layers.collect::<Result<_, LoadError>>()?,
            ends,
        })
    }
}

impl<B: Backend> Model<B> for Decoder<B> {
    fn forward(&self, backend: &mut B, batch: &B::Batch, reads: Option<Reads<'_, B>>) -> B::Tensor {
        let (mut x, mut rotations, mut inputs) = self.ends.embed(backend, batch);
        // Layers that keep nothing of their own have no use for tokens that are not read.
        let keeps = |layer: &Layer<B>| layer.keeps_something();
        let Some(last) = self.layers.iter().rposition(keeps) else {
            return x;
        };
        let (layers, after) = self.layers.split_at(last);
        for layer in layers {
            let mixed = layer.mix(backend, &x, &rotations, batch);
            layer.add(backend, &mut x, &mixed, (batch, inputs.as_ref()));
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
        for layer in &after[1..] {
            let mixed = layer.mix(backend, &x, &rotations, batch);
            layer.add(backend, &mut x, &mixed, (batch, inputs.as_ref()));
        }
        x
    }

    fn logits(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        self.ends.logits(backend, hidden, tokens)
    }

    fn states(&self, backend: &mut B, hidden: &B::Tensor, tokens: &B::TokenList) -> B::Tensor {
        self.ends.states(backend, hidden, tokens)
    }
}

/// What a layer is made of.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec {
    /// The block that mixes tokens.
    pub mixer: MixerSpec,
    /// The block after it.
    pub feed_forward: FeedForwardSpec,
}

/// The block of a layer that mixes tokens.
#[derive(Clone, Copy, Debug)]
pub enum MixerSpec {
    /// Grouped-query attention.
    Attention(AttentionSpec),
    /// Latent attention, of the shape that the configuration has.
    Latent,
}

/// The block of a layer after its attention.
#[derive(Clone, Copy, Debug)]
pub enum FeedForwardSpec {
    /// A gated MLP.
    Mlp {
        /// Its projections add a bias.
        bias: bool,
    },
    /// A gated MLP between two norms: that of its input has a name of its own, as the usual one norms what attention adds.
    NormedMlp,
    /// Experts, as the configuration has them in some or all layers; a gated MLP in the others.
    Experts,
}

impl FeedForwardSpec {
    /// The name of the norm of its input.
    fn input_norm(self) -> &'static str {
        match self {
            Self::Mlp { .. } | Self::Experts => "post_attention_layernorm",
            Self::NormedMlp => "pre_feedforward_layernorm",
        }
    }
}

struct Layer<B: Backend> {
    input_norm: Norm<B>,
    mixer: Mixer<B>,
    feed_forward_norm: Norm<B>,
    feed_forward: FeedForward<B>,
    /// What it adds of its inputs, and the function of the gate on them.
    input: Option<(LayerInput<B>, Gate)>,
    /// Factor on the residual stream behind it.
    factor: Option<f32>,
}

enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Latent(LatentAttention<B>),
    /// In layers that keep a state, as the configuration has them in some models.
    State(StateMixer<B>),
}

impl<B: Backend> Mixer<B> {
    fn load(loader: &mut Loader<'_, B>, layer: usize, spec: MixerSpec) -> Result<Self, LoadError> {
        Ok(match spec {
            MixerSpec::Attention(spec) => Self::Attention(Attention::load(loader, layer, spec)?),
            MixerSpec::Latent => Self::Latent(LatentAttention::load(loader, layer)?),
        })
    }

    /// Stores what later tokens read of the residual stream `x`, normed, and returns what goes on from there.
    fn mix(
        &self,
        backend: &mut B,
        norm: &Norm<B>,
        x: &B::Tensor,
        rotations: &Rotations<B>,
        batch: &B::Batch,
    ) -> Mixed<B> {
        match self {
            Self::Attention(attention) => {
                let normed = norm.forward(backend, x, attention.reader());
                attention.queries(backend, &normed, rotations, batch)
            }
            Self::Latent(attention) => {
                let normed = norm.forward(backend, x, attention.reader());
                Mixed::plain(attention.queries(backend, &normed, &rotations.all, batch))
            }
            Self::State(state) => {
                let normed = norm.forward(backend, x, state.reader());
                Mixed::plain(state.mix(backend, &normed, batch))
            }
        }
    }

    /// Adds the rest to the residual stream `x`.
    fn add(&self, backend: &mut B, x: &mut B::Tensor, mixed: &Mixed<B>, batch: &B::Batch) {
        match self {
            Self::Attention(attention) => attention.add(backend, x, mixed, batch),
            Self::Latent(attention) => attention.add(backend, x, &mixed.rows, batch),
            Self::State(state) => state.add(backend, x, &mixed.rows),
        }
    }
}

enum FeedForward<B: Backend> {
    Mlp(Mlp<B>),
    Experts(Mixture<B>),
}

impl<B: Backend> FeedForward<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        spec: FeedForwardSpec,
    ) -> Result<Self, LoadError> {
        let experts = loader.config().experts.as_ref();
        Ok(match spec {
            FeedForwardSpec::Mlp { bias } => Self::Mlp(Mlp::load(loader, layer, bias)?),
            FeedForwardSpec::NormedMlp => {
                let hidden = loader.config().hidden_size;
                let norm = format!("model.layers.{layer}.post_feedforward_layernorm");
                Self::Mlp(Mlp {
                    post_norm: Some(Norm::load(loader, &norm, hidden)?),
                    side: match experts.filter(|all| all.are_in(layer)) {
                        Some(experts) => Some(SideExperts::load(loader, layer, experts)?),
                        None => None,
                    },
                    ..Mlp::load(loader, layer, false)?
                })
            }
            FeedForwardSpec::Experts => match experts.filter(|all| all.are_in(layer)) {
                Some(experts) => Self::Experts(Mixture::load(loader, layer, experts)?),
                None => Self::Mlp(Mlp::load(loader, layer, loader.config().bias.mlp)?),
            },
        })
    }

    /// Adds what becomes of `x`, normed, to it.
    fn add(&self, backend: &mut B, norm: &Norm<B>, x: &mut B::Tensor) {
        match self {
            Self::Mlp(mlp) => {
                let normed = norm.forward(backend, x, &mlp.gate_up.weight);
                mlp.add(backend, x, &normed);
            }
            Self::Experts(mixture) => mixture.add(backend, norm, x),
        }
    }
}

/// The input of the rest of a layer, once all that the layer keeps is stored.
pub struct Mixed<B: Backend> {
    /// Queries, or what a state gave.
    pub rows: B::Tensor,
    /// Gates on attention's result.
    pub gate: Option<B::Tensor>,
}

impl<B: Backend> Mixed<B> {
    fn plain(rows: B::Tensor) -> Self {
        Self { rows, gate: None }
    }

    /// That of some tokens.
    fn pick(&self, backend: &mut B, tokens: &B::TokenList) -> Self {
        Self {
            rows: backend.pick(&self.rows, tokens),
            gate: self.gate.as_ref().map(|gate| backend.pick(gate, tokens)),
        }
    }
}

impl<B: Backend> Layer<B> {
    fn load(loader: &mut Loader<'_, B>, layer: usize, spec: LayerSpec) -> Result<Self, LoadError> {
        let norm = |name: &str| format!("model.layers.{layer}.{name}");
        let hidden = loader.config().hidden_size;
        Ok(Self {
            input_norm: Norm::load(loader, &norm("input_layernorm"), hidden)?,
            mixer: match loader.config().states_in(layer) {
                Some(_) => Mixer::State(StateMixer::load(loader, layer)?),
                None => Mixer::load(loader, layer, spec.mixer)?,
            },
            feed_forward_norm: Norm::load(loader, &norm(spec.feed_forward.input_norm()), hidden)?,
            feed_forward: FeedForward::load(loader, layer, spec.feed_forward)?,
            input: match loader.config().layer_inputs() {
                Some(inputs) => {
                    let input = LayerInput::load(loader, layer, inputs)?;
                    Some((input, loader.config().gate()))
                }
                None => None,
            },
            factor: match loader.config().fourth() {
                Some(_) => Some(loader.number(&norm("layer_scalar"))?),
                None => None,
            },
        })
    }

    /// Whether it keeps something of a sequence.
    fn keeps_something(&self) -> bool {
        match &self.mixer {
            Mixer::Attention(attention) => attention.keeps_kv(),
            Mixer::Latent(_) | Mixer::State(_) => true,
        }
    }

    /// Stores what the layer keeps of the residual stream `x`, and returns what goes on from there.
    fn mix(
        &self,
        backend: &mut B,
        x: &B::Tensor,
        rotations: &Rotations<B>,
        batch: &B::Batch,
    ) -> Mixed<B> {
        self.mixer
            .mix(backend, &self.input_norm, x, rotations, batch)
    }

    /// Adds the rest of the layer to `x`, with the tokens' inputs of all layers if there are some.
    fn add(
        &self,
        backend: &mut B,
        x: &mut B::Tensor,
        mixed: &Mixed<B>,
        (batch, inputs): (&B::Batch, Option<&B::Tensor>),
    ) {
        self.mixer.add(backend, x, mixed, batch);
        self.feed_forward.add(backend, &self.feed_forward_norm, x);
        if let (Some((input, gate)), Some(inputs)) = (&self.input, inputs) {
            input.add(backend, x, inputs, *gate);
        }
        if let Some(factor) = self.factor {
            backend.scale(x, factor);
        }
    }
}

/// What stands before the first layer and after the last one.
pub struct Ends<B: Backend> {
    embedding: B::Matrix,
    /// Factor on embeddings of tokens, and not on vectors of a prompt.
    embedding_scale: Option<f32>,
    /// What makes inputs of all layers beside the embedding.
    inputs: Option<InputTable<B>>,
    rope: B::Rope,
    /// That of layers with windows, where it is another one.
    window_rope: Option<B::Rope>,
    /// The rotation that turns nothing, where layers have no other.
    no_rope: Option<B::Rope>,
    norm: Norm<B>,
    /// Factor on embeddings of tokens and on vectors of a prompt.
    input_scale: Option<f32>,
    logits_divisor: Option<f32>,
    /// `None` when the output projection is the embedding.
    lm_head: Option<B::Matrix>,
    /// Logits bend towards this.
    logits_cap: Option<f32>,
}

/// The rotations of the tokens of a step.
pub struct Rotations<B: Backend> {
    /// Those in all layers, or in those without windows.
    pub all: B::Tensor,
    /// Those in layers with windows, where they are others.
    windowed: Option<B::Tensor>,
    /// Those of layers that positions do not rotate, of no width, where there are such layers.
    none: Option<B::Tensor>,
}

impl<B: Backend> Rotations<B> {
    /// Those in layers with a window, or with none.
    pub fn within(&self, window: Option<usize>) -> &B::Tensor {
        match &self.windowed {
            Some(windowed) if window.is_some() => windowed,
            _ => &self.all,
        }
    }

    /// Those in layers that positions do not rotate.
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
            lm_head: match tied {
                true => None,
                false => Some(loader.matrix(&[("lm_head.weight", vocab)], hidden)?),
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

/// Root mean square norm.
pub struct Norm<B: Backend> {
    weight: B::Vector,
    eps: f32,
}

impl<B: Backend> Norm<B> {
    /// Loads `{name}.weight`.
    pub fn load(loader: &mut Loader<'_, B>, name: &str, width: usize) -> Result<Self, LoadError> {
        let eps = loader.config().rms_norm_eps;
        Ok(Self {
            weight: loader.norm(&format!("{name}.weight"), width)?,
            eps,
        })
    }

    /// Loads the factors of a norm that are each multiplied with a number, under their own name.
    pub fn scaled(
        loader: &mut Loader<'_, B>,
        name: &str,
        width: usize,
        factor: f32,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            weight: loader.scaled_norm(name, width, factor)?,
            eps: loader.config().rms_norm_eps,
        })
    }

    /// Norms each row, for products with `reader`.
    pub fn forward(&self, backend: &mut B, x: &B::Tensor, reader: &B::Matrix) -> B::Operand {
        backend.rms_norm(x, &self.weight, self.eps, reader)
    }

    /// Norms each row of `x` and adds it to that of the residual stream.
    pub fn add(&self, backend: &mut B, residual: &mut B::Tensor, x: &B::Tensor) {
        backend.add_normed(residual, x, &self.weight, self.eps);
    }

    /// Norms each row.
    pub fn rows(&self, backend: &mut B, x: &B::Tensor) -> B::Tensor {
        backend.norm_rows(x, &self.weight, self.eps)
    }
}

/// The gated MLP: `down(g(gate(x), up(x)))`, where `g` is mostly `silu(gate) * up`.
pub struct Mlp<B: Backend> {
    gate_up: Linear<B>,
    gate: Gate,
    down: Linear<B>,
    /// Norms what it adds.
    post_norm: Option<Norm<B>>,
    /// What is added to its result before that.
    side: Option<SideExperts<B>>,
    residual_scale: Option<f32>,
}

impl<B: Backend> Mlp<B> {
    /// Loads `model.layers.{layer}.mlp`.
    pub fn load(loader: &mut Loader<'_, B>, layer: usize, bias: bool) -> Result<Self, LoadError> {
        let width = loader.config().intermediate_in(layer);
        Self::of_module(loader, &format!("model.layers.{layer}.mlp"), width, bias)
    }

    /// Loads the projections of a module.
    pub fn of_module(
        loader: &mut Loader<'_, B>,
        module: &str,
        width: usize,
        bias: bool,
    ) -> Result<Self, LoadError> {
        let hidden = loader.config().hidden_size;
        let name = |part: &str| format!("{module}.{part}");
        let gate_up = [(name("gate_proj"), width), (name("up_proj"), width)];
        Ok(Self {
            gate_up: loader.linear(&gate_up, hidden, bias)?,
            gate: loader.config().gate(),
            down: loader.linear(&[(name("down_proj"), hidden)], width, bias)?,
            post_norm: None,
            side: None,
            residual_scale: loader.config().residual_scale,
        })
    }

    /// Adds the MLP of `normed` to the residual stream `x`.
    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, normed: &B::Operand) {
        let gated = self.gated(backend, normed);
        match &self.post_norm {
            None => add_projected(backend, x, &gated, &self.down, self.residual_scale),
            Some(norm) => {
                let projected = backend.project(&gated, &self.down);
                let made = match &self.side {
                    Some(side) => side.sum(backend, x, &projected),
                    None => projected,
                };
                norm.add(backend, x, &made);
            }
        }
    }

    /// What goes on to the projection down.
    fn gated(&self, backend: &mut B, normed: &B::Operand) -> B::Operand {
        backend.gated(normed, &self.gate_up, self.gate, &self.down.weight)
    }
}

/// Adds a projection, times a factor if there is one, to the residual stream `x`.
pub fn add_projected<B: Backend>(
    backend: &mut B,
    x: &mut B::Tensor,
    operand: &B::Operand,
    projection: &Linear<B>,
    scale: Option<f32>,
) {
    match scale {
        None => backend.project_add(x, operand, projection),
        Some(scale) => {
            let projected = backend.project(operand, projection);
            backend.add_scaled(x, &projected, scale);
        }
    }
}

/// Experts in the place of an MLP, of which a router chooses. Beside them there may be one that every token goes through.
pub struct Mixture<B: Backend> {
    experts: RoutedExperts<B>,
    /// One that all tokens go through.
    shared: Option<Mlp<B>>,
    /// The same behind a gate.
    gated: Option<GatedExpert<B>>,
}

impl<B: Backend> Mixture<B> {
    /// Loads the experts of a layer.
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        config: &ExpertsConfig,
    ) -> Result<Self, LoadError> {
        let bias = loader.config().bias.mlp;
        let shared = config
            .shared_width
            .map(|width| Mlp::of_module(loader, &config.names.shared(layer), width, bias))
            .transpose()?;
        Ok(Self {
            shared,
            experts: RoutedExperts::load(loader, layer, config)?,
            gated: load_gated_expert(loader, layer)?,
        })
    }

    /// Adds what the experts make of the residual stream `x`, normed, to it.
    pub fn add(&self, backend: &mut B, norm: &Norm<B>, x: &mut B::Tensor) {
        let normed = norm.rows(backend, x);
        let shared = self.shared.as_ref().map(|shared| {
            let normed = norm.forward(backend, x, &shared.gate_up.weight);
            shared.gated(backend, &normed)
        });
        self.experts.add(backend, x, &normed, &normed);
        if let Some((gate, expert)) = &self.gated {
            backend.add_gated_expert(x, &normed, gate, expert);
        }
        if let (Some(shared), Some(gated)) = (&self.shared, &shared) {
            backend.project_add(x, gated, &shared.down);
        }
    }
}
