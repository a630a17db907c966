//! GGUF: a model in one file, or in a few parts of one, as llama.cpp and tools built on it use them.
//!
//! A file is hostile input: every count and size is checked against limits and the file's bytes before memory is
//! allocated for it. Every error is one sentence that names the file, the key or tensor, the value, the limit and the
//! remedy. Nothing is copied: strings, lists and tensors stay in the mapped file.
//!
//! [`Gguf::config`] makes the configuration that a `config.json` would give, [`Gguf::into_weights`] the weights under the
//! names that Hugging Face's checkpoints use, [`Gguf::vocabulary`] the fields of a tokenizer and a chat template.

mod config;
mod cursor;
mod element;
mod experts;
mod file;
mod gemma;
mod keys;
mod latent;
mod metadata;
mod names;
mod recurrent;
mod rope;
mod sampling;
mod scales;
mod split;
mod tensors;
mod vocabulary;
mod weights;
mod windows;

use std::fmt::Display;
use std::path::Path;

use rustc_hash::FxHashMap;

use crate::error::LoadError;
use crate::kernels::dtype::Dtype;
use crate::model::config::ModelConfig;
use crate::model::generation::GenerationConfig;
use crate::model::json_file::format_error;
use crate::model::text::VocabularyFields;
use crate::model::weights::Weights;

pub use element::ElementType;
pub use file::GgufFile;
pub use metadata::Metadata;
pub use split::model_name;
pub(crate) use split::{PartName, files_of, only_model_in};
pub use tensors::TensorInfo;

/// A model's files, opened and checked; only their headers have been read.
pub struct Gguf {
    /// The first holds the metadata.
    files: Vec<GgufFile>,
    /// File and place in it of each tensor, by name.
    index: FxHashMap<String, (usize, usize)>,
}

/// A tensor and the file that it is in.
#[derive(Clone, Copy)]
struct Tensor<'a> {
    file: &'a GgufFile,
    file_index: usize,
    info: &'a TensorInfo,
}

impl Gguf {
    /// Opens a model by its file, or by the first file of its parts.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`], naming the file and its fault.
    pub fn open(file: &Path) -> Result<Self, LoadError> {
        let files = split::open_all(file)?;
        let mut index = FxHashMap::default();
        for (file_index, file) in files.iter().enumerate() {
            for (place, tensor) in file.tensors().iter().enumerate() {
                index.insert(tensor.name.clone(), (file_index, place));
            }
        }
        Ok(Self { files, index })
    }

    /// The metadata of the model.
    pub fn metadata(&self) -> Metadata<'_> {
        self.files[0].metadata()
    }

    /// All tensors, in their order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.files.iter().flat_map(GgufFile::tensors)
    }

    /// Reads the fields of a tokenizer and a chat template; `None` if the file has no vocabulary.
    ///
    /// # Errors
    /// [`LoadError::Format`] naming key, value and limit.
    pub fn vocabulary(&self) -> Result<Option<VocabularyFields<'_>>, LoadError> {
        vocabulary::fields(self.metadata())
    }

    /// Reads the model's own sampling defaults.
    ///
    /// # Errors
    /// [`LoadError::Format`] naming key, value and limit.
    pub fn generation_config(&self) -> Result<GenerationConfig, LoadError> {
        sampling::defaults(self.metadata())
    }

    /// Reads the model's configuration.
    ///
    /// # Errors
    /// [`LoadError::UnknownArchitecture`]; [`LoadError::Format`] naming key, value and limit.
    pub fn config(&self) -> Result<ModelConfig, LoadError> {
        config::read(self)
    }

    /// Finds each tensor of the configuration.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`]; [`LoadError::Format`] for an element type without kernels
    /// and for a tensor that is not part of the model.
    pub fn into_weights(self, config: &ModelConfig) -> Result<Weights, LoadError> {
        weights::of(self, config)
    }

    /// The default element type of the model and its KV: that of its 16-bit matrices, bfloat16 if it has both types;
    /// float32 if all matrices are; bfloat16 if the others are blocks.
    ///
    /// llama.cpp keeps keys and values in float16 whatever the file's types are. Here bfloat16 is the fast path, and its
    /// range is that of the models' own training.
    pub fn dtype(&self) -> Dtype {
        let matrices = self.tensors().filter(|tensor| tensor.shape.len() > 1);
        let names: Vec<&str> = matrices.map(|tensor| tensor.element.name).collect();
        let has = |name| names.contains(&name);
        match (has("BF16"), has("F16")) {
            (true, _) => Dtype::BF16,
            (false, true) => Dtype::F16,
            (false, false) if names.iter().all(|name| *name == "F32") => Dtype::F32,
            (false, false) => Dtype::BF16,
        }
    }

    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let &(file_index, place) = self.index.get(name)?;
        let file = &self.files[file_index];
        Some(Tensor {
            file,
            file_index,
            info: &file.tensors()[place],
        })
    }
}

impl<'a> Tensor<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.file.data(self.info)
    }

    /// An error about the tensor.
    fn error(&self, reason: impl Display) -> LoadError {
        let name = metadata::shown(&self.info.name);
        format_error(self.file.path(), format!("tensor {name} {reason}"))
    }
}

#[cfg(test)]
mod tests;
