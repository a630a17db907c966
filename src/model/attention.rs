//! Grouped-query attention, as most families have it.

use crate::error::LoadError;
use crate::kernels::rope::{PositionScale, Rope};
use crate::kernels::{Backend, HeadShape, Linear, QkvWeights};
use crate::model::blocks::{Mixed, add_projected};
use crate::model::config::ModelConfig;
use crate::model::loader::Loader;
use crate::state::pool::kv_layout::Values;

/// The parts of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    /// The q, k and v projections add a bias.
    pub qkv_bias: bool,
    /// The output projection adds a bias.
    pub o_bias: bool,
    /// Every head of q and k is normed before the rotation.
    pub qk_norm: bool,
    /// Every query head has a score without a value.
    pub sinks: bool,
    /// How many tokens a query sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// Positions rotate queries and keys.
    pub rotates: bool,
    /// Factor on queries, by their positions.
    pub query_scale: Option<PositionScale>,
}

impl AttentionSpec {
    /// Biases, window and rotation as the configuration has them for a layer, and nothing more.
    pub fn plain(config: &ModelConfig, layer: usize) -> Self {
        Self {
            qkv_bias: config.bias.qkv,
            o_bias: config.bias.o,
            qk_norm: false,
            sinks: false,
            window: config.windows[layer],
            rotates: config.rotated[layer],
            query_scale: None,
        }
    }
}

/// Grouped-query attention with rotary positions.
pub struct Attention<B: Backend> {
    layer: usize,
    heads: HeadShape,
    qkv: QkvWeights<B>,
    /// The rotation that turns nothing, in a layer that has no other.
    unrotated: Option<B::Rope>,
    query_scale: Option<PositionScale>,
    residual_scale: Option<f32>,
    /// The projection to gates on the result.
    gate: Option<Linear<B>>,
    sinks: Option<B::Vector>,
    o: Linear<B>,
}

impl<B: Backend> Attention<B> {
    /// Loads `model.layers.{layer}.self_attn`.
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        spec: AttentionSpec,
    ) -> Result<Self, LoadError> {
        let config = loader.config();
        let (hidden, q, kv) = (config.hidden_size, config.q_width(), config.kv_width());
        let (head_dim, eps) = (config.head_dim, config.rms_norm_eps);
        let heads = HeadShape {
            n_heads: config.num_attention_heads,
            n_kv_heads: config.num_key_value_heads,
            key_dim: head_dim,
            values: Values::Own { dim: head_dim },
            scale: config.attention_scale(),
            window: spec.window,
        };
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let names = [
            (name("q_proj"), q),
            (name("k_proj"), kv),
            (name("v_proj"), kv),
        ];
        let qkv = QkvWeights {
            projection: loader.linear(&names, hidden, spec.qkv_bias)?,
            head_norms: match spec.qk_norm {
                true => Some((
                    loader.norm(&name("q_norm.weight"), head_dim)?,
                    loader.norm(&name("k_norm.weight"), head_dim)?,
                )),
                false => None,
            },
            eps,
        };
        let gate = match loader.config().gates_attention() {
            true => Some(loader.linear(&[(name("gate_proj"), q)], hidden, spec.qkv_bias)?),
            false => None,
        };
        let n_heads = heads.n_heads;
        let sinks = match spec.sinks {
            true => Some(loader.vector(&[(&name("sinks"), n_heads)])?),
            false => None,
        };
        let o = loader.linear(&[(name("o_proj"), hidden)], q, spec.o_bias)?;
        Ok(Self {
            layer,
            heads,
            qkv,
            unrotated: match spec.rotates {
                true => None,
                false => Some(loader.rope_of(&Rope::none())),
            },
            query_scale: spec.query_scale,
            residual_scale: loader.config().residual_scale,
            gate,
            sinks,
            o,
        })
    }

    /// The first of its matrices that reads normed tokens.
    pub fn reader(&self) -> &B::Matrix {
        &self.qkv.projection.weight
    }

    /// Stores the keys and values of `normed` and returns its queries, and its gates if there are some.
    pub fn queries(
        &self,
        backend: &mut B,
        normed: &B::Operand,
        rotations: &B::Tensor,
        batch: &B::Batch,
    ) -> Mixed<B> {
        let none = self.unrotated.as_ref();
        let none = none.map(|none| backend.rotations(none, batch));
        let rotations = none.as_ref().unwrap_or(rotations);
        let (qkv, heads) = (&self.qkv, &self.heads);
        let mut rows = backend.project_qkv(normed, qkv, heads, rotations, self.layer, batch);
        if let Some(scale) = self.query_scale {
            backend.scale_by_position(&mut rows, scale, batch);
        }
        Mixed {
            rows,
            gate: self.gate.as_ref().map(|gate| backend.project(normed, gate)),
        }
    }

    /// Adds the attention of queries to the residual stream `x`.
    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, queries: &Mixed<B>, batch: &B::Batch) {
        let (q, reader) = (&queries.rows, &self.o.weight);
        let attended = match &queries.gate {
            None => {
                let heads = (&self.heads, self.sinks.as_ref());
                backend.attend(q, heads, self.layer, batch, reader)
            }
            Some(gate) => backend.attend_gated((q, gate), &self.heads, self.layer, batch, reader),
        };
        add_projected(backend, x, &attended, &self.o, self.residual_scale);
    }
}
