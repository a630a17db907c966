//! Facts about a model's files that catalogues of models show.

use std::path::Path;
use std::time::SystemTime;

use souffleur_base::error::LoadError;
use souffleur_executor::cpu::CpuDescription;
use souffleur_model::location::ModelLocation;
use souffleur_model::origin::ModelFiles;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard {
    /// The architecture's name in GGUF files, such as `qwen3`.
    pub family: &'static str,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// The element type or the quantisation scheme of most weights in the files, such as `BF16`, `Q4_K` or `gptq`.
    pub stored_as: String,
    pub parameters: u64,
    pub layers: usize,
    pub attention_heads: usize,
    pub key_value_heads: usize,
    pub feed_forward_size: usize,
    /// Total bytes of the files.
    pub file_bytes: u64,
    /// The latest modification time of a file, if the system has such times.
    pub modified: Option<SystemTime>,
    /// A hash of the files' sizes and first bytes, not of all bytes.
    pub digest: [u8; 32],
}

impl ModelCard {
    /// # Errors
    /// A file of the model cannot be read.
    pub(super) fn read(model_path: &Path, model: &CpuDescription) -> Result<Self, LoadError> {
        let files = ModelFiles::look(model_path)?;
        let config = &model.config;
        Ok(Self {
            family: config.architecture.short_name(),
            format: match ModelLocation::find(model_path)? {
                ModelLocation::Gguf(_) => "gguf",
                ModelLocation::Folder(_) => "safetensors",
            },
            stored_as: model.stored_as.clone(),
            parameters: config.parameters(),
            layers: config.num_hidden_layers,
            attention_heads: config.num_attention_heads,
            key_value_heads: config.num_key_value_heads,
            feed_forward_size: config.intermediate_size,
            file_bytes: files.bytes(),
            modified: files.modified(),
            digest: files.digest(),
        })
    }
}
