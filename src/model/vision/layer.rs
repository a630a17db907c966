//! The layers of a tower: attention over all patches of an image, then an MLP.
//!
//! A layer computes a block of patches at a time. The keys and values of all blocks come before the attention of any;
//! all else depends on the block's own patches.

use super::loader::{Clip, TowerLoader};
use super::parts::{Part, Scope};
use super::{TowerConfig, TowerFamily};
use souffleur_base::error::LoadError;
use souffleur_kernels::Linear;
use souffleur_kernels::vision::{Activation, Columns, ImageHeads, ImageKeys, LayerNorm, VisionOps};

pub(super) enum TowerNorm<B: VisionOps> {
    Layer(LayerNorm<B>),
    /// RMSNorm: weight and epsilon.
    Rms(B::Vector, f32),
}

impl<B: VisionOps> TowerNorm<B> {
    /// A norm of a layer or of the tower.
    pub fn load(
        loader: &mut TowerLoader<'_, B>,
        scope: Scope,
        stem: &'static str,
    ) -> Result<Self, LoadError> {
        let eps = loader.config().eps;
        if loader.config().is_biased() {
            return Ok(Self::Layer(loader.layer_norm(scope, stem, eps)?));
        }
        let weight = loader.vector(Part::new(scope, stem, "weight"))?;
        Ok(Self::Rms(weight, eps))
    }

    pub fn rows(&self, backend: &mut B, x: &B::Tensor) -> B::Tensor {
        match self {
            Self::Layer(norm) => backend.layer_norm(x, norm),
            Self::Rms(weight, eps) => backend.norm_rows(x, weight, *eps),
        }
    }
}

/// A matrix of a layer, or several that are stacked.
struct Projection<B: VisionOps> {
    linear: Linear<B>,
    clip: Option<Clip>,
}

impl<B: VisionOps> Projection<B> {
    /// Matrices that read the same rows: stacked, or each alone if their bounds differ.
    fn load_all(
        loader: &mut TowerLoader<'_, B>,
        layer: Scope,
        stems: &[&'static str],
    ) -> Result<Vec<Self>, LoadError> {
        let has_bias = loader.config().is_biased();
        if !loader.config().clips {
            let linear = loader.linear(layer, stems, has_bias)?;
            return Ok(vec![Self { linear, clip: None }]);
        }
        stems
            .iter()
            .map(|&stem| Self::load(loader, layer, stem))
            .collect()
    }

    fn load(
        loader: &mut TowerLoader<'_, B>,
        layer: Scope,
        stem: &'static str,
    ) -> Result<Self, LoadError> {
        let has_bias = loader.config().is_biased();
        Ok(Self {
            linear: loader.linear(layer, &[stem], has_bias)?,
            clip: loader.clip(layer, stem)?,
        })
    }

    fn forward(&self, backend: &mut B, x: &B::Tensor) -> B::Tensor {
        let Some(clip) = self.clip else {
            let operand = backend.operand(x, &self.linear.weight);
            return backend.project(&operand, &self.linear);
        };
        let clipped = backend.clamped(x, clip.inputs);
        let operand = backend.operand(&clipped, &self.linear.weight);
        let projected = backend.project(&operand, &self.linear);
        backend.clamped(&projected, clip.outputs)
    }

    /// Adds the product to the residual stream, through the norm if there is one.
    fn add(
        &self,
        backend: &mut B,
        residual: &mut B::Tensor,
        x: &B::Tensor,
        norm: Option<&(B::Vector, f32)>,
    ) {
        if self.clip.is_none() && norm.is_none() {
            let operand = backend.operand(x, &self.linear.weight);
            return backend.project_add(residual, &operand, &self.linear);
        }
        let projected = self.forward(backend, x);
        match norm {
            Some((weight, eps)) => backend.add_normed(residual, &projected, weight, *eps),
            None => backend.add_scaled(residual, &projected, 1.0),
        }
    }
}

/// Norms of the heads of queries, keys and values.
struct HeadNorms<B: VisionOps> {
    weights: [B::Vector; 3],
    eps: f32,
}

struct TowerAttention<B: VisionOps> {
    /// One for queries, keys and values together, or one for each.
    projections: Vec<Projection<B>>,
    head_norms: Option<HeadNorms<B>>,
    heads: ImageHeads,
    output: Projection<B>,
    /// Norm of the output.
    post_norm: Option<(B::Vector, f32)>,
}

/// The RoPE factors of a block of patches, and the number of elements of a head in whose halves the pairs are.
pub(super) struct ImageRotations<B: VisionOps> {
    pub rows: B::Tensor,
    pub block: usize,
}

impl<B: VisionOps> TowerAttention<B> {
    fn load(loader: &mut TowerLoader<'_, B>, layer: Scope) -> Result<Self, LoadError> {
        let config = loader.config();
        let stems: &[&'static str] = match config.family {
            TowerFamily::Qwen => &["qkv"],
            _ => &["q", "k", "v"],
        };
        Ok(Self {
            projections: Projection::load_all(loader, layer, stems)?,
            head_norms: match config.family {
                TowerFamily::Gemma4 => Some(HeadNorms {
                    weights: [
                        loader.vector(Part::new(layer, "q_norm", "weight"))?,
                        loader.vector(Part::new(layer, "k_norm", "weight"))?,
                        loader.made_vector(&vec![1.0; config.head_dim]),
                    ],
                    eps: config.eps,
                }),
                _ => None,
            },
            heads: heads(config),
            output: Projection::load(loader, layer, "o")?,
            post_norm: post_norm(loader, layer, "post_norm1")?,
        })
    }

    /// Keeps the keys and values of a block, of which the first patch has the index `first`. Returns the queries.
    fn project(
        &self,
        backend: &mut B,
        normed: &B::Tensor,
        rotations: Option<&ImageRotations<B>>,
        (keys, first): (&mut ImageKeys<B>, usize),
    ) -> B::Tensor {
        let mut parts = Vec::with_capacity(self.projections.len());
        for projection in &self.projections {
            parts.push(projection.forward(backend, normed));
        }
        let (n_heads, width) = (self.heads.n_heads, self.heads.width());
        let is_stacked = parts.len() == 1;
        // The tensor and the first column of queries, keys and values.
        let place = |index: usize| {
            if is_stacked {
                (0, index * width)
            } else {
                (index, 0)
            }
        };
        if let Some(norms) = &self.head_norms {
            for (index, weight) in norms.weights.iter().enumerate() {
                let (part, first) = place(index);
                backend.norm_heads(&mut parts[part], (first, n_heads), (weight, norms.eps));
            }
        }
        if let Some(ImageRotations { rows, block }) = rotations {
            // Stacked, keys follow the queries.
            let (n_parts, n_heads) = if is_stacked {
                (1, 2 * n_heads)
            } else {
                (2, n_heads)
            };
            for part in &mut parts[..n_parts] {
                backend.rotate_heads(part, n_heads, rows, *block);
            }
        }
        let keys_values = [1, 2].map(|index| {
            let (part, first) = place(index);
            Columns {
                rows: &parts[part],
                first,
            }
        });
        backend.keep_keys(keys, first, keys_values, &self.heads);
        let queries = Columns {
            rows: &parts[0],
            first: 0,
        };
        backend.keep(queries, width)
    }
}

struct TowerMlp<B: VisionOps> {
    /// Up, or gate and up: together, or one for each.
    projections: Vec<Projection<B>>,
    is_gated: bool,
    width: usize,
    activation: Activation,
    down: Projection<B>,
    /// Norm of the output.
    post_norm: Option<(B::Vector, f32)>,
}

impl<B: VisionOps> TowerMlp<B> {
    fn load(loader: &mut TowerLoader<'_, B>, layer: Scope) -> Result<Self, LoadError> {
        let config = loader.config();
        let stems: &[&'static str] = if config.is_gated() {
            &["gate", "up"]
        } else {
            &["up"]
        };
        Ok(Self {
            projections: Projection::load_all(loader, layer, stems)?,
            is_gated: config.is_gated(),
            width: config.intermediate,
            activation: config.activation,
            down: Projection::load(loader, layer, "down")?,
            post_norm: post_norm(loader, layer, "post_norm2")?,
        })
    }

    fn hidden(&self, backend: &mut B, normed: &B::Tensor) -> B::Tensor {
        let mut first = self.projections[0].forward(backend, normed);
        if !self.is_gated {
            backend.activate(&mut first, self.activation);
            return first;
        }
        let gates = Columns {
            rows: &first,
            first: 0,
        };
        match self.projections.get(1) {
            None => {
                let ups = Columns {
                    rows: &first,
                    first: self.width,
                };
                backend.gate(gates, ups, self.width, self.activation)
            }
            Some(up) => {
                let second = up.forward(backend, normed);
                let ups = Columns {
                    rows: &second,
                    first: 0,
                };
                backend.gate(gates, ups, self.width, self.activation)
            }
        }
    }
}

pub(super) struct TowerLayer<B: VisionOps> {
    norm1: TowerNorm<B>,
    attention: TowerAttention<B>,
    norm2: TowerNorm<B>,
    mlp: TowerMlp<B>,
}

impl<B: VisionOps> TowerLayer<B> {
    pub fn load(loader: &mut TowerLoader<'_, B>, layer: usize) -> Result<Self, LoadError> {
        let layer = Scope::Layer(layer);
        Ok(Self {
            norm1: TowerNorm::load(loader, layer, "norm1")?,
            attention: TowerAttention::load(loader, layer)?,
            norm2: TowerNorm::load(loader, layer, "norm2")?,
            mlp: TowerMlp::load(loader, layer)?,
        })
    }

    /// Keeps the keys and values of a block, and returns its queries.
    ///
    /// # Shapes
    /// `x: [n, hidden]`, the residual stream; `keys`: those of the image, and the index of the block's first patch.
    pub fn project(
        &self,
        backend: &mut B,
        x: &B::Tensor,
        rotations: Option<&ImageRotations<B>>,
        keys: (&mut ImageKeys<B>, usize),
    ) -> B::Tensor {
        let normed = self.norm1.rows(backend, x);
        self.attention.project(backend, &normed, rotations, keys)
    }

    /// Adds attention and MLP to the residual stream of a block, `[n, hidden]`. The keys of all blocks were kept.
    pub fn add(&self, backend: &mut B, x: &mut B::Tensor, queries: B::Tensor, keys: &ImageKeys<B>) {
        let columns = Columns {
            rows: &queries,
            first: 0,
        };
        let attended = backend.attend_image(columns, keys, &self.attention.heads);
        // Its memory is free for the next tensors.
        drop(queries);
        let post_norm = self.attention.post_norm.as_ref();
        self.attention.output.add(backend, x, &attended, post_norm);
        drop(attended);
        let normed = self.norm2.rows(backend, x);
        let hidden = self.mlp.hidden(backend, &normed);
        drop(normed);
        let post_norm = self.mlp.post_norm.as_ref();
        self.mlp.down.add(backend, x, &hidden, post_norm);
    }
}

pub(super) fn heads(config: &TowerConfig) -> ImageHeads {
    ImageHeads {
        n_heads: config.n_heads,
        head_dim: config.head_dim,
        scale: match config.family {
            // Its heads are normalised.
            TowerFamily::Gemma4 => 1.0,
            _ => (config.head_dim as f32).sqrt().recip(),
        },
    }
}

/// The RMSNorm of a block's output, in the family that has one.
fn post_norm<B: VisionOps>(
    loader: &mut TowerLoader<'_, B>,
    layer: Scope,
    stem: &'static str,
) -> Result<Option<(B::Vector, f32)>, LoadError> {
    match loader.config().family {
        TowerFamily::Gemma4 => {
            let weight = loader.vector(Part::new(layer, stem, "weight"))?;
            Ok(Some((weight, loader.config().eps)))
        }
        _ => Ok(None),
    }
}
