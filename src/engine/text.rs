//! The text side of a model, wherever it lies.

use std::path::Path;

use crate::error::LoadError;
use crate::model::generation::GenerationConfig;
use crate::model::gguf::Gguf;
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

/// The vocabulary and the chat template of a GGUF file. A `tokenizer.json` beside it stands in where it has none, or one that
/// is not supported.
fn text_model_of_gguf(file: &Path) -> Result<TextModel, LoadError> {
    let own = Gguf::open(file)?.vocabulary()?;
    let own = own.map(|fields| TextModel::from_vocabulary(file, fields));
    let dir = file.parent().unwrap_or(Path::new(""));
    match own {
        Some(Ok(text)) => Ok(text),
        unusable if dir.join("tokenizer.json").is_file() => {
            if let Some(Err(error)) = unusable {
                tracing::warn!(%error, "the tokenizer.json beside the file is used");
            }
            TextModel::load(dir)
        }
        Some(Err(error)) => Err(error),
        None => Err(LoadError::Format {
            file: file.to_owned(),
            reason: "has no vocabulary: put the model's tokenizer.json beside it, or send token ids with \
                     --skip-tokenizer-init"
                .to_owned(),
        }),
    }
}

/// The sampling defaults of a model. Those that a GGUF file may hold (`general.sampling`) are not read.
pub(super) fn generation_config(location: &ModelLocation) -> Result<GenerationConfig, LoadError> {
    match location {
        ModelLocation::Folder(dir) => GenerationConfig::read(dir),
        ModelLocation::Gguf(_) => Ok(GenerationConfig::default()),
    }
}
