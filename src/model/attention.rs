//! Grouped-query attention (GQA): projections, head norms, RoPE, gate and output projection.

use crate::blocks::ends::Rotations;
use crate::blocks::mixed::Mixed;
use crate::blocks::mlp::add_projected;
use crate::blocks::norm::Norm;
pub use crate::layer_spec::AttentionSpec;
use crate::layer_spec::QkNorm;
use crate::loader::Loader;
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::Values;
use souffleur_kernels::rope::PositionScale;
use souffleur_kernels::{Backend, HeadShape, Linear, QkvWeights, QueryWeights};

pub struct Attention<B: Backend> {
    /// The layer whose KV it reads.
    source: usize,
    heads: HeadShape,
    input: Input<B>,
    rotates: bool,
    query_scale: Option<PositionScale>,
    residual_scale: Option<f32>,
    gate: Option<Linear<B>>,
    sinks: Option<B::Vector>,
    o: Linear<B>,
    /// Norm of the output, before the residual add.
    post_norm: Option<Norm<B>>,
}

enum Input<B: Backend> {
    Qkv(QkvWeights<B>),
    /// The layer reads another layer's KV.
    Queries(QueryWeights<B>),
}

impl<B: Backend> Input<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        (spec, heads): (AttentionSpec, &HeadShape),
    ) -> Result<Self, LoadError> {
        let config = loader.config();
        let (hidden, eps, dim) = (config.hidden_size, config.rms_norm_eps, heads.key_dim);
        let (q, kv) = (heads.q_width(), heads.n_kv_heads * dim);
        let norms_together = spec.qk_norm == QkNorm::Whole;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let norm = |loader: &mut Loader<'_, B>, part: &str, whole: usize| {
            let width = match spec.qk_norm {
                QkNorm::None => return Ok(None),
                QkNorm::Heads => dim,
                QkNorm::Whole => whole,
            };
            loader.norm(&name(part), width).map(Some)
        };
        if config.kv_source(layer) != layer {
            return Ok(Self::Queries(QueryWeights {
                projection: loader.linear(&[(name("q_proj"), q)], hidden, spec.qkv_bias)?,
                head_norm: norm(loader, "q_norm.weight", q)?,
                norms_together,
                eps,
            }));
        }
        let names = [
            (name("q_proj"), q),
            (name("k_proj"), kv),
            (name(config.value_projection(layer)), kv),
        ];
        let projection = loader.linear(&names, hidden, spec.qkv_bias)?;
        let norms = (
            norm(loader, "q_norm.weight", q)?,
            norm(loader, "k_norm.weight", kv)?,
        );
        Ok(Self::Qkv(QkvWeights {
            projection,
            head_norms: norms.0.zip(norms.1),
            norms_together,
            norms_values: spec.v_norm,
            eps,
        }))
    }

    fn weight(&self) -> &B::Matrix {
        match self {
            Self::Qkv(weights) => &weights.projection.weight,
            Self::Queries(weights) => &weights.projection.weight,
        }
    }
}

impl<B: Backend> Attention<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        layer: usize,
        spec: AttentionSpec,
    ) -> Result<Self, LoadError> {
        let config = loader.config();
        let (n_kv_heads, head_dim) = config.heads_in(layer);
        let heads = HeadShape {
            n_heads: config.num_attention_heads,
            n_kv_heads,
            key_dim: head_dim,
            values: Values::Own { dim: head_dim },
            scale: config.attention_scale(),
            score_cap: config.gemma.as_ref().and_then(|gemma| gemma.score_cap),
            window: spec.window,
        };
        let (hidden, q) = (config.hidden_size, heads.q_width());
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let source = config.kv_source(layer);
        let input = Input::load(loader, layer, (spec, &heads))?;
        let gate = if loader.config().gates_attention() {
            Some(loader.linear(&[(name("gate_proj"), q)], hidden, spec.qkv_bias)?)
        } else {
            None
        };
        let n_heads = heads.n_heads;
        let sinks = if spec.sinks {
            Some(loader.vector(&[(&name("sinks"), n_heads)])?)
        } else {
            None
        };
        let o = loader.linear(&[(name("o_proj"), hidden)], q, spec.o_bias)?;
        let post_norm = if spec.post_norm {
            let name = format!("model.layers.{layer}.post_attention_layernorm");
            Some(Norm::load(loader, &name, hidden)?)
        } else {
            None
        };
        Ok(Self {
            source,
            heads,
            input,
            rotates: loader.config().rotated[layer],
            query_scale: spec.query_scale,
            residual_scale: loader.config().residual_scale,
            gate,
            sinks,
            o,
            post_norm,
        })
    }

    pub fn keeps_kv(&self) -> bool {
        matches!(self.input, Input::Qkv(_))
    }

    /// The projection that reads the normalised input.
    pub fn reader(&self) -> &B::Matrix {
        self.input.weight()
    }

    /// Projects `normed` to queries and any gates, and stores keys and values if the layer keeps its KV.
    pub fn queries(
        &self,
        backend: &mut B,
        normed: &B::Operand,
        rotations: &Rotations<B>,
        batch: &B::Batch,
    ) -> Mixed<B> {
        let heads = &self.heads;
        let rotations = if self.rotates {
            rotations.within(heads.window)
        } else {
            rotations.none()
        };
        let mut rows = match &self.input {
            Input::Qkv(weights) => {
                backend.project_qkv(normed, weights, heads, rotations, self.source, batch)
            }
            Input::Queries(weights) => backend.project_queries(normed, weights, heads, rotations),
        };
        if let Some(scale) = self.query_scale {
            backend.scale_by_position(&mut rows, scale, batch);
        }
        Mixed {
            rows,
            gate: self.gate.as_ref().map(|gate| backend.project(normed, gate)),
        }
    }

    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, queries: &Mixed<B>, batch: &B::Batch) {
        let (q, reader) = (&queries.rows, &self.o.weight);
        let attended = match &queries.gate {
            None => {
                let heads = (&self.heads, self.sinks.as_ref());
                backend.attend(q, heads, self.source, batch, reader)
            }
            Some(gate) => backend.attend_gated((q, gate), &self.heads, self.source, batch, reader),
        };
        match &self.post_norm {
            None => add_projected(backend, x, &attended, &self.o, self.residual_scale),
            Some(norm) => {
                let projected = backend.project(&attended, &self.o);
                norm.add(backend, x, &projected);
            }
        }
    }
}
