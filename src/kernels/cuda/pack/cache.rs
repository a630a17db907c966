//! On-disk cache of kernels compiled on this machine.
//!
//! A file's name is the hash of the sources and the compiler's version; lookups accept any version, so that they don't
//! need NVRTC. A file begins with a hash of the rest, which detects truncation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::super::search;
use super::sources::SourceHash;

/// Maximum number of files: a dozen units for a few GPUs and versions. The oldest files are deleted first.
const MAX_FILES: usize = 96;
const EXTENSION: &str = "cubin";

pub struct Cache(pub Option<PathBuf>);

/// `$SOUFFLEUR_CACHE_DIR/kernels`, else `souffleur/kernels` in the user's cache folder.
pub fn folder_of_user() -> Option<PathBuf> {
    let user = || {
        let xdg = search::variable("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
        let cache = xdg.or_else(|| Some(search::variable("HOME")?.join(".cache")));
        cache.map(|cache| cache.join("souffleur"))
    };
    let folder = search::variable("SOUFFLEUR_CACHE_DIR").or_else(user);
    folder.map(|folder| folder.join("kernels"))
}

impl Cache {
    /// # Errors
    /// If the cache has no kernel of these sources, or its file is damaged.
    pub fn read(&self, sources: &SourceHash) -> Result<Vec<u8>, String> {
        let dir = self
            .0
            .as_ref()
            .ok_or("neither HOME nor SOUFFLEUR_CACHE_DIR is set")?;
        let path =
            newest(dir, sources).ok_or_else(|| format!("not cached in {}", dir.display()))?;
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let whole = bytes
            .split_first_chunk::<32>()
            .filter(|(hash, image)| hash_of(image) == **hash);
        match whole {
            Some((_, image)) => Ok(image.to_vec()),
            None => Err(format!("{} is damaged", path.display())),
        }
    }

    /// Stores machine code compiled by this version of NVRTC, and deletes the oldest files beyond the limit.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write(&self, sources: &SourceHash, compiler: &str, image: &[u8]) -> Result<(), String> {
        let Some(dir) = &self.0 else {
            return Ok(());
        };
        write(dir, &name(sources, compiler), image)
            .and_then(|()| prune(dir))
            .map_err(|error| format!("{}: {error}", dir.display()))
    }
}

fn hash_of(image: &[u8]) -> [u8; 32] {
    Sha256::digest(image).into()
}

fn stem(sources: &SourceHash) -> String {
    sources.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name(sources: &SourceHash, compiler: &str) -> String {
    format!("{}-{compiler}.{EXTENSION}", stem(sources))
}

fn newest(dir: &Path, sources: &SourceHash) -> Option<PathBuf> {
    let stem = stem(sources);
    let paths = fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()));
    let of_sources = paths.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&stem) && name.ends_with(EXTENSION))
    });
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    of_sources.max_by_key(modified)
}

fn write(dir: &Path, name: &str, image: &[u8]) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)?;
    let part = dir.join(format!(".{}", uuid::Uuid::new_v4()));
    let bytes = [&hash_of(image)[..], image].concat();
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, dir.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn prune(dir: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|found| found == EXTENSION) {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            files.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    files.sort();
    let n_surplus = files.len().saturating_sub(MAX_FILES);
    files.into_iter().take(n_surplus).try_for_each(|(_, path)| {
        // Another process may have removed the file.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let cache = Cache(Some(dir.path().join("new")));
        (dir, cache)
    }

    #[test]
    fn written_files_are_read_and_truncated_files_are_not() {
        let (_dir, cache) = cache();
        assert!(cache.read(&[1; 32]).is_err());
        cache
            .write(&[1; 32], "12.9", b"machine code")
            .expect("the file can be written");
        cache
            .write(&[2; 32], "12.9", b"other")
            .expect("the file can be written");
        assert_eq!(cache.read(&[1; 32]).as_deref(), Ok(&b"machine code"[..]));
        let path = cache
            .0
            .clone()
            .expect("the cache has a folder")
            .join(name(&[1; 32], "12.9"));
        let bytes = fs::read(&path).expect("the file exists");
        fs::write(&path, &bytes[..bytes.len() - 1]).expect("the file can be written");
        let error = cache.read(&[1; 32]).expect_err("the file is damaged");
        assert!(error.contains("is damaged"), "{error}");
        assert!(Cache(None).read(&[1; 32]).is_err());
        assert_eq!(Cache(None).write(&[1; 32], "12.9", b""), Ok(()));
    }

    #[test]
    fn the_oldest_files_are_deleted_first() {
        let (_dir, cache) = cache();
        for n in 0..MAX_FILES as u64 + 3 {
            let mut sources = [0; 32];
            sources[..8].copy_from_slice(&n.to_le_bytes());
            cache
                .write(&sources, "12.9", b"x")
                .expect("the file can be written");
            let path = cache
                .0
                .clone()
                .expect("the cache has a folder")
                .join(name(&sources, "12.9"));
            let file = fs::File::options().append(true).open(path);
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + n);
            let _ = file.map(|file| file.set_modified(time));
        }
        let kept = |n: u64| {
            let mut sources = [0; 32];
            sources[..8].copy_from_slice(&n.to_le_bytes());
            cache.read(&sources).is_ok()
        };
        assert!(!kept(0) && !kept(2));
        assert!(kept(3) && kept(MAX_FILES as u64 + 2));
    }
}
