//! Finds the vision tower that was downloaded with a GGUF model.

use std::path::{Path, PathBuf};

use super::TowerConfig;
use crate::config::ModelConfig;
use crate::gguf::{Gguf, is_projector};
use crate::json_file::load_error;
use souffleur_base::error::LoadError;

/// Names in the error about several towers.
const SHOWN: usize = 8;

/// The file with the vision tower in the folder of a GGUF model: the only mmproj file whose tower is of the model's
/// family and as wide as the model's embeddings. `None` if there is none. Files that cannot be read, and towers that are
/// not supported, are left out.
///
/// # Errors
/// If several fit, or if the folder cannot be read.
pub fn tower_next_to(file: &Path, model: &ModelConfig) -> Result<Option<PathBuf>, LoadError> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let io = |source| LoadError::Io {
        file: dir.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(is_projector) && fits(&path, model) {
            found.push(path);
        }
    }
    found.sort();
    if found.len() <= 1 {
        return Ok(found.pop());
    }
    let names = found.iter().filter_map(|path| path.file_name()?.to_str());
    let names: Vec<&str> = names.take(SHOWN).collect();
    let reason = format!(
        "holds {} vision towers of width {}, including {}: name the file of one of them with --mmproj",
        found.len(),
        model.hidden_size,
        names.join(", ")
    );
    Err(load_error(dir, reason))
}

fn fits(file: &Path, model: &ModelConfig) -> bool {
    let config = Gguf::open(file).and_then(|gguf| TowerConfig::from_gguf(&gguf));
    match config.map(|config| config.check_fits(file, model)) {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::info!(%error, "a vision tower next to the model is another model's");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the vision tower next to the model cannot be used");
            false
        }
    }
}
