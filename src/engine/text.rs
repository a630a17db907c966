//! The tokenizer, chat template and sampling defaults of a model, from a folder or a GGUF file.

use std::path::Path;

use souffleur_base::error::LoadError;
use souffleur_config::EngineConfig;
use souffleur_model::generation::GenerationConfig;
use souffleur_model::gguf::{self, Gguf};
use souffleur_model::location::ModelLocation;
use souffleur_model::text::TextModel;

pub(super) struct ModelText {
    /// The tokenizer and chat template; `None` if the configuration skips the tokenizer.
    pub text: Option<TextModel>,
    pub generation: GenerationConfig,
}

impl ModelText {
    /// Reads the files of the configuration's model.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`], naming the file.
    pub fn read(config: &EngineConfig) -> Result<Self, LoadError> {
        let with_text = !config.skip_tokenizer_init;
        match ModelLocation::existing(&config.model_path)? {
            ModelLocation::Folder(dir) => Ok(Self {
                generation: GenerationConfig::read(&dir)?,
                text: with_text.then(|| TextModel::load(&dir)).transpose()?,
            }),
            ModelLocation::Gguf(file) => {
                let gguf = Gguf::open(&file)?;
                let text = with_text.then(|| text_of_gguf(&file, &gguf));
                Ok(Self {
                    generation: gguf::generation_config(&gguf)?,
                    text: text.transpose()?,
                })
            }
        }
    }
}

/// The vocabulary and the chat template of a GGUF file. A `tokenizer.json` next to it replaces a vocabulary that is
/// absent or not supported.
fn text_of_gguf(file: &Path, gguf: &Gguf) -> Result<TextModel, LoadError> {
    let vocabulary = gguf::vocabulary(gguf)?;
    let vocabulary = vocabulary.map(|fields| TextModel::from_vocabulary(file, fields));
    let dir = file.parent().unwrap_or(Path::new(""));
    match vocabulary {
        Some(Ok(text)) => Ok(text),
        unusable if dir.join("tokenizer.json").is_file() => {
            if let Some(Err(error)) = unusable {
                tracing::warn!(%error, "failed to read the vocabulary of the GGUF file, using the tokenizer.json in its folder");
            }
            TextModel::load(dir)
        }
        Some(Err(error)) => Err(error),
        None => Err(LoadError::Format {
            file: file.to_owned(),
            reason:
                "has no vocabulary: put the model's tokenizer.json into the file's folder, or set \
                 --skip-tokenizer-init and send token ids"
                    .to_owned(),
        }),
    }
}
