//! Loads models from GGUF files, as written by llama.cpp and related tools.
//!
//! Every error is one sentence that names the file, the key or tensor, the value, the limit and the remedy.
//! [`config`](fn@config) reads the configuration, [`weights`](fn@weights) the weights under Hugging Face's names, and
//! [`vocabulary`](fn@vocabulary) the fields of a tokenizer and a chat template. [`souffleur_gguf`] reads the container.

mod config;
mod experts;
mod gemma;
pub(crate) mod keys;
mod latent;
mod names;
mod recurrent;
mod rope;
mod sampling;
mod scales;
mod vocabulary;
mod weights;
mod windows;

use crate::config::ModelConfig;
use crate::generation::GenerationConfig;
use crate::text::VocabularyFields;
use crate::weights::Weights;
use souffleur_base::error::LoadError;

pub use souffleur_gguf::{Gguf, Metadata, model_name};
pub use souffleur_gguf::{PartName, Tensor, files_of, is_projector, only_model_in};

/// `None` if the file has no vocabulary.
///
/// # Errors
/// [`LoadError::Format`] naming key, value and limit.
pub fn vocabulary(gguf: &Gguf) -> Result<Option<VocabularyFields<'_>>, LoadError> {
    vocabulary::fields(gguf.metadata())
}

/// # Errors
/// [`LoadError::Format`] naming key, value and limit.
pub fn generation_config(gguf: &Gguf) -> Result<GenerationConfig, LoadError> {
    sampling::defaults(gguf.metadata())
}

/// # Errors
/// [`LoadError::UnknownArchitecture`]; [`LoadError::Format`] naming key, value and limit.
pub fn config(gguf: &Gguf) -> Result<ModelConfig, LoadError> {
    config::read(gguf)
}

/// Finds each tensor of the configuration.
///
/// # Errors
/// [`LoadError::MissingTensor`], [`LoadError::WrongShape`]; [`LoadError::Format`] for an element type without kernels
/// and for a tensor that is not part of the model.
pub fn weights(gguf: Gguf, config: &ModelConfig) -> Result<Weights, LoadError> {
    weights::of(gguf, config)
}

#[cfg(test)]
mod tests;
