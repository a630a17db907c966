//! A model's path: a folder in Hugging Face layout, or a GGUF file.

use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::model::gguf;
use crate::model::weights::folder::{INDEX, SINGLE};

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    /// A folder with `config.json`.
    Folder(PathBuf),
    /// A GGUF file, the first one of a split model.
    Gguf(PathBuf),
}

impl ModelLocation {
    /// Finds out what a path names. A file is a GGUF file; a folder without safetensors stands for the one GGUF model in it,
    /// if it has one.
    ///
    /// # Errors
    /// The folder holds several GGUF models, or cannot be read.
    pub fn find(path: &Path) -> Result<Self, LoadError> {
        if path.is_file() || (path.extension().is_some_and(|end| end == "gguf") && !path.is_dir()) {
            return Ok(Self::Gguf(path.to_owned()));
        }
        let has = |name| path.join(name).exists();
        if !path.is_dir() || [SINGLE, INDEX].into_iter().any(has) {
            return Ok(Self::Folder(path.to_owned()));
        }
        Ok(match gguf::only_model_in(path)? {
            Some(file) => Self::Gguf(file),
            None => Self::Folder(path.to_owned()),
        })
    }
}
