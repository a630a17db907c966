//! An engine in this process: what every command but `logits` starts.

use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, EngineParts};

use super::failure::Failure;
use super::{bundled, progress};

/// The configuration with the bundled model in it if it names none.
pub fn with_model(mut config: EngineConfig) -> Result<EngineConfig, Failure> {
    if config.model_path.as_os_str().is_empty() {
        config.model_path = bundled::unpacked()?;
    }
    Ok(config)
}

/// Loads the model and starts the engine, with a bar on a terminal. Blocks until it is ready; `look` sees what is
/// known before the weights are loaded, and may refuse it.
pub fn start(
    config: EngineConfig,
    look: impl FnOnce(&EngineParts) -> Result<(), Failure>,
) -> Result<EngineHandle, Failure> {
    let parts = EngineParts::from_model(&config, progress::weights_bar())?;
    look(&parts)?;
    Ok(Engine::start_with(config, parts)?)
}
