//! Hashes a model's weight files, for the fingerprint of an engine, and caches the hashes.
//!
//! Hashing takes about a second per gigabyte. Hashes are cached next to the store, by file attributes that identify an
//! unchanged file. The attributes are recorded before the files are loaded, and a hash is used only if they are
//! unchanged afterwards: the hashed files are then the loaded files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Stop;
use crate::files::{Files, SystemFiles};

/// Bytes to hash between two checks of [`Stop`].
const PIECE_BYTES: usize = 1 << 20;
/// The largest number of cached hashes: the oldest are dropped.
const MAX_HASHES: usize = 1024;
const MAX_CACHE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    #[error("failed to read {} to hash the weights: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error(
        "{} changed while the model was loaded, so the loaded weights are unknown: restart the engine",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error("the engine is stopping")]
    Stopped,
}

/// A model's weight files, each with its identity before the load.
#[derive(Clone, Debug)]
pub struct WeightFiles(Vec<(PathBuf, Option<String>)>);

impl WeightFiles {
    /// Records the identity of files, before they are loaded. A file that cannot be read is an error only when hashed.
    pub fn record(paths: Vec<PathBuf>) -> Self {
        let record = |path: PathBuf| {
            let found = fs::metadata(&path).ok();
            let identity = found.as_ref().and_then(identity);
            (path, identity)
        };
        Self(paths.into_iter().map(record).collect())
    }

    /// These files, and another one, recorded now.
    pub fn with(&self, path: PathBuf) -> Self {
        let Self(other) = Self::record(vec![path]);
        Self(self.0.iter().cloned().chain(other).collect())
    }

    /// True if `paths` are the paths of these files, in the same order.
    pub fn are_at(&self, paths: &[PathBuf]) -> bool {
        self.0.iter().map(|(path, _)| path).eq(paths)
    }
}

/// Returns the SHA-256 of the hashes of unchanged files, in order. Takes known hashes from the file `cached`, and adds
/// new hashes to this file; if it cannot be read or written, all files are hashed again next time.
pub fn digest(files: &WeightFiles, cached: &Path, stop: &Stop) -> Result<[u8; 32], DigestError> {
    let mut cache = HashCache::read(cached);
    let mut all = Sha256::new();
    for (path, seen) in &files.0 {
        let unreadable = |error| DigestError::Unreadable {
            path: path.clone(),
            error,
        };
        let file = File::open(path).map_err(unreadable)?;
        let check_unchanged = || -> Result<(), DigestError> {
            let now = identity(&file.metadata().map_err(unreadable)?);
            let path = path.clone();
            (now == *seen)
                .then_some(())
                .ok_or(DigestError::Changed { path })
        };
        check_unchanged()?;
        let known = seen.as_ref().and_then(|identity| cache.get(identity));
        let hash = match known {
            Some(hash) => hash,
            None => {
                let hash = hash_file(&file, stop).map_err(unreadable)?;
                let hash = hash.ok_or(DigestError::Stopped)?;
                // The file may have changed during the hashing.
                check_unchanged()?;
                cache.put(seen.clone(), &hash);
                hash
            }
        };
        all.update(hash.as_bytes());
    }
    cache.write(cached);
    Ok(all.finalize().into())
}

/// Hashes a file, in hexadecimal digits; `None` if the engine is stopping.
fn hash_file(mut file: &File, stop: &Stop) -> io::Result<Option<String>> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if stop.is_set() {
            return Ok(None);
        }
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => hash.update(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    let hash: [u8; 32] = hash.finalize().into();
    Ok(Some(hash.iter().map(|b| format!("{b:02x}")).collect()))
}

/// Device, inode, size, and the times of the last change of the contents and of the inode: a file that keeps all of
/// them has not been written.
#[cfg(unix)]
fn identity(found: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (device, inode, bytes) = (found.dev(), found.ino(), found.size());
    let modified = (found.mtime(), found.mtime_nsec());
    let changed = (found.ctime(), found.ctime_nsec());
    Some(format!(
        "{device}:{inode}:{bytes}:{}.{:09}:{}.{:09}",
        modified.0, modified.1, changed.0, changed.1
    ))
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Option<String> {
    None
}

/// Hashes by file identity, the newest last.
struct HashCache {
    lines: Vec<(String, String)>,
    is_changed: bool,
}

impl HashCache {
    fn read(path: &Path) -> Self {
        let bytes = SystemFiles.read(path, MAX_CACHE_BYTES).unwrap_or_default();
        let text = String::from_utf8(bytes).unwrap_or_default();
        let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter(|(_, hash)| is_hash(hash));
        Self {
            lines: lines
                .map(|(identity, hash)| (identity.to_owned(), hash.to_owned()))
                .collect(),
            is_changed: false,
        }
    }

    fn get(&self, identity: &str) -> Option<String> {
        let mut lines = self.lines.iter();
        let found = lines.find(|(known, _)| known == identity);
        found.map(|(_, hash)| hash.clone())
    }

    fn put(&mut self, identity: Option<String>, hash: &str) {
        if let Some(identity) = identity {
            self.lines.push((identity, hash.to_owned()));
            let n_old = self.lines.len().saturating_sub(MAX_HASHES);
            self.lines.drain(..n_old);
            self.is_changed = true;
        }
    }

    fn write(&self, path: &Path) {
        if !self.is_changed {
            return;
        }
        let lines = self.lines.iter();
        let text: String = lines.map(|(id, hash)| format!("{id} {hash}\n")).collect();
        let folder = path.parent().map_or(Ok(()), |p| SystemFiles.make_folder(p));
        let written = folder.and_then(|()| SystemFiles.replace(path, text.as_bytes()));
        if let Err(error) = written {
            tracing::debug!(
                path = %path.display(),
                %error,
                "failed to cache the hashes of weights: the next start hashes the weights again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(folder: &Path, names: &[&str]) -> [u8; 32] {
        let files = names.iter().map(|name| folder.join(name)).collect();
        let files = WeightFiles::record(files);
        let stop = Stop::default();
        digest(&files, &folder.join("kept/weights"), &stop).expect("the files can be read")
    }

    #[test]
    fn the_hash_depends_on_the_contents_and_the_order() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("the file can be written");
        };
        write("a", "one");
        write("b", "two");
        let first = hashed(folder.path(), &["a", "b"]);
        assert_eq!(first, hashed(folder.path(), &["a", "b"]), "cached");
        assert_ne!(first, hashed(folder.path(), &["b", "a"]));
        fs::remove_file(folder.path().join("kept/weights")).expect("the cache file exists");
        assert_eq!(first, hashed(folder.path(), &["a", "b"]), "not cached");
        write("c", "six");
        fs::rename(folder.path().join("c"), folder.path().join("b")).expect("the file is renamed");
        assert_ne!(first, hashed(folder.path(), &["a", "b"]));
        write("kept/weights", "what \u{1} is this\n\n");
        write("b", "two");
        assert_eq!(first, hashed(folder.path(), &["a", "b"]), "invalid cache");
    }

    #[test]
    fn cached_hashes_are_used_without_reading_the_files() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::write(folder.path().join("a"), "one").expect("the file can be written");
        let first = hashed(folder.path(), &["a"]);
        let stop = Stop::default();
        stop.set();
        let files = WeightFiles::record(vec![folder.path().join("a")]);
        let cached = digest(&files, &folder.path().join("kept/weights"), &stop);
        assert_eq!(cached.ok(), cfg!(unix).then_some(first));
        let uncached = digest(&files, &folder.path().join("other"), &stop);
        assert!(matches!(uncached, Err(DigestError::Stopped)));
        let missing = WeightFiles::record(vec![folder.path().join("none")]);
        let error = digest(&missing, &folder.path().join("other"), &Stop::default());
        let error = error.expect_err("the file does not exist").to_string();
        assert!(error.contains("none to hash the weights"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn files_that_are_replaced_after_they_were_recorded_have_no_hash() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let at = |name: &str| folder.path().join(name);
        let cache_file = at("kept/weights");
        let hash = |files: &WeightFiles| digest(files, &cache_file, &Stop::default());
        for name in ["a", "b"] {
            fs::write(at(name), "one").expect("the file can be written");
        }
        let seen = WeightFiles::record(vec![at("a"), at("b")]);
        let first = hash(&seen).expect("the files are unchanged");
        // Replaces a file by one of the same size; the old file's hash is cached.
        fs::write(at("c"), "two").expect("the file can be written");
        fs::rename(at("c"), at("b")).expect("the file is renamed");
        let error = hash(&seen).expect_err("a file was replaced");
        assert!(matches!(&error, DigestError::Changed { path } if *path == at("b")));
        assert!(error.to_string().contains("restart the engine"), "{error}");
        // A new file with equal bytes is also refused: the loaded bytes may have differed.
        fs::write(at("c"), "one").expect("the file can be written");
        fs::rename(at("c"), at("b")).expect("the file is renamed");
        assert!(matches!(hash(&seen), Err(DigestError::Changed { .. })));
        let again = WeightFiles::record(vec![at("a"), at("b")]);
        assert_eq!(hash(&again).expect("the files are unchanged"), first);
        fs::remove_file(at("a")).expect("the file exists");
        let error = hash(&again).expect_err("a file was removed").to_string();
        assert!(error.contains("a to hash the weights"), "{error}");
        assert!(again.are_at(&[at("a"), at("b")]) && !again.are_at(&[at("b"), at("a")]));
    }
}
