//! The model as an argument without a flag: `souffleur model.gguf`.

use clap::Args;

use super::EngineFlags;

#[derive(Args, Clone, Debug, Default)]
pub struct ModelArg {
    /// Model, in place of --model-path: GGUF file, folder in Hugging Face layout, or id on the hub; the bundled model
    /// if neither is given
    #[arg(value_name = "MODEL", conflicts_with = "model_path")]
    model: Option<String>,
}

impl ModelArg {
    pub fn given(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Sets the argument as the value of `--model-path`.
    pub fn apply(&self, engine: &mut EngineFlags) {
        if let Some(model) = &self.model {
            engine.set("model_path", model.as_str().into());
        }
    }
}
