//! The vision tower of a model: its files, its memory, and its work for the Vision actor. It computes on CPUs, also for
//! models on GPUs.

use std::path::Path;
use std::sync::Arc;

use souffleur_actors::pictures::ImageReader;
use souffleur_actors::vision::VisionSetup;
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_config::{Device, EngineConfig};
use souffleur_executor::cpu::{self, CpuDescription, CpuExecutor};
use souffleur_executor::memory_plan::VisionBytes;
use souffleur_model::config::ModelConfig;
use souffleur_model::location::ModelLocation;
use souffleur_model::text::TextModel;
use souffleur_model::vision::{TowerCheckpoint, TowerConfig, TowerGrid, tower_next_to};
use souffleur_request::ImageSupport;
use souffleur_state::prompt_images::ImageInput;

use crate::image_sizes::max_vectors;
use crate::images;
use crate::threads::compute_threads;
use crate::tower_file::{FoundTower, TowerFile};

/// Opens the model's tower, the configured file or else the one in the model's folder, and adds its memory to the
/// model's. `None` without one, and for models that cannot have images. A tower that was found and cannot be used is
/// logged: the model serves text, as one without a tower.
///
/// # Errors
/// The configured file cannot be used: it has no tower, another model's, or the model cannot have images. A step cannot
/// compute an image, which the model needs for bidirectional attention.
pub(super) fn open(
    config: &EngineConfig,
    model: &mut CpuDescription,
    has_gpu: bool,
) -> Result<Option<FoundTower>, StartError> {
    let found = chosen(config, &model.config, has_gpu)?;
    if let Some(tower) = &found {
        if model.config.bidirectional().is_some() {
            check_chunks(config, max_vectors(&tower.checkpoint.config, config))?;
        }
        model.vision = bytes(config, model, tower);
    }
    Ok(found)
}

fn chosen(
    config: &EngineConfig,
    model: &ModelConfig,
    has_gpu: bool,
) -> Result<Option<FoundTower>, StartError> {
    if config.no_mmproj {
        return Ok(None);
    }
    let obstacle = obstacle(config, model, has_gpu);
    if let Some(path) = &config.mmproj {
        return match obstacle {
            Some(obstacle) => Err(refused_for(path, model, obstacle).into()),
            None => Ok(Some(named(path, model)?)),
        };
    }
    if let Some(obstacle) = obstacle {
        // Families without images need no line.
        if model.bidirectional().is_some() {
            tracing::info!("images are off: {obstacle}");
        }
        return Ok(None);
    }
    let found = find(&config.model_path, model);
    Ok(found.unwrap_or_else(|error| {
        tracing::warn!(%error, "the model's vision tower cannot be used: the model takes text only");
        None
    }))
}

/// What an engine of this model can do with images.
pub(super) fn support(config: &EngineConfig, model: &ModelConfig, has_gpu: bool) -> ImageSupport {
    match model.images() {
        ImageSupport::Bidirectional if config.enable_double_sparsity => ImageSupport::Missing(
            "double sparsity does not support the bidirectional attention that this model's images need",
        ),
        ImageSupport::Bidirectional if has_gpu => ImageSupport::Missing(
            "the GPU kernels do not support the bidirectional attention that this model's images need",
        ),
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

/// The reason why no tower can be used.
fn obstacle(config: &EngineConfig, model: &ModelConfig, has_gpu: bool) -> Option<&'static str> {
    match support(config, model, has_gpu) {
        ImageSupport::Missing(reason) => Some(reason),
        _ => None,
    }
}

fn refused_for(path: &Path, model: &ModelConfig, obstacle: &str) -> ConfigError {
    let family = model.architecture.short_name();
    let reason =
        format!("models of the family {family} take text only here ({obstacle}): leave it out");
    refused(path, &reason)
}

fn refused(path: &Path, reason: &str) -> ConfigError {
    ConfigError {
        key: "mmproj".to_owned(),
        reason: format!("is {}, but {reason}", path.display()),
    }
}

/// The tower in a file that the configuration names.
fn named(path: &Path, model: &ModelConfig) -> Result<FoundTower, LoadError> {
    let file = TowerFile::Mmproj(path.to_owned());
    let checkpoint = file.open()?;
    checkpoint.config.check_fits(path, model)?;
    Ok(FoundTower { checkpoint, file })
}

/// The tower in the model's folder.
fn find(model_path: &Path, model: &ModelConfig) -> Result<Option<FoundTower>, LoadError> {
    match ModelLocation::find(model_path)? {
        ModelLocation::Folder(dir) => {
            let Some(checkpoint) = TowerCheckpoint::open_folder(&dir)? else {
                return Ok(None);
            };
            checkpoint.config.check_width(&dir, model.hidden_size)?;
            checkpoint.config.check_deepstack(&dir, model.deepstack)?;
            let file = TowerFile::Folder(dir);
            Ok(Some(FoundTower { checkpoint, file }))
        }
        ModelLocation::Gguf(file) => {
            let found = tower_next_to(&file, model)?;
            let tower = found.map(|path| named(&path, model)).transpose()?;
            if let Some(tower) = &tower {
                let file = tower.file.path().display();
                tracing::info!(%file, "found the model's vision tower");
            }
            Ok(tower)
        }
    }
}

/// The memory of a tower and of images, in each replica.
fn bytes(config: &EngineConfig, model: &CpuDescription, tower: &FoundTower) -> VisionBytes {
    let tower = &tower.checkpoint;
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

/// The setup of the Vision actors, and the reader of the images of chats; `None` for each that a model lacks.
pub(super) type VisionParts = (Option<Arc<VisionSetup>>, Option<Arc<ImageReader>>);

/// The parts of an engine with this tower.
///
/// # Errors
/// The images of chats cannot be read, and the configuration names the tower; they cannot have as few tokens as it says.
pub(super) fn parts(
    config: &EngineConfig,
    model: &CpuDescription,
    tower: Option<&FoundTower>,
    text: Option<&TextModel>,
) -> Result<VisionParts, StartError> {
    let Some(tower) = tower else {
        return Ok((None, None));
    };
    let reader = text.map(|text| images::reader_of(tower, text, config));
    let reader = reader.transpose()?.flatten();
    let setup = setup(config, model, &tower.checkpoint);
    Ok((Some(Arc::new(setup)), reader))
}

fn setup(config: &EngineConfig, model: &CpuDescription, tower: &TowerCheckpoint) -> VisionSetup {
    let of_tower = tower.config.clone();
    VisionSetup {
        cache_bytes: usize::try_from(config.image_cache_bytes).unwrap_or(usize::MAX),
        work: Box::new(move |input: &dyn ImageInput| cpu::tower_work(&of_tower, input)),
        flops_per_token: match config.device {
            // A prefill's operations on a GPU say nothing about the tower on the host: until it is measured, slices are
            // as small as can be.
            Device::Cuda(_) => 0,
            Device::Auto | Device::Cpu => flops_per_token(model),
        },
    }
}

/// The operations of the text model's layers for a token of a prompt, without attention.
fn flops_per_token(model: &CpuDescription) -> u64 {
    let experts = model.config.experts.as_ref();
    let matrices = model.matrices.iter();
    let in_layers = matrices.filter(|matrix| matrix.name.starts_with("model.layers."));
    let used = in_layers.map(|matrix| match experts {
        Some(experts) if experts.has_tensor(&matrix.name) => {
            matrix.elements / experts.count().max(1) as u64 * experts.routing.n_used as u64
        }
        _ => matrix.elements,
    });
    used.fold(0, u64::saturating_add).saturating_mul(2)
}

/// Loads a tower into an executor of its model.
pub(super) fn load(executor: CpuExecutor, file: &TowerFile) -> Result<CpuExecutor, LoadError> {
    executor.load_tower(&file.open()?, file.path())
}
