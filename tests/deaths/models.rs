//! The models: the bundled one, and tiny random ones with recurrent states and with windows.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::repository::repository;

/// More tokens than a prompt and an output have together.
const CONTEXT_TOKENS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    Bundled,
    /// Layers with recurrent states, and layers with K/V.
    Hybrid,
    /// Layers with windows, and layers without.
    Windowed,
}

impl Model {
    pub const ALL: [Self; 3] = [Self::Bundled, Self::Hybrid, Self::Windowed];

    fn source(self) -> PathBuf {
        let fixtures = repository().join("tests/fixtures/models");
        match self {
            Self::Bundled => repository().join("models/souffleur-tiny"),
            Self::Hybrid => fixtures.join("qwen3-5"),
            Self::Windowed => fixtures.join("qwen3-window"),
        }
    }

    /// A copy of the model's files, which a test may change.
    pub fn folder(self) -> TempDir {
        let (source, folder) = (self.source(), TempDir::new().expect("a folder can be made"));
        for file in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            fs::copy(source.join(file), folder.path().join(file)).expect("the model is complete");
        }
        if self != Self::Bundled {
            prepare(folder.path());
        }
        folder
    }
}

/// Gives a fixture a longer context and a chat template.
fn prepare(folder: &Path) {
    edit(&folder.join("config.json"), |config| {
        if config["text_config"].is_object() {
            config["text_config"]["max_position_embeddings"] = CONTEXT_TOKENS.into();
        } else {
            config["max_position_embeddings"] = CONTEXT_TOKENS.into();
        }
    });
    edit(&folder.join("tokenizer_config.json"), |config| {
        let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant: {% endif %}";
        config["chat_template"] = template.into();
    });
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(path).expect("the model is complete");
    let mut value = serde_json::from_str(&text).expect("the file is JSON");
    change(&mut value);
    fs::write(path, value.to_string()).expect("the folder can be written");
}
