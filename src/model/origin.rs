//! Detects that a model's files were replaced after it was loaded.
//!
//! After a failure, the engine loads the model again under the same public name. If the path then has another model, or
//! a partly copied one, clients would attribute the output of that model to the first model.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::location::ModelLocation;
use souffleur_base::error::LoadError;

/// Hashed bytes at the start of a file: tensor names and shapes, and usually the first weights.
const HEADER_BYTES: u64 = 1 << 20;
const CONFIG: &str = "config.json";

#[derive(Debug)]
pub struct ModelFiles {
    path: PathBuf,
    files: Vec<(PathBuf, FileRecord)>,
    /// False for random weights.
    has_weights: bool,
}

impl ModelFiles {
    /// Records the files of the weights, and the files that describe the weights.
    ///
    /// # Errors
    /// [`LoadError::Io`] if a file cannot be read; errors of [`ModelLocation::find`].
    pub fn look(path: &Path) -> Result<Self, LoadError> {
        let record = |file: PathBuf| -> Result<_, LoadError> {
            let recorded = FileRecord::of(&file)?;
            Ok((file, recorded))
        };
        let location = ModelLocation::find(path)?;
        let (files, has_weights) = match (location.weight_files(), location) {
            (Err(LoadError::Format { .. }), ModelLocation::Folder(dir)) => {
                (vec![dir.join(CONFIG)], false)
            }
            (files, _) => (files?, true),
        };
        let files = files.into_iter().map(record);
        Ok(Self {
            path: path.to_owned(),
            files: files.collect::<Result<_, LoadError>>()?,
            has_weights,
        })
    }

    /// Total bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, record)| record.bytes).sum()
    }

    /// The latest modification time of a file; `None` if the system has no such times.
    pub fn modified(&self) -> Option<SystemTime> {
        let times = self.files.iter().filter_map(|(_, record)| record.modified);
        times.max()
    }

    /// A hash of each file's size and first bytes, which differ between models. It does not depend on paths and times.
    pub fn digest(&self) -> [u8; 32] {
        let records = self.files.iter();
        let mut records: Vec<(u64, [u8; 32])> = records
            .map(|(_, record)| (record.bytes, record.header))
            .collect();
        records.sort_unstable();
        let mut hash = Sha256::new();
        for (bytes, header) in records {
            hash.update(bytes.to_le_bytes());
            hash.update(header);
        }
        hash.finalize().into()
    }

    /// Compares the files with the record.
    ///
    /// # Errors
    /// [`LoadError::Replaced`] names the first added, removed or replaced file and the difference. Otherwise as
    /// [`Self::look`]: a missing weight file does not count as replaced, as it may reappear.
    pub fn check(&self) -> Result<(), LoadError> {
        let replaced = |file: &Path, what: String| {
            let file = file.to_owned();
            Err(LoadError::Replaced { file, what })
        };
        let now = if self.has_weights {
            ModelLocation::find(&self.path)?.weight_files()?
        } else {
            vec![self.path.join(CONFIG)]
        };
        let known = || self.files.iter().map(|(file, _)| file);
        if !known().eq(&now) {
            let added = now.iter().find(|file| !known().any(|old| old == *file));
            if let Some(file) = added {
                let what = "was added after the model was loaded".to_owned();
                return replaced(file, what);
            }
            let removed = known().find(|old| !now.contains(*old));
            let what = "was loaded, but is no longer one of the model's files".to_owned();
            return replaced(removed.unwrap_or(&self.path), what);
        }
        for (file, then) in &self.files {
            if let Some(what) = then.differs_from(&FileRecord::of(file)?) {
                return replaced(file, format!("is not the file that was loaded: {what}"));
            }
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct FileRecord {
    bytes: u64,
    /// `None` if unsupported by the system.
    modified: Option<SystemTime>,
    inode: Option<u64>,
    header: [u8; 32],
}

impl FileRecord {
    fn of(path: &Path) -> Result<Self, LoadError> {
        let read = || -> io::Result<Self> {
            let file = File::open(path)?;
            let found = file.metadata()?;
            let mut header = Vec::new();
            file.take(HEADER_BYTES).read_to_end(&mut header)?;
            Ok(Self {
                bytes: found.len(),
                modified: found.modified().ok(),
                inode: inode(&found),
                header: Sha256::digest(&header).into(),
            })
        };
        read().map_err(|source| LoadError::Io {
            file: path.to_owned(),
            source,
        })
    }

    fn differs_from(&self, now: &Self) -> Option<String> {
        if self.bytes != now.bytes {
            return Some(format!("it has {} bytes, {} before", now.bytes, self.bytes));
        }
        if self.header != now.header {
            return Some("its first bytes changed".to_owned());
        }
        if self.inode != now.inode {
            return Some("another file was put in its place (its inode changed)".to_owned());
        }
        let was_written = self.modified != now.modified;
        was_written.then(|| {
            let (then, now) = (seconds(self.modified), seconds(now.modified));
            format!("its modification time is {now}, it was {then} (seconds since 1970)")
        })
    }
}

fn seconds(time: Option<SystemTime>) -> String {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or("an unknown time".to_owned(), |since| {
        format!("{:.3}", since.as_secs_f64())
    })
}

#[cfg(unix)]
fn inode(found: &std::fs::Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(found.ino())
}

#[cfg(not(unix))]
fn inode(_: &std::fs::Metadata) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn replacement_error(files: &ModelFiles) -> String {
        let error = files.check().expect_err("a file was replaced");
        assert!(matches!(error, LoadError::Replaced { .. }), "{error}");
        error.to_string()
    }

    fn put(folder: &Path, name: &str, text: &str) {
        fs::write(folder.join(name), text).expect("writable");
    }

    #[test]
    fn every_way_to_replace_a_file_is_detected() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let dir = folder.path();
        put(dir, "config.json", "{}");
        put(dir, "model.safetensors", "weights");
        let look = || ModelFiles::look(dir).expect("readable");
        let files = look();
        files.check().expect("nothing has changed");

        put(dir, "model.safetensors", "weigh");
        let shorter = replacement_error(&files);
        assert!(
            shorter.contains("model.safetensors is not the file"),
            "{shorter}"
        );
        assert!(shorter.contains("it has 5 bytes, 7 before"), "{shorter}");

        put(dir, "model.safetensors", "Weights");
        assert!(replacement_error(&files).contains("its first bytes changed"));

        let files = look();
        let file = File::options()
            .write(true)
            .open(dir.join("model.safetensors"));
        let file = file.expect("exists");
        file.set_modified(UNIX_EPOCH).expect("the file has times");
        assert!(replacement_error(&files).contains("its modification time is 0.000, it was "));

        let files = look();
        put(dir, "config.json", "[]");
        assert!(replacement_error(&files).contains("config.json"));

        let files = look();
        put(dir, "quantize_config.json", "{}");
        let added = replacement_error(&files);
        let expected = "quantize_config.json was added after the model was loaded. Start";
        assert!(added.contains(expected), "{added}");

        let files = look();
        fs::remove_file(dir.join("quantize_config.json")).expect("exists");
        let removed = replacement_error(&files);
        let expected = "quantize_config.json was loaded, but is no longer one of";
        assert!(removed.contains(expected), "{removed}");
    }

    #[cfg(unix)]
    #[test]
    fn a_copy_with_the_same_bytes_counts_as_replaced() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let dir = folder.path();
        put(dir, "config.json", "{}");
        put(dir, "model.safetensors", "weights");
        let files = ModelFiles::look(dir).expect("readable");
        put(dir, "copy", "weights");
        fs::rename(dir.join("copy"), dir.join("model.safetensors")).expect("same folder");
        assert!(replacement_error(&files).contains("its inode changed"));
    }

    #[test]
    fn without_weights_only_the_configuration_is_compared() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        put(folder.path(), "config.json", "{}");
        let files = ModelFiles::look(folder.path()).expect("readable");
        files.check().expect("nothing has changed");
        put(folder.path(), "config.json", "{ }");
        assert!(replacement_error(&files).contains("it has 3 bytes, 2 before"));
    }

    #[test]
    fn models_of_the_same_files_have_the_same_digest_anywhere() {
        let digest = |weights: &str| {
            let folder = tempfile::tempdir().expect("a folder can be made");
            put(folder.path(), "config.json", "{}");
            put(folder.path(), "model.safetensors", weights);
            let files = ModelFiles::look(folder.path()).expect("readable");
            assert_eq!(files.bytes(), 2 + weights.len() as u64);
            assert!(files.modified().is_some());
            files.digest()
        };
        assert_eq!(digest("weights"), digest("weights"));
        assert_ne!(digest("weights"), digest("Weights"));
        assert_ne!(digest("weights"), digest("weight"));
    }

    #[test]
    fn a_missing_file_does_not_count_as_replaced() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        put(folder.path(), "config.json", "{}");
        put(folder.path(), "model.safetensors", "weights");
        let files = ModelFiles::look(folder.path()).expect("readable");
        fs::remove_file(folder.path().join("model.safetensors")).expect("exists");
        let error = files.check().expect_err("the file is gone");
        assert!(matches!(error, LoadError::Format { .. }), "{error}");

        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("m.gguf");
        fs::write(&file, "GGUF").expect("writable");
        let files = ModelFiles::look(&file).expect("readable");
        fs::remove_file(&file).expect("exists");
        let error = files.check().expect_err("the file is gone");
        assert!(matches!(error, LoadError::Io { .. }), "{error}");
    }
}
