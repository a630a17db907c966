//! Whether the embedding is the output projection too, by the keys of a file.

use std::path::Path;

use super::read::MAX_FILE_BYTES;
use crate::families;
use crate::family::Family;
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

/// What `config.json` says about tied embeddings. In vision-language models it may contradict itself: transformers 5 ties
/// by the root's key, older releases by the decoder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tying {
    /// The root's key, or else the decoder's, or else the family's default.
    pub ties: bool,
    /// Whether the files of the weights decide: the decoder is nested.
    pub is_nested: bool,
    /// Whether a model without an output projection is complete.
    pub may_lack_output: bool,
}

impl Tying {
    /// Reads `config.json` in a model's folder.
    ///
    /// # Errors
    /// As [`super::ModelConfig::read`].
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let json = JsonFile::read(&dir.join("config.json"), MAX_FILE_BYTES)?;
        Self::from_json(&json, families::of_json(&json)?)
    }

    /// `root` is the whole file.
    pub fn from_json(root: &JsonFile, family: &Family) -> Result<Self, LoadError> {
        let nested = root.object("text_config")?;
        let inner = nested.as_ref().map(|text| flag(text, family)).transpose()?;
        let inner = inner.flatten();
        let stated = flag(root, family)?.or(inner);
        let ties = stated.unwrap_or(family.defaults.ties_embeddings);
        let is_nested = nested.is_some();
        let is_open = inner == Some(true) || stated.is_none();
        Ok(Self {
            ties,
            is_nested,
            may_lack_output: ties || is_nested && is_open,
        })
    }
}

fn flag(json: &JsonFile, family: &Family) -> Result<Option<bool>, LoadError> {
    if let Some(key) = family.keys.ties_embeddings
        && let Some(ties) = json.flag(key)?
    {
        return Ok(Some(ties));
    }
    json.flag("tie_word_embeddings")
}
