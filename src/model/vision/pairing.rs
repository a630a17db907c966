//! Whether a tower is that of a text model. Files of towers come apart from their models, so the wrong one is easily
//! taken: it would make vectors that mean nothing to the model.

use std::path::Path;

use super::{TowerConfig, TowerFamily};
use crate::config::ModelConfig;
use crate::json_file::load_error;
use souffleur_base::error::LoadError;

impl TowerFamily {
    /// The tower that vision-language models with this decoder have; `None` if there are none.
    pub fn of(model: &ModelConfig) -> Option<Self> {
        // Of all towers only this one's images rotate by rows and columns.
        if model.mrope.is_some() {
            return Some(Self::Qwen);
        }
        match model.architecture.short_name() {
            "gemma3" => Some(Self::Gemma3),
            "gemma4" => Some(Self::Gemma4),
            "lfm2" | "lfm2moe" => Some(Self::Lfm2),
            // Files of Mistral Small and Pixtral have Llama's name.
            "llama" | "mistral" | "mistral3" => Some(Self::Pixtral),
            _ => None,
        }
    }
}

impl TowerConfig {
    /// Checks that a tower from a separate file is the text model's: its family and its width. `source` is the file that
    /// the error names.
    ///
    /// # Errors
    /// [`LoadError::Format`] naming the families or the widths of both.
    pub fn check_fits(&self, source: &Path, model: &ModelConfig) -> Result<(), LoadError> {
        let own = self.family.projector_type();
        let text = model.architecture.short_name();
        let refused = |reason: String| Err(load_error(source, reason));
        match TowerFamily::of(model) {
            Some(family) if family == self.family => {
                self.check_width(source, model.hidden_size)?;
                self.check_deepstack(source, model.deepstack)
            }
            Some(family) => refused(format!(
                "clip.projector_type is {own:?}, but text models of the family {text} have {:?}: use the mmproj file of \
                 this model",
                family.projector_type()
            )),
            None if self.family == TowerFamily::Qwen => refused(format!(
                "clip.projector_type is {own:?}, whose images are rotated by rows and columns (M-RoPE), but text models \
                 of the family {text} have no M-RoPE: use the mmproj file of this model, or leave it out"
            )),
            None => refused(format!(
                "clip.projector_type is {own:?}, but text models of the family {text} have no vision tower: use the \
                 mmproj file of this model, or leave it out"
            )),
        }
    }
}
