//! The element types in which a model is stored, and the bytes of its weights in them.

use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::{KvDtype, KvLayout};
use souffleur_kernels::dtype::{Dtype, MatrixRole, Quantization};
use souffleur_model::config::ModelConfig;
use souffleur_model::sparsity::LayersToLabel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    pub dtype: Dtype,
    pub kv_dtype: KvDtype,
    pub quantization: Option<Quantization>,
    /// Long contexts are read in part.
    pub sparsity: Option<Sparsity>,
}

/// Double sparsity, without its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparsity {
    /// Elements of a head's label; those of the engine's default if `None`.
    pub channels: Option<usize>,
    pub tokens: usize,
    /// Tokens from which on a query is sparse.
    pub threshold: usize,
}

impl Storage {
    /// The memory that each layer of a model keeps. Fails for a model that cannot use double sparsity.
    pub fn layout(&self, model: &ModelConfig) -> Result<KvLayout, LoadError> {
        let layout = model.kv_layout(self.dtype);
        let Some(Sparsity { channels, .. }) = self.sparsity else {
            return Ok(layout);
        };
        let layers = LayersToLabel {
            layout: &layout,
            windows: &model.windows,
            n_heads: model.num_attention_heads,
        };
        let labels = layers.labels(channels)?;
        Ok(layout.with_labels(|layer| labels[layer]))
    }
}

pub fn weights_bytes(model: &ModelConfig, storage: Storage) -> u64 {
    let tensors = model.tensors();
    let bytes = tensors.iter().map(|tensor| match tensor.shape[..] {
        [outputs, inputs] => matrix_bytes(storage, model.role(&tensor.name), [outputs, inputs]),
        _ => tensor.elements() * storage.dtype.bytes() as u64,
    });
    bytes.sum()
}

pub(super) fn expert_totals(model: &ModelConfig, storage: Storage) -> (f64, f64) {
    let Some(experts) = &model.experts else {
        return (0.0, 0.0);
    };
    let tensors = model.tensors();
    let own = tensors
        .iter()
        .filter(|tensor| experts.has_tensor(&tensor.name));
    own.fold((0.0, 0.0), |(weights, bytes), tensor| {
        let size = match tensor.shape[..] {
            [outputs, inputs] => matrix_bytes(storage, MatrixRole::Inner, [outputs, inputs]),
            _ => 0,
        };
        (weights + tensor.elements() as f64, bytes + size as f64)
    })
}

pub(super) fn matrix_bytes(storage: Storage, role: MatrixRole, shape: [usize; 2]) -> u64 {
    let shape = shape.map(|size| size as u64);
    role.bytes(storage.dtype, storage.quantization, shape)
}
