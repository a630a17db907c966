//! The types of a GGUF file's tensors, as llama.cpp chooses them for a named quantisation.

use souffleur::kernels::blocks::BlockType;
use souffleur::kernels::dtype::{Dtype, MatrixRole};
use souffleur::kernels::tensor_view::Stored;
use souffleur::model::config::ModelConfig;
use souffleur::model::weights::TensorSpec;

#[derive(Clone, Copy, Debug)]
pub(super) enum Mix {
    /// All matrices in Q8_0.
    Q8_0,
    /// Q4_K; Q6_K for the output, and for half of the value and down projections.
    Q4KM,
    /// Experts in MXFP4, all other matrices in Q8_0.
    Mxfp4,
}

impl Mix {
    pub fn stored(self, config: &ModelConfig, spec: &TensorSpec) -> Stored {
        let role = config.role(&spec.name);
        if spec.shape.len() < 2 || role == MatrixRole::Router {
            return Stored::Plain(Dtype::F32);
        }
        Stored::Blocks(match self {
            Self::Mxfp4 if spec.name.contains(".experts.") => BlockType::Mxfp4,
            Self::Q8_0 | Self::Mxfp4 => BlockType::Q8_0,
            Self::Q4KM if role == MatrixRole::Logits => BlockType::Q6K,
            Self::Q4KM if has_more_bits(&spec.name, config.num_hidden_layers) => BlockType::Q6K,
            Self::Q4KM => BlockType::Q4K,
        })
    }
}

/// Whether llama.cpp gives more bits to a matrix: to the value and down projections in the first and the last eighth of
/// the layers, and in every third layer between them.
fn has_more_bits(name: &str, layers: usize) -> bool {
    let is_sensitive = ["v_proj.weight", "down_proj.weight"];
    let is_sensitive = is_sensitive.iter().any(|end| name.ends_with(end));
    let layer = name.strip_prefix("model.layers.");
    let layer = layer.and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let eighth = layers / 8;
    is_sensitive
        && layer.is_some_and(|layer| {
            layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
        })
}
