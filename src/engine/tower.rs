//! The vision tower of a model on a CPU: its files, its memory, and its work for the Vision actor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use souffleur_actors::pictures::ImageReader;
use souffleur_actors::vision::VisionSetup;
use souffleur_base::error::{LoadError, load_error};
use souffleur_config::EngineConfig;
use souffleur_executor::cpu::{self, CpuDescription, CpuExecutor};
use souffleur_executor::memory_plan::VisionBytes;
use souffleur_model::location::ModelLocation;
use souffleur_model::text::TextModel;
use souffleur_model::vision::{TowerCheckpoint, TowerConfig, TowerGrid, tower_next_to};
use souffleur_request::ImageSupport;
use souffleur_state::prompt_images::ImageInput;

use crate::images;
use crate::threads::compute_threads;

/// Opens the tower in the model's folder. `None` without one, for models that cannot have images, on GPUs and on
/// several ranks. A tower that cannot be used is logged: the model serves text, as one without a tower.
pub(super) fn open(
    config: &EngineConfig,
    model: &CpuDescription,
    has_gpu: bool,
) -> Option<TowerCheckpoint> {
    let is_text_only = matches!(model.config.images(), ImageSupport::Missing(_));
    if is_text_only || has_gpu || config.tp_size > 1 {
        return None;
    }
    let found = find(&config.model_path, model.config.hidden_size);
    let found = found.unwrap_or_else(|error| {
        tracing::warn!(%error, "the model's vision tower cannot be used: it serves text only");
        None
    });
    found.map(|(tower, _)| tower)
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
    let side = (config.image_max_tokens as usize).isqrt() * tower.merge;
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
