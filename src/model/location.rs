//! Resolves a model's path to a folder in Hugging Face layout or to a GGUF file.

use std::path::{Path, PathBuf};

use crate::gguf;
use crate::json_file::load_error;
use crate::weights::folder::{self, INDEX, SINGLE};
use crate::weights::quantised::scheme;
use souffleur_base::error::LoadError;

/// File that describes the encoding of the weights, as [`scheme::FILES`] do.
const CONFIG: &str = "config.json";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    /// A folder in Hugging Face layout, which may lack files or not exist.
    Folder(PathBuf),
    /// The model's only file, or the first of several.
    Gguf(PathBuf),
}

impl ModelLocation {
    /// A path of a file means a GGUF file; a folder without safetensors resolves to its only GGUF model, if any.
    ///
    /// # Errors
    /// The folder has several GGUF models, or cannot be read.
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

    /// Like [`Self::find`], for a model that is about to be read.
    ///
    /// # Errors
    /// There is no such file or folder, or the folder has no model.
    pub fn existing(path: &Path) -> Result<Self, LoadError> {
        if !path.exists() {
            return Err(load_error(
                path,
                "there is no such file or folder: a model is a GGUF file, a folder in Hugging Face layout, or an id \
                 on the hub such as Qwen/Qwen3-0.6B",
            ));
        }
        let found = Self::find(path)?;
        match &found {
            Self::Folder(dir) if !dir.join(CONFIG).exists() => Err(load_error(
                dir,
                "has neither config.json nor a GGUF file, so it is not the folder of a model",
            )),
            _ => Ok(found),
        }
    }

    /// The files of the weights, and those that describe their encoding.
    ///
    /// # Errors
    /// The folder's index cannot be read, or there are no weights.
    pub fn weight_files(&self) -> Result<Vec<PathBuf>, LoadError> {
        let dir = match self {
            Self::Gguf(file) => return Ok(gguf::files_of(file)),
            Self::Folder(dir) => dir,
        };
        let mut files = folder::files_of(dir)?;
        if files.is_empty() {
            return Err(load_error(
                dir,
                "holds no weights: put the model's safetensors files into it",
            ));
        }
        let encodings = [CONFIG].into_iter().chain(scheme::FILES);
        files.extend(
            encodings
                .map(|name| dir.join(name))
                .filter(|file| file.exists()),
        );
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(location: &ModelLocation) -> Vec<String> {
        let files = location.weight_files().expect("has weights");
        let name = |file: &PathBuf| file.file_name().map(|name| name.to_string_lossy().into());
        files.iter().filter_map(name).collect()
    }

    #[test]
    fn weight_files_are_the_files_that_are_read() {
        let parts = ModelLocation::Gguf("m-00001-of-00003.gguf".into());
        let expected = [1, 2, 3].map(|part| format!("m-0000{part}-of-00003.gguf"));
        assert_eq!(names(&parts), expected);
        assert_eq!(names(&ModelLocation::Gguf("m.gguf".into())), ["m.gguf"]);

        let folder = tempfile::tempdir().expect("a folder can be made");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("writable");
        };
        let found = || ModelLocation::find(folder.path()).expect("one model");
        assert!(found().weight_files().is_err(), "no weights");
        write("config.json", "{}");
        write("m.gguf", "");
        assert_eq!(names(&found()), ["m.gguf"]);
        write(
            INDEX,
            r#"{"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}}"#,
        );
        write("quantize_config.json", "{}");
        let mut files = names(&found());
        files.sort();
        let expected = [
            "config.json",
            INDEX,
            "one.safetensors",
            "quantize_config.json",
            "two.safetensors",
        ];
        assert_eq!(files, expected);
        write(SINGLE, "");
        let expected = [SINGLE, "config.json", "quantize_config.json"];
        assert_eq!(names(&found()), expected);
    }
}
