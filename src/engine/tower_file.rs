//! Where a vision tower is: with the text model, or in a separate file.

use std::path::{Path, PathBuf};

use souffleur_base::error::{LoadError, load_error};
use souffleur_executor::cpu::TowerFiles;
use souffleur_model::vision::TowerCheckpoint;

/// Where a tower is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TowerFile {
    /// In the folder of a model in Hugging Face layout, with its text model.
    Folder(PathBuf),
    /// A separate GGUF file.
    Mmproj(PathBuf),
}

impl TowerFile {
    /// The file or folder that errors name.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::Mmproj(path) => path,
        }
    }

    /// The path, if the tower is a separate file.
    pub(super) fn mmproj(&self) -> Option<&Path> {
        match self {
            Self::Folder(_) => None,
            Self::Mmproj(path) => Some(path),
        }
    }

    pub(super) fn open(&self) -> Result<TowerCheckpoint, LoadError> {
        match self {
            Self::Folder(dir) => {
                let tower = TowerCheckpoint::open_folder(dir)?;
                let gone = "the vision tower was removed after the engine was started";
                tower.ok_or_else(|| load_error(dir, gone))
            }
            Self::Mmproj(path) => TowerCheckpoint::open_mmproj(path),
        }
    }

    /// Opens the tower for an executor.
    pub(super) fn files(&self) -> Result<TowerFiles, LoadError> {
        Ok(TowerFiles {
            checkpoint: self.open()?,
            source: self.path().to_owned(),
        })
    }
}

/// A tower whose files are open and checked.
pub(super) struct FoundTower {
    pub checkpoint: TowerCheckpoint,
    pub file: TowerFile,
}
