//! Reads the image processor of a model's folder.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use souffleur_actors::pictures::ImageReader;
use souffleur_base::error::{LoadError, load_error};
use souffleur_config::EngineConfig;
use souffleur_images::{Limits, Processor};
use souffleur_model::text::TextModel;
use souffleur_model::vision::TowerConfig;

/// The largest file of settings; those of models have a few kilobytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The reader of the images of a model in Hugging Face layout, from its `preprocessor_config.json`,
/// `processor_config.json` and `config.json`. `tower` is the fingerprint of the tower that encodes the images.
///
/// # Errors
/// [`LoadError`] with the file: settings that are not supported, or a vocabulary without the tokens of images.
pub fn image_reader(
    dir: &Path,
    text: &TextModel,
    tower: &[u8],
    config: &EngineConfig,
) -> Result<ImageReader, LoadError> {
    let preprocessor = optional(&dir.join("preprocessor_config.json"))?;
    let processor = optional(&dir.join("processor_config.json"))?;
    let model_type = model_type(&dir.join("config.json"))?;
    let wrong = |reason: String| load_error(dir, format!("cannot read images: {reason}"));
    let read = Processor::from_files(preprocessor.as_deref(), processor.as_deref(), &model_type);
    let mut read = read.map_err(|error| wrong(error.to_string()))?;
    let limited = read.limit_tokens(config.image_max_tokens);
    limited.map_err(|error| wrong(format!("image_max_tokens: {error}")))?;
    let limits = Limits::of_pixels(config.max_image_pixels as u64);
    ImageReader::new(text, read, tower, limits).map_err(wrong)
}

/// The reader for the images of chats that the tower encodes. Without one, which the log explains, only hosts send
/// images.
pub(super) fn reader_of(
    tower: &TowerConfig,
    text: &TextModel,
    config: &EngineConfig,
) -> Option<Arc<ImageReader>> {
    let fingerprint = tower.fingerprint();
    let reader = image_reader(&config.model_path, text, fingerprint.as_bytes(), config);
    let reader = reader.inspect_err(|error| {
        tracing::warn!(%error, "the images of chats cannot be read: chats serve text only");
    });
    reader.ok().map(Arc::new)
}

/// The text of a file, if it exists.
fn optional(file: &Path) -> Result<Option<String>, LoadError> {
    let io = |source| LoadError::Io {
        file: file.to_owned(),
        source,
    };
    let opened = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    let mut text = String::new();
    let mut limited = opened.take(MAX_FILE_BYTES + 1);
    limited.read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let reason =
            format!("exceeds the limit of {MAX_FILE_BYTES} bytes: check that it is the right file");
        return Err(load_error(file, reason));
    }
    Ok(Some(text))
}

fn model_type(file: &Path) -> Result<String, LoadError> {
    let text = optional(file)?.unwrap_or_default();
    let config = serde_json::from_str::<Value>(&text);
    let config = config.map_err(|error| load_error(file, format!("is not JSON: {error}")))?;
    let model_type = config["model_type"].as_str().unwrap_or_default();
    Ok(model_type.to_owned())
}
