//! The data types in which a model is stored, and the bytes of its weights.

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
    /// Double sparsity, if enabled.
    pub sparsity: Option<Sparsity>,
}

/// The parameters of double sparsity that affect the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparsity {
    /// The number of elements in a head's label; `None` for the engine's default.
    pub channels: Option<usize>,
    pub tokens: usize,
    /// The context length from which queries are sparse.
    pub threshold: usize,
}

impl Storage {
    /// The KV layout of a model. Fails if double sparsity is enabled and the model does not support it.
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

/// The number of weights of all experts, and their bytes.
pub(super) fn expert_totals(model: &ModelConfig, storage: Storage) -> (f64, f64) {
    let Some(experts) = &model.experts else {
        return (0.0, 0.0);
    };
    let tensors = model.tensors();
    let expert_tensors = tensors
        .iter()
        .filter(|tensor| experts.has_tensor(&tensor.name));
    expert_tensors.fold((0.0, 0.0), |(weights, bytes), tensor| {
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
