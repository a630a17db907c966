//! The text side of a model, wherever it lies.

use std::path::Path;

use crate::error::LoadError;
use crate::model::generation::GenerationConfig;
use crate::model::location::ModelLocation;
use crate::model::text::TextModel;

/// Makes the tokenizer and the chat template of a model.
///
/// # Errors
/// [`LoadError::Io`] and [`LoadError::Format`], naming the file.
pub(super) fn text_model(location: &ModelLocation) -> Result<TextModel, LoadError> {
    match location {
        ModelLocation::Folder(dir) => TextModel::load(dir),
        ModelLocation::Gguf(file) => text_model_of_gguf(file),
    }
}

/// The tokenizer files beside a GGUF file.
fn text_model_of_gguf(file: &Path) -> Result<TextModel, LoadError> {
    let dir = file.parent().unwrap_or(Path::new(""));
    if dir.join("tokenizer.json").is_file() {
        return TextModel::load(dir);
    }
    Err(LoadError::Format {
        file: file.to_owned(),
        reason: "has no tokenizer.json beside it: put the model's there, or send token ids with --skip-tokenizer-init"
            .to_owned(),
    })
}

/// The sampling defaults of a model; GGUF files have none.
pub(super) fn generation_config(location: &ModelLocation) -> Result<GenerationConfig, LoadError> {
    match location {
        ModelLocation::Folder(dir) => GenerationConfig::read(dir),
        ModelLocation::Gguf(_) => Ok(GenerationConfig::default()),
    }
}
