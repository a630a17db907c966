//! Loads a tower's tensors into a backend.

use super::checkpoint::TowerCheckpoint;
use super::parts::{BOUNDS, Part, Scope, Source};
use super::{TowerConfig, TowerFamily};
use souffleur_base::error::LoadError;
use souffleur_kernels::Linear;
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::tensor_view::TensorView;
use souffleur_kernels::vision::{LayerNorm, VisionOps};

pub(super) struct TowerLoader<'a, B: VisionOps> {
    pub checkpoint: &'a TowerCheckpoint,
    pub backend: &'a mut B,
}

/// The bounds of a clipped matrix's inputs and outputs.
#[derive(Clone, Copy)]
pub(super) struct Clip {
    pub inputs: [f32; 2],
    pub outputs: [f32; 2],
}

impl<'a, B: VisionOps> TowerLoader<'a, B> {
    pub fn config(&self) -> &'a TowerConfig {
        &self.checkpoint.config
    }

    /// All values of a tensor, on the host.
    pub fn values(&self, part: Part) -> Result<Vec<f32>, LoadError> {
        let values = self.checkpoint.view(part)?.to_f32();
        self.checkpoint.release(part);
        Ok(values)
    }

    pub fn vector(&mut self, part: Part) -> Result<B::Vector, LoadError> {
        let values = self.values(part)?;
        Ok(self.made_vector(&values))
    }

    pub fn made_vector(&mut self, values: &[f32]) -> B::Vector {
        let shape = [values.len()];
        let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(values));
        self.backend.vector(&[view])
    }

    /// A matrix of values on the host.
    pub fn made_matrix(&mut self, values: &[f32], shape: [usize; 2]) -> B::Matrix {
        let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(values));
        self.backend.matrix(&[view], &[MatrixRole::Inner])
    }

    pub fn layer_norm(
        &mut self,
        scope: Scope,
        stem: &'static str,
        eps: f32,
    ) -> Result<LayerNorm<B>, LoadError> {
        Ok(LayerNorm {
            weight: self.vector(Part::new(scope, stem, "weight"))?,
            bias: self.vector(Part::new(scope, stem, "bias"))?,
            eps,
        })
    }

    /// Linear layers of equal width, stacked in order.
    pub fn linear(
        &mut self,
        scope: Scope,
        stems: &[&'static str],
        has_bias: bool,
    ) -> Result<Linear<B>, LoadError> {
        let checkpoint = self.checkpoint;
        let parts = |suffix: &'static str| {
            let parts = stems
                .iter()
                .map(move |&stem| Part::new(scope, stem, suffix));
            parts.collect::<Vec<Part>>()
        };
        let views = |parts: &[Part]| {
            let views = parts.iter().map(|part| checkpoint.view(*part));
            views.collect::<Result<Vec<TensorView<'_>>, LoadError>>()
        };
        let (weights, biases) = (parts("weight"), parts("bias"));
        let whole = views(&weights)?;
        let flat = |view: &TensorView<'_>| [view.shape[0], view.width()];
        let shapes: Vec<[usize; 2]> = whole.iter().map(flat).collect();
        let matrices = whole.iter().zip(&shapes);
        let matrices = matrices.map(|(view, shape)| TensorView { shape, ..*view });
        let matrices: Vec<TensorView<'_>> = matrices.collect();
        let roles = vec![MatrixRole::Inner; matrices.len()];
        let weight = self.backend.matrix(&matrices, &roles);
        weights.iter().for_each(|part| checkpoint.release(*part));
        let bias = if has_bias {
            Some(self.backend.vector(&views(&biases)?))
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    /// The bounds of a matrix of a layer, if the tower has them.
    pub fn clip(&self, layer: Scope, stem: &'static str) -> Result<Option<Clip>, LoadError> {
        if !self.config().clips {
            return Ok(None);
        }
        let mut bounds = [0.0; BOUNDS.len()];
        for (bound, suffix) in bounds.iter_mut().zip(BOUNDS) {
            *bound = self.values(Part::new(layer, stem, suffix))?[0];
        }
        let [input_min, input_max, output_min, output_max] = bounds;
        Ok(Some(Clip {
            inputs: [input_min, input_max],
            outputs: [output_min, output_max],
        }))
    }

    /// The embedding of patches, whose values are in the order in which images are cut.
    pub fn patch_embedding(&mut self) -> Result<Linear<B>, LoadError> {
        let config = self.config();
        let has_bias = config.is_biased();
        if self.checkpoint.source == Source::Safetensors {
            return self.linear(Scope::Tower, &["patch"], has_bias);
        }
        let part = |suffix: &'static str| Part::new(Scope::Tower, "patch", suffix);
        let values = match config.family {
            TowerFamily::Qwen => {
                let frames = [self.values(part("weight"))?, self.values(part("weight.1"))?];
                interleaved(&frames, config.patch * config.patch)
            }
            TowerFamily::Gemma4 | TowerFamily::Lfm2 => {
                channels_last(&self.values(part("weight"))?, config.patch * config.patch)
            }
            TowerFamily::Gemma3 | TowerFamily::Pixtral => {
                return self.linear(Scope::Tower, &["patch"], has_bias);
            }
        };
        let weight = self.made_matrix(&values, [config.hidden, config.patch_dim()]);
        let bias = if has_bias {
            Some(self.vector(part("bias"))?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }
}

/// Joins the frames' weights: for each output and channel the values of all frames. `area` is the pixels of a patch.
fn interleaved(frames: &[Vec<f32>; 2], area: usize) -> Vec<f32> {
    let [first, second] = frames;
    let channels = first.chunks_exact(area).zip(second.chunks_exact(area));
    channels
        .flat_map(|(a, b)| [a, b])
        .flatten()
        .copied()
        .collect()
}

/// From `[output][channel][pixel]` to `[output][pixel][channel]`.
fn channels_last(values: &[f32], area: usize) -> Vec<f32> {
    let mut moved = Vec::with_capacity(values.len());
    for output in values.chunks_exact(3 * area) {
        for pixel in 0..area {
            moved.extend([0, 1, 2].map(|channel| output[channel * area + pixel]));
        }
    }
    moved
}
