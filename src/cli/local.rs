//! Resolves the model of a command to local files, and starts an engine in this process.

use std::path::{Path, PathBuf};

use souffleur::bundled;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, EngineParts, Progress};
use souffleur::hub::{self, Extent, Hub, HubError, HubModel, HubSettings};

use super::failure::Failure;
use super::progress;

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        if error.is_usage() {
            Self::Usage(error.to_string())
        } else {
            Self::Failed(error.to_string())
        }
    }
}

/// Sets `model_path` to local files: of the bundled model if no path is given, or of the downloaded model for a hub id.
pub fn with_model(mut config: EngineConfig) -> Result<EngineConfig, Failure> {
    if config.model_path.as_os_str().is_empty() {
        if let Some(revision) = config.revision {
            let reason = format!(
                "--revision is {revision:?}, but --model-path is not set: set it, or remove --revision"
            );
            return Err(Failure::Usage(reason));
        }
        config.model_path = bundled::unpacked().map_err(Failure::failed)?;
    }
    check_word(&config.model_path)?;
    Ok(hub::localise(config, &mut progress::download_bar())?)
}

/// # Errors
/// If the model is a single word, which may also be a mistyped command, and there is no such file.
fn check_word(path: &Path) -> Result<(), Failure> {
    if path.exists() || path.components().count() > 1 || path.extension().is_some() {
        return Ok(());
    }
    let reason = format!(
        "there is no file or folder {:?}, and no command of this name: a model is a GGUF file, a folder in Hugging \
         Face layout, or an id on the hub as owner/name, such as Qwen/Qwen3-0.6B; `souffleur -h` lists the commands",
        path.display().to_string()
    );
    Err(Failure::Usage(reason))
}

/// Returns the path of the files that describe a model. For a hub id, downloads these files, without separate weight
/// files.
pub fn config_path(path: &Path, revision: Option<&str>) -> Result<PathBuf, Failure> {
    let Some(model) = HubModel::of_path(path) else {
        return Ok(path.to_owned());
    };
    let hub = Hub::new(HubSettings::from_env()?);
    let watch = &mut progress::download_bar();
    Ok(hub.fetch(&model, revision, Extent::Shape, watch)?)
}

pub fn has_chat_template(parts: &EngineParts) -> bool {
    let text = parts.text.as_ref();
    text.is_some_and(|text| text.has_chat_template())
}

/// Like [`with_model`], for a command that needs the tokenizer.
pub fn with_text(config: EngineConfig) -> Result<EngineConfig, Failure> {
    if config.skip_tokenizer_init {
        let reason = "this command needs the tokenizer: remove --skip-tokenizer-init";
        return Err(Failure::Usage(reason.to_owned()));
    }
    with_model(config)
}

/// Loads the model and starts the engine, with a progress bar on a terminal. Blocks until the engine is ready. `check`
/// is called before the weights are loaded, and may return an error.
pub fn start(
    config: EngineConfig,
    check: impl FnOnce(&EngineParts) -> Result<(), Failure>,
) -> Result<EngineHandle, Failure> {
    start_reporting(config, progress::weights_bar(), check)
}

/// As [`start`], with another report of the progress.
pub fn start_reporting(
    config: EngineConfig,
    progress: Progress,
    check: impl FnOnce(&EngineParts) -> Result<(), Failure>,
) -> Result<EngineHandle, Failure> {
    let parts = EngineParts::from_model(&config, progress)?;
    check(&parts)?;
    Ok(Engine::start_with(config, parts)?)
}
