//! The bundled model: a tiny one inside this library, which the default configuration serves.
//!
//! Models are loaded from mapped files, so the bundled files are unpacked once into the user's cache, where later runs
//! find them. The folder's name holds a hash of the contents; each file gets its name only when it is whole, and is
//! compared before use.
//! Where no cache can be written, a private temporary folder takes its place; it is not removed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use souffleur_base::error::LoadError;

pub const NAME: &str = "souffleur-tiny";

type File = (&'static str, &'static [u8]);

macro_rules! bundled {
    ($($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("souffleur-tiny/", $name)))),*]
    };
}

const FILES: &[File] = bundled!(
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json"
);

/// A folder with the bundled model, unpacked where `SOUFFLEUR_CACHE_DIR` says, else in the user's cache, else in a
/// temporary folder.
///
/// # Errors
/// [`LoadError::Format`] if none of these can be written, with the reason of each.
pub fn unpacked() -> Result<PathBuf, LoadError> {
    let mut reasons = Vec::new();
    let dirs = cache_dirs();
    for cache in &dirs {
        match unpack(cache, FILES) {
            Ok(dir) => return Ok(dir),
            Err(error) => reasons.push(format!("{}: {error}", cache.display())),
        }
    }
    let reasons = reasons.join("; ");
    Err(LoadError::Format {
        file: NAME.into(),
        reason: format!(
            "the bundled model cannot be unpacked ({reasons}): set SOUFFLEUR_CACHE_DIR to a writable folder"
        ),
    })
}

/// Where to unpack, best first.
fn cache_dirs() -> Vec<PathBuf> {
    let folder = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(chosen) = folder("SOUFFLEUR_CACHE_DIR") {
        return vec![chosen];
    }
    let xdg = folder("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
    let home = folder("HOME").map(|home| home.join(".cache"));
    let user = xdg.or(home).map(|cache| cache.join("souffleur"));
    // Others can write to the temporary folder too: an unguessable name, and files that only their owner can read.
    let private = format!("souffleur-{}", uuid::Uuid::new_v4());
    user.into_iter()
        .chain([std::env::temp_dir().join(private)])
        .collect()
}

fn unpack(cache: &Path, files: &[File]) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let dir = cache.join(format!("{:016x}", hasher.finish())).join(NAME);
    create_private(&dir)?;
    for (name, contents) in files {
        let path = dir.join(name);
        if fs::read(&path).is_ok_and(|present| present == *contents) {
            continue;
        }
        let temporary = dir.join(format!(".{name}.{}", uuid::Uuid::new_v4()));
        let written = fs::write(&temporary, contents).and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
    }
    Ok(dir)
}

fn create_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[File] = &[("config.json", b"{}"), ("model.safetensors", b"weights")];

    #[test]
    fn files_are_unpacked_once_and_replaced_when_they_differ() {
        let cache = tempfile::tempdir().expect("a temporary folder can be made");
        let dir = unpack(cache.path(), TWO).expect("it unpacks");
        assert!(
            dir.ends_with(NAME),
            "the folder's name is the model's: {}",
            dir.display()
        );
        fs::write(dir.join("model.safetensors"), "wei").expect("it is writable");
        let again = unpack(cache.path(), TWO).expect("it unpacks");
        assert_eq!(again, dir);
        let weights = fs::read(dir.join("model.safetensors")).expect("it is there");
        assert_eq!(weights, b"weights");
        assert_eq!(
            fs::read_dir(&dir).expect("it is a folder").count(),
            TWO.len()
        );
    }

    #[test]
    fn other_contents_are_unpacked_elsewhere() {
        let cache = tempfile::tempdir().expect("a temporary folder can be made");
        let one = unpack(cache.path(), TWO).expect("it unpacks");
        let other = unpack(cache.path(), &TWO[..1]).expect("it unpacks");
        assert_ne!(one, other);
    }
}
