//! `souffleur plan`: how memory would be divided, without loading the model.

use souffleur::engine::{EngineParts, ModelInfo, Progress};

use super::failure::Failure;
use super::local;
use super::output::say;
use crate::cli::settings::Settings;

/// Runs the command.
pub fn run(settings: Settings) -> Result<(), Failure> {
    let mut config = local::with_model(settings.engine)?;
    // A folder of weights alone can be planned for.
    config.skip_tokenizer_init = true;
    let parts = EngineParts::from_model(&config, Progress::silent())?;
    show(&parts.info);
    Ok(())
}

/// Prints the plan of a model.
pub fn show(model: &ModelInfo) {
    say(format_args!(
        "model                 {} ({})",
        model.served_model_name,
        model.model_path.display()
    ));
    let lines = model.memory.iter().flat_map(|plan| plan.explain());
    lines.for_each(say);
}
