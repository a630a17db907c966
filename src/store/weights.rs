//! The hash of a model's files, which is part of an engine's fingerprint: it tells weights of one name apart.
//!
//! Hashing takes about a second a gigabyte. Hashes are kept next to the store, by all file attributes that identify an
//! unchanged file. These also show whether the hashed files are the loaded ones: they are recorded before anything of
//! the files is read, and a hash counts only if they are still the same then.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Stop;
use crate::files::{Files, SystemFiles};

/// Bytes that are hashed between two checks of [`Stop`].
const PIECE_BYTES: usize = 1 << 20;
/// Upper bound on kept hashes: the oldest are dropped.
const MAX_KEPT: usize = 1024;
const MAX_KEPT_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    #[error("{} cannot be read to hash its weights: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// A file is no longer the one that was loaded.
    #[error(
        "{} changed while it was loaded, so the loaded weights are unknown: restart the engine",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error("the engine is stopping")]
    Stopped,
}

/// The files of a model's weights, as they were at one moment.
#[derive(Clone, Debug)]
pub struct WeightFiles(Vec<(PathBuf, Option<String>)>);

impl WeightFiles {
    /// Records the identity of files, before they are loaded. A file that cannot be read is reported when it is hashed.
    pub fn look(paths: Vec<PathBuf>) -> Self {
        let look = |path: PathBuf| {
            let found = fs::metadata(&path).ok();
            let identity = found.as_ref().and_then(identity);
            (path, identity)
        };
        Self(paths.into_iter().map(look).collect())
    }

    /// True for the paths of these files, in their order.
    pub fn are_at(&self, paths: &[PathBuf]) -> bool {
        self.0.iter().map(|(path, _)| path).eq(paths)
    }
}

/// The SHA-256 of the hashes of unchanged files, in their order. Takes known hashes from `kept`, and adds new ones
/// there; if it cannot be read or written, everything is hashed again next time.
pub fn digest(files: &WeightFiles, kept: &Path, stop: &Stop) -> Result<[u8; 32], DigestError> {
    let mut cache = Kept::read(kept);
    let mut all = Sha256::new();
    for (path, seen) in &files.0 {
        let unreadable = |error| DigestError::Unreadable {
            path: path.clone(),
            error,
        };
        let file = File::open(path).map_err(unreadable)?;
        let still_is = || -> Result<(), DigestError> {
            let now = identity(&file.metadata().map_err(unreadable)?);
            let path = path.clone();
            (now == *seen)
                .then_some(())
                .ok_or(DigestError::Changed { path })
        };
        still_is()?;
        let known = seen.as_ref().and_then(|identity| cache.get(identity));
        let hash = match known {
            Some(hash) => hash,
            None => {
                let hash = hash_file(&file, stop).map_err(unreadable)?;
                let hash = hash.ok_or(DigestError::Stopped)?;
                // A file that was written meanwhile is another one.
                still_is()?;
                cache.put(seen.clone(), &hash);
                hash
            }
        };
        all.update(hash.as_bytes());
    }
    cache.write(kept);
    Ok(all.finalize().into())
}

/// The hash in hexadecimal digits; `None` if it should stop.
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

/// Hashes by identity, the newest last.
struct Kept {
    lines: Vec<(String, String)>,
    is_changed: bool,
}

impl Kept {
    fn read(path: &Path) -> Self {
        let bytes = SystemFiles.read(path, MAX_KEPT_BYTES).unwrap_or_default();
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
        let found = lines.find(|(kept, _)| kept == identity);
        found.map(|(_, hash)| hash.clone())
    }

    fn put(&mut self, identity: Option<String>, hash: &str) {
        if let Some(identity) = identity {
            self.lines.push((identity, hash.to_owned()));
            let n_old = self.lines.len().saturating_sub(MAX_KEPT);
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
            tracing::debug!(%error, "failed to cache the hashes of weights");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(folder: &Path, names: &[&str]) -> [u8; 32] {
        let files = names.iter().map(|name| folder.join(name)).collect();
        let files = WeightFiles::look(files);
        let stop = Stop::default();
        digest(&files, &folder.join("kept/weights"), &stop).expect("they can be read")
    }

    #[test]
    fn other_bytes_and_another_order_are_other_weights() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("it can be written");
        };
        write("a", "one");
        write("b", "two");
        let first = hashed(folder.path(), &["a", "b"]);
        assert_eq!(first, hashed(folder.path(), &["a", "b"]), "kept");
        assert_ne!(first, hashed(folder.path(), &["b", "a"]));
        fs::remove_file(folder.path().join("kept/weights")).expect("it was written");
        assert_eq!(first, hashed(folder.path(), &["a", "b"]), "not kept");
        write("c", "six");
        fs::rename(folder.path().join("c"), folder.path().join("b")).expect("same folder");
        assert_ne!(first, hashed(folder.path(), &["a", "b"]));
        write("kept/weights", "what \u{1} is this\n\n");
        write("b", "two");
        assert_eq!(first, hashed(folder.path(), &["a", "b"]), "nonsense kept");
    }

    #[test]
    fn kept_hashes_are_taken_without_reading() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::write(folder.path().join("a"), "one").expect("it can be written");
        let first = hashed(folder.path(), &["a"]);
        let stop = Stop::default();
        stop.set();
        let files = WeightFiles::look(vec![folder.path().join("a")]);
        let kept = digest(&files, &folder.path().join("kept/weights"), &stop);
        assert_eq!(kept.ok(), cfg!(unix).then_some(first));
        let unkept = digest(&files, &folder.path().join("other"), &stop);
        assert!(matches!(unkept, Err(DigestError::Stopped)));
        let missing = WeightFiles::look(vec![folder.path().join("none")]);
        let error = digest(&missing, &folder.path().join("other"), &Stop::default());
        let error = error.expect_err("there is no such file").to_string();
        assert!(error.contains("none cannot be read"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn files_that_are_replaced_behind_a_look_have_no_hash() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let at = |name: &str| folder.path().join(name);
        let kept = at("kept/weights");
        let hash = |files: &WeightFiles| digest(files, &kept, &Stop::default());
        for name in ["a", "b"] {
            fs::write(at(name), "one").expect("it can be written");
        }
        let seen = WeightFiles::look(vec![at("a"), at("b")]);
        let first = hash(&seen).expect("they are the same");
        // Other weights, of the same size; those before are hashed and kept.
        fs::write(at("c"), "two").expect("it can be written");
        fs::rename(at("c"), at("b")).expect("same folder");
        let error = hash(&seen).expect_err("one file is another");
        assert!(matches!(&error, DigestError::Changed { path } if *path == at("b")));
        assert!(error.to_string().contains("restart the engine"), "{error}");
        // The same goes for equal bytes in another file: these may not be the ones that were loaded.
        fs::write(at("c"), "one").expect("it can be written");
        fs::rename(at("c"), at("b")).expect("same folder");
        assert!(matches!(hash(&seen), Err(DigestError::Changed { .. })));
        let again = WeightFiles::look(vec![at("a"), at("b")]);
        assert_eq!(hash(&again).expect("they are the same"), first);
        fs::remove_file(at("a")).expect("it is there");
        let error = hash(&again).expect_err("one file is gone").to_string();
        assert!(error.contains("a cannot be read"), "{error}");
        assert!(again.are_at(&[at("a"), at("b")]) && !again.are_at(&[at("b"), at("a")]));
    }
}
