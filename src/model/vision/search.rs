//! Finds the vision tower that was downloaded with a GGUF model.

use std::path::{Path, PathBuf};

use super::TowerConfig;
use crate::gguf::{Gguf, is_projector};
use crate::json_file::load_error;
use souffleur_base::error::LoadError;

/// Names in the error about several towers.
const SHOWN: usize = 8;

/// The file with the vision tower in the folder of a GGUF model: the only mmproj file whose vectors are as wide as the
/// model's embeddings. `None` if there is none. Files that cannot be read, and towers that are not supported, are left
/// out.
///
/// # Errors
/// If several fit, or if the folder cannot be read.
pub fn tower_next_to(model: &Path, hidden_size: usize) -> Result<Option<PathBuf>, LoadError> {
    let dir = match model.parent() {
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
        if name.is_some_and(is_projector) && fits(&path, hidden_size) {
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
        "holds {} vision towers of width {hidden_size}, including {}: name the file of one of them",
        found.len(),
        names.join(", ")
    );
    Err(load_error(dir, reason))
}

fn fits(file: &Path, hidden_size: usize) -> bool {
    let config = Gguf::open(file).and_then(|gguf| TowerConfig::from_gguf(&gguf));
    match config {
        Ok(config) => config.out_width() == hidden_size,
        Err(error) => {
            tracing::warn!(%error, "the vision tower next to the model cannot be used");
            false
        }
    }
}
