//! Per-layer inputs, looked up by token (Gemma 4).
//!
//! A layer's input for a token is a vector from a table, plus a projection of the token's embedding that is normalised
//! per layer. The layer gates the input by the residual stream, projects and normalises it, and adds it to the stream.

use crate::blocks::norm::Norm;
use crate::config::gemma4::LayerInputs;
use crate::loader::Loader;
use souffleur_base::error::LoadError;
use souffleur_kernels::{Backend, Gate, Linear};

pub struct InputTable<B: Backend> {
    table: B::Matrix,
    table_scale: f32,
    projection: Linear<B>,
    projection_scale: f32,
    norm: Norm<B>,
}

impl<B: Backend> InputTable<B> {
    pub fn load(loader: &mut Loader<'_, B>, inputs: LayerInputs) -> Result<Self, LoadError> {
        let config = loader.config();
        let (hidden, width) = (config.hidden_size, config.num_hidden_layers * inputs.width);
        let table = [("model.embed_tokens_per_layer.weight", inputs.vocab_size)];
        let projection = [("model.per_layer_model_projection".to_owned(), width)];
        Ok(Self {
            table: loader.matrix(&table, width)?,
            table_scale: loader.rounded((inputs.width as f64).sqrt() as f32),
            projection: loader.linear(&projection, hidden, false)?,
            projection_scale: (hidden as f64).powf(-0.5) as f32,
            norm: Norm::load(loader, "model.per_layer_projection_norm", inputs.width)?,
        })
    }

    /// The inputs of a step's tokens, which have the embeddings `x`: a vector for each layer.
    pub fn inputs(&self, backend: &mut B, x: &B::Tensor, batch: &B::Batch) -> B::Tensor {
        let mut inputs = backend.look_up(&self.table, Some(self.table_scale), batch);
        let x = backend.operand(x, &self.projection.weight);
        let mut projected = backend.project(&x, &self.projection);
        backend.scale(&mut projected, self.projection_scale);
        self.norm.add(backend, &mut inputs, &projected);
        backend.scale(&mut inputs, std::f32::consts::FRAC_1_SQRT_2);
        inputs
    }
}

pub struct LayerInput<B: Backend> {
    layer: usize,
    gate: Linear<B>,
    projection: Linear<B>,
    norm: Norm<B>,
}

impl<B: Backend> LayerInput<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        inputs: LayerInputs,
    ) -> Result<Self, LoadError> {
        let hidden = loader.config().hidden_size;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let gate = [(name("per_layer_input_gate"), inputs.width)];
        let projection = [(name("per_layer_projection"), hidden)];
        Ok(Self {
            layer,
            gate: loader.linear(&gate, hidden, false)?,
            projection: loader.linear(&projection, inputs.width, false)?,
            norm: Norm::load(loader, &name("post_per_layer_input_norm"), hidden)?,
        })
    }

    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, inputs: &B::Tensor, gate: Gate) {
        let rows = backend.operand(x, &self.gate.weight);
        let gates = backend.project(&rows, &self.gate);
        let reader = &self.projection.weight;
        let gated = backend.gated_part((&gates, gate), (inputs, self.layer), reader);
        let projected = backend.project(&gated, &self.projection);
        self.norm.add(backend, x, &projected);
    }
}
