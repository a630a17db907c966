//! The vision tower of a model on a CPU: its files, its memory, and its work for the Vision actor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use souffleur_actors::pictures::ImageReader;
use souffleur_actors::vision::VisionSetup;
use souffleur_base::error::{ConfigError, LoadError, load_error};
use souffleur_config::EngineConfig;
use souffleur_executor::cpu::{self, CpuDescription, CpuExecutor};
use souffleur_executor::memory_plan::VisionBytes;
use souffleur_model::config::ModelConfig;
use souffleur_model::location::ModelLocation;
use souffleur_model::text::TextModel;
use souffleur_model::vision::{
    TowerCheckpoint, TowerConfig, TowerFamily, TowerGrid, tower_next_to,
};
use souffleur_request::ImageSupport;
use souffleur_state::prompt_images::ImageInput;

use crate::images;
use crate::threads::compute_threads;

/// Opens the tower in the model's folder. `None` without one, for models that cannot have images, on GPUs and on
/// several ranks. A tower that cannot be used is logged: the model serves text, as one without a tower.
///
/// # Errors
/// [`ConfigError`] if a step cannot compute an image, which the model needs for bidirectional attention.
pub(super) fn open(
    config: &EngineConfig,
    model: &CpuDescription,
    has_gpu: bool,
) -> Result<Option<TowerCheckpoint>, ConfigError> {
    let is_text_only = matches!(support(config, &model.config), ImageSupport::Missing(_));
    if is_text_only || has_gpu || config.tp_size > 1 {
        return Ok(None);
    }
    let found = find(&config.model_path, model.config.hidden_size);
    let found = found.unwrap_or_else(|error| {
        tracing::warn!(%error, "the model's vision tower cannot be used: it serves text only");
        None
    });
    if let (Some((tower, _)), Some(_)) = (&found, model.config.bidirectional()) {
        check_chunks(config, max_vectors(&tower.config, config))?;
    }
    Ok(found.map(|(tower, _)| tower))
}

/// What an engine of this model can do with images.
pub(super) fn support(config: &EngineConfig, model: &ModelConfig) -> ImageSupport {
    match model.images() {
        ImageSupport::Bidirectional if config.enable_double_sparsity => {
            ImageSupport::Missing("bidirectional attention with double sparsity")
        }
        support => support,
    }
}

/// Refuses chunks that are shorter than the longest image: attention in both directions needs all of its keys.
fn check_chunks(config: &EngineConfig, max_vectors: usize) -> Result<(), ConfigError> {
    match config.chunk_tokens() {
        Some(chunk) if chunk < max_vectors => Err(ConfigError {
            key: "chunked_prefill_size".to_owned(),
            reason: format!(
                "is {chunk} in whole pages, but an image of this model has up to {max_vectors} tokens, which attend to \
                 each other and are computed in one step: set {max_vectors} or more, or -1"
            ),
        }),
        _ => Ok(()),
    }
}

fn max_vectors(tower: &TowerConfig, config: &EngineConfig) -> usize {
    match tower.family {
        TowerFamily::Gemma3 => (tower.positions / tower.merge).pow(2),
        _ => config.image_max_tokens as usize,
    }
}

/// The tower of a model, and the file or folder that errors about it name.
fn find(
    model_path: &Path,
    hidden_size: usize,
) -> Result<Option<(TowerCheckpoint, PathBuf)>, LoadError> {
    let found = match ModelLocation::find(model_path)? {
        ModelLocation::Folder(dir) => TowerCheckpoint::open_folder(&dir)?.map(|tower| (tower, dir)),
        ModelLocation::Gguf(file) => match tower_next_to(&file, hidden_size)? {
            Some(path) => Some((TowerCheckpoint::open_mmproj(&path)?, path)),
            None => None,
        },
    };
    if let Some((tower, path)) = &found {
        tower.config.check_width(path, hidden_size)?;
    }
    Ok(found)
}

/// The memory of a tower and of images, in each replica.
pub(super) fn bytes(
    config: &EngineConfig,
    model: &CpuDescription,
    tower: &TowerCheckpoint,
) -> VisionBytes {
    let grid = largest_grid(&tower.config, config);
    let encoding = tower.config.encoding_bytes(grid, compute_threads(config));
    VisionBytes {
        tower: tower.weights_bytes(model.dtype, config.quantization),
        images: encoding.saturating_add(config.image_cache_bytes),
    }
}

/// A square of blocks of patches, of which each gives a vector.
fn largest_grid(tower: &TowerConfig, config: &EngineConfig) -> TowerGrid {
    let side = max_vectors(tower, config).isqrt() * tower.merge;
    TowerGrid { h: side, w: side }
}

/// The setup of the Vision actors, and the reader of the images of chats; `None` for each that the model lacks.
pub(super) fn parts(
    config: &EngineConfig,
    model: &CpuDescription,
    tower: Option<&TowerCheckpoint>,
    text: Option<&TextModel>,
) -> (Option<Arc<VisionSetup>>, Option<Arc<ImageReader>>) {
    let Some(tower) = tower else {
        return (None, None);
    };
    let reader = text.and_then(|text| images::reader_of(&tower.config, text, config));
    (Some(Arc::new(setup(config, model, tower))), reader)
}

fn setup(config: &EngineConfig, model: &CpuDescription, tower: &TowerCheckpoint) -> VisionSetup {
    let of_tower = tower.config.clone();
    let elements: u64 = model.matrices.iter().map(|matrix| matrix.elements).sum();
    VisionSetup {
        cache_bytes: usize::try_from(config.image_cache_bytes).unwrap_or(usize::MAX),
        work: Box::new(move |input: &dyn ImageInput| cpu::tower_work(&of_tower, input)),
        flops_per_token: elements.saturating_mul(2),
    }
}

/// Loads the tower into an executor of the model at this path.
pub(super) fn load(
    executor: CpuExecutor,
    model_path: &Path,
    hidden_size: usize,
) -> Result<CpuExecutor, LoadError> {
    match find(model_path, hidden_size)? {
        Some((tower, path)) => executor.load_tower(&tower, &path),
        None => Err(load_error(
            model_path,
            "the vision tower is gone since the engine was started",
        )),
    }
}
