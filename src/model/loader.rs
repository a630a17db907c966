//! From a model's folder to weights on a device.
//!
//! [`Checkpoint::open`] checks everything that can be known without taking memory; [`Loader`] then hands tensors to a
//! backend one by one and reports progress.

use std::path::Path;

use crate::error::LoadError;
use crate::kernels::{Backend, Linear};
use crate::model::config::ModelConfig;
use crate::model::rope::Rope;
use crate::model::weights::{Dtype, Quantization, TensorSpec, TensorView, Weights};
use crate::state::kv_layout::MhaLayout;

/// Is told how far loading is: bytes read, bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A model's folder, opened and checked: every tensor is there, in the shape that `config.json` asks for.
pub struct Checkpoint {
    /// What the model is.
    pub config: ModelConfig,
    /// Element type that matrices and KV will have.
    pub dtype: Dtype,
    weights: Weights,
}

impl Checkpoint {
    /// Opens a folder. Without a `dtype` the model runs in that of its embedding.
    ///
    /// # Errors
    /// Any [`LoadError`] but [`LoadError::Memory`].
    pub fn open(dir: &Path, dtype: Option<Dtype>) -> Result<Self, LoadError> {
        let config = ModelConfig::read(dir)?;
        let weights = Weights::open(dir)?;
        weights.check(&config.tensors())?;
        let stored = weights.dtype("model.embed_tokens.weight");
        let dtype = dtype.or(stored).unwrap_or(Dtype::F32);
        Ok(Self {
            config,
            dtype,
            weights,
        })
    }

    /// How K/V lies in the pool.
    pub fn kv_layout(&self) -> MhaLayout {
        self.config.kv_layout(self.dtype)
    }

    /// What the loaded weights take, in bytes: matrices in `dtype` or quantised, norms and biases in f32.
    pub fn weights_bytes(&self, quantization: Option<Quantization>) -> u64 {
        let bytes = |spec: &TensorSpec| match (spec.shape.as_slice(), quantization) {
            (&[outputs, inputs], Some(quantization)) => {
                quantization.bytes(outputs as u64, inputs as u64)
            }
            (&[_, _], None) => spec.elements() * self.dtype.bytes() as u64,
            _ => spec.elements() * 4,
        };
        self.config.tensors().iter().map(bytes).sum()
    }

    /// Bytes of the model's tensors as stored.
    fn stored_bytes(&self) -> u64 {
        let stored = |name: &str| self.weights.dtype(name).map_or(0, Dtype::bytes) as u64;
        self.config
            .tensors()
            .iter()
            .map(|spec| spec.elements() * stored(&spec.name))
            .sum()
    }
}

/// Hands the tensors of a checkpoint to a backend.
pub struct Loader<'a, B: Backend> {
    checkpoint: &'a Checkpoint,
    backend: &'a mut B,
    progress: Progress<'a>,
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Begins to load `checkpoint` into `backend`.
    pub fn new(checkpoint: &'a Checkpoint, backend: &'a mut B, progress: Progress<'a>) -> Self {
        let total_bytes = checkpoint.stored_bytes();
        Self {
            checkpoint,
            backend,
            progress,
            done_bytes: 0,
            total_bytes,
        }
    }

    /// What the model is.
    pub fn config(&self) -> &'a ModelConfig {
        &self.checkpoint.config
    }

    /// Loads matrices `(name, outputs)` of `inputs` each, stacked.
    pub fn matrix(
        &mut self,
        parts: &[(&str, usize)],
        inputs: usize,
    ) -> Result<B::Matrix, LoadError> {
        let weights = &self.checkpoint.weights;
        let views = parts
            .iter()
            .map(|&(name, outputs)| weights.tensor(name, &[outputs, inputs]));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let matrix = self.backend.matrix(&views);
        parts.iter().for_each(|(name, _)| weights.release(name));
        self.report(&views);
        Ok(matrix)
    }

    /// Loads vectors `(name, width)`, joined.
    pub fn vector(&mut self, parts: &[(&str, usize)]) -> Result<B::Vector, LoadError> {
        let checkpoint = self.checkpoint;
        let parts = parts
            .iter()
            .map(|&(name, width)| checkpoint.weights.tensor(name, &[width]));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let vector = self.backend.vector(&parts);
        self.report(&parts);
        Ok(vector)
    }

    /// Loads the projections `(name, outputs)`, stacked: `{name}.weight` and, if there is a bias, `{name}.bias`.
    pub fn linear(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: bool,
    ) -> Result<Linear<B>, LoadError> {
        let named = |suffix: &str| -> Vec<(String, usize)> {
            parts
                .iter()
                .map(|(name, outputs)| (format!("{name}.{suffix}"), *outputs))
                .collect()
        };
        let (weights, biases) = (named("weight"), named("bias"));
        Ok(Linear {
            weight: self.matrix(&borrowed(&weights), inputs)?,
            bias: match bias {
                true => Some(self.vector(&borrowed(&biases))?),
                false => None,
            },
        })
    }

    /// Makes the rotation that the configuration asks for.
    pub fn rope(&mut self) -> B::Rope {
        let config = self.config();
        self.backend.rope(&Rope::new(&config.rope, config.head_dim))
    }

    fn report(&mut self, parts: &[TensorView<'_>]) {
        self.done_bytes += parts
            .iter()
            .map(|part| part.bytes.len() as u64)
            .sum::<u64>();
        (self.progress)(self.done_bytes, self.total_bytes);
    }
}

fn borrowed(parts: &[(String, usize)]) -> Vec<(&str, usize)> {
    parts
        .iter()
        .map(|(name, size)| (name.as_str(), *size))
        .collect()
}
