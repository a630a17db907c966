//! Reads the image processor of a model's folder, or of the GGUF file with its vision tower.

use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use souffleur_actors::pictures::ImageReader;
use souffleur_base::error::{LoadError, StartError, load_error};
use souffleur_config::EngineConfig;
use souffleur_images::{Filter, Limits, MmprojSettings, Processor};
use souffleur_model::origin::ModelFiles;
use souffleur_model::text::TextModel;
use souffleur_model::vision::{ImageKeys, TowerConfig};

use crate::image_sizes;
use crate::tower_file::FoundTower;

/// The largest file of settings that is read. Models' files have a few kilobytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The reader of the images of a model in Hugging Face layout, from its `preprocessor_config.json`,
/// `processor_config.json` and `config.json`. `tower` is the fingerprint of the tower that encodes the images.
///
/// # Errors
/// [`LoadError`] with the file: settings that are not supported, or a vocabulary without the tokens of images.
/// [`ConfigError`](souffleur_base::error::ConfigError) for fewer tokens than an image can have.
pub fn image_reader(
    dir: &Path,
    text: &TextModel,
    tower: &[u8],
    config: &EngineConfig,
) -> Result<ImageReader, StartError> {
    let mut processor = of_folder(dir)?;
    image_sizes::limit(&mut processor, config)?;
    Ok(reader(dir, processor, text, (tower, config))?)
}

/// The reader for the images of chats that the tower encodes. Without one, which the log explains, only hosts send
/// images.
///
/// # Errors
/// If the configuration names the tower, or fewer tokens than an image can have.
pub(super) fn reader_of(
    tower: &FoundTower,
    text: &TextModel,
    config: &EngineConfig,
) -> Result<Option<Arc<ImageReader>>, StartError> {
    let made = match processor_of(tower) {
        Ok(mut processor) => {
            image_sizes::limit(&mut processor, config)?;
            let read = |fingerprint: Vec<u8>| {
                reader(tower.file.path(), processor, text, (&fingerprint, config))
            };
            fingerprint(tower).and_then(read)
        }
        Err(error) => Err(error),
    };
    match made {
        Ok(reader) => Ok(Some(Arc::new(reader))),
        Err(error) if config.mmproj.is_some() => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "the images of chats cannot be read: chats with images are refused");
            Ok(None)
        }
    }
}

/// The processor that cuts images for this tower.
fn processor_of(tower: &FoundTower) -> Result<Processor, LoadError> {
    let (path, sizes) = (tower.file.path(), &tower.checkpoint.config);
    let mut processor = match tower.file.mmproj() {
        Some(file) => of_mmproj(file, sizes)?,
        None => of_folder(path)?,
    };
    image_sizes::fit(&mut processor, sizes).map_err(|reason| wrong(path, reason))?;
    Ok(processor)
}

/// All that vectors depend on in addition to the pixels, in the keys of images: the tower's configuration, and the sizes
/// and first bytes of its files. The whole files are part of the KV store's fingerprint, with the text model's.
fn fingerprint(tower: &FoundTower) -> Result<Vec<u8>, LoadError> {
    let files = ModelFiles::look(tower.file.path())?;
    let mut fingerprint = tower.checkpoint.config.fingerprint().into_bytes();
    fingerprint.extend(files.digest());
    Ok(fingerprint)
}

/// `source` is the file or folder that errors name.
fn reader(
    source: &Path,
    processor: Processor,
    text: &TextModel,
    (tower, config): (&[u8], &EngineConfig),
) -> Result<ImageReader, LoadError> {
    let limits = Limits::of_pixels(config.max_image_pixels as u64);
    ImageReader::new(text, processor, tower, limits).map_err(|reason| wrong(source, reason))
}

fn wrong(source: &Path, reason: impl Display) -> LoadError {
    load_error(source, format!("cannot read images: {reason}"))
}

/// The image processor of a model in Hugging Face layout.
fn of_folder(dir: &Path) -> Result<Processor, LoadError> {
    let preprocessor = optional(&dir.join("preprocessor_config.json"))?;
    let processor = optional(&dir.join("processor_config.json"))?;
    let model_type = model_type(&dir.join("config.json"))?;
    let read = Processor::from_files(preprocessor.as_deref(), processor.as_deref(), &model_type);
    read.map_err(|error| wrong(dir, error))
}

/// The image processor of a GGUF file with a tower, with the sizes of the tower.
fn of_mmproj(file: &Path, tower: &TowerConfig) -> Result<Processor, LoadError> {
    let keys = ImageKeys::open(file)?;
    let settings = MmprojSettings {
        projector_type: tower.family.projector_type(),
        // The limits of towers fit 32 bits.
        patch: tower.patch as u32,
        merge: tower.merge as u32,
        image_size: keys.image_size,
        mean: keys.mean,
        std: keys.std,
        min_pixels: keys.min_pixels,
        max_pixels: keys.max_pixels,
        filter: keys.filter.and_then(Filter::from_pillow),
    };
    Processor::from_mmproj(&settings).map_err(|error| wrong(file, error))
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
