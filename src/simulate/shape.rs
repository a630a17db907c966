//! Loads the architecture of a model, without weights: a built-in one by name, or from a file.

use std::path::Path;

use super::SimulateError;
use souffleur_model::config::ModelConfig;
use souffleur_model::gguf::{self, Gguf};
use souffleur_model::location::ModelLocation;

const KNOWN: [(&str, &str); 11] = [
    (
        "llama-3.1-8b",
        include_str!("../../config/shapes/llama-3.1-8b.json"),
    ),
    (
        "llama-3.1-70b",
        include_str!("../../config/shapes/llama-3.1-70b.json"),
    ),
    (
        "qwen2.5-coder-1.5b",
        include_str!("../../config/shapes/qwen2.5-coder-1.5b.json"),
    ),
    (
        "qwen2.5-coder-7b",
        include_str!("../../config/shapes/qwen2.5-coder-7b.json"),
    ),
    (
        "qwen3-0.6b",
        include_str!("../../config/shapes/qwen3-0.6b.json"),
    ),
    (
        "qwen3-1.7b",
        include_str!("../../config/shapes/qwen3-1.7b.json"),
    ),
    (
        "qwen3-4b",
        include_str!("../../config/shapes/qwen3-4b.json"),
    ),
    (
        "qwen3-8b",
        include_str!("../../config/shapes/qwen3-8b.json"),
    ),
    (
        "qwen3-14b",
        include_str!("../../config/shapes/qwen3-14b.json"),
    ),
    (
        "qwen3-30b-a3b",
        include_str!("../../config/shapes/qwen3-30b-a3b.json"),
    ),
    (
        "gpt-oss-20b",
        include_str!("../../config/shapes/gpt-oss-20b.json"),
    ),
];

pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, _)| *name)
}

/// Loads a shape by name, or from a `config.json`, its folder, or a GGUF file. Errors list the known names, or the
/// reason why the engine does not support the configuration.
pub fn load(name_or_path: &str) -> Result<ModelConfig, SimulateError> {
    if let Some((name, text)) = KNOWN.iter().find(|(name, _)| *name == name_or_path) {
        return Ok(ModelConfig::parse(Path::new(name), text.as_bytes())?);
    }
    let path = Path::new(name_or_path);
    let dir = if path.is_file() && path.ends_with("config.json") {
        path.parent().unwrap_or(Path::new("")).to_owned()
    } else {
        match ModelLocation::find(path)? {
            ModelLocation::Folder(dir) => dir,
            ModelLocation::Gguf(file) => return Ok(gguf::config(&Gguf::open(&file)?)?),
        }
    };
    if !dir.join("config.json").is_file() {
        let names: Vec<_> = names().collect();
        let reason = format!(
            "is {name_or_path:?}, must be one of {}, a config.json, a folder with a config.json, or a GGUF file",
            names.join(", ")
        );
        return Err(SimulateError::value("shape", reason));
    }
    Ok(ModelConfig::read(&dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_in_shapes_have_the_sizes_of_their_models() {
        let billions = [
            8.03, 70.55, 1.54, 7.62, 0.596, 1.72, 4.02, 8.19, 14.77, 30.53, 20.91,
        ];
        for (name, expected) in names().zip(billions) {
            let shape = load(name).expect("it is compiled in");
            let parameters = shape.parameters() as f64 / 1e9;
            assert!(
                (parameters / expected - 1.0).abs() < 0.005,
                "{name}: {parameters}"
            );
        }
        let unknown = load("llama-9").expect_err("there is none").to_string();
        assert!(
            unknown.contains("\"llama-9\"") && unknown.contains("qwen3-8b"),
            "{unknown}"
        );
    }
}
