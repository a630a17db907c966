//! The cache folder of a repository, in the layout of `huggingface_hub`, so that both programs can share it.
//!
//! ```text
//! models--owner--name/refs/main               the last known commit of the branch
//! models--owner--name/blobs/<etag>            contents
//! models--owner--name/blobs/<etag>.incomplete the part downloaded so far
//! models--owner--name/snapshots/<commit>/...  links to contents, by the names in the repository
//! .locks/models--owner--name/<etag>.lock      held by the downloader of the blob
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use super::digest::Etag;
use super::error::HubError;
use super::id::RepoId;

const MAX_DEPTH: usize = 8;

pub(super) struct RepoCache {
    repo: CacheRepo,
    folder: PathBuf,
    locks: PathBuf,
    revision: String,
}

impl RepoCache {
    pub fn new(cache: &Path, repo: &RepoId, revision: &str) -> Self {
        let named = Repo::with_revision(
            repo.as_str().to_owned(),
            RepoType::Model,
            revision.to_owned(),
        );
        let name = named.folder_name();
        Self {
            folder: cache.join(&name),
            locks: cache.join(".locks").join(name),
            repo: Cache::new(cache.to_owned()).repo(named),
            revision: revision.to_owned(),
        }
    }

    /// The commit that the revision was at when it was last looked up.
    pub fn known_commit(&self) -> Option<String> {
        if is_commit(&self.revision) {
            return Some(self.revision.clone());
        }
        let commit = fs::read_to_string(self.reference()).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    pub fn save_commit(&self, commit: &str) -> Result<(), HubError> {
        // An unchanged reference is not written, as the cache may be read-only.
        if self.known_commit().as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.reference();
        let folder = path.parent().unwrap_or(&self.folder);
        let new = folder.join(format!(".ref-{}", uuid::Uuid::new_v4().simple()));
        let put = || -> io::Result<()> {
            fs::create_dir_all(folder)?;
            fs::write(&new, commit)?;
            fs::rename(&new, &path)
        };
        let saved = put().inspect_err(|_| drop(fs::remove_file(&new)));
        saved.map_err(HubError::io(&path))
    }

    fn reference(&self) -> PathBuf {
        self.folder.join("refs").join(&self.revision)
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.pointer_path(commit)
    }

    pub fn files_of(&self, commit: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        list(&self.snapshot(commit), "", MAX_DEPTH, &mut found);
        found
    }

    pub fn blob(&self, etag: &Etag) -> PathBuf {
        self.folder.join("blobs").join(etag.as_str())
    }

    pub fn partial(&self, etag: &Etag) -> PathBuf {
        let name = format!("{}.incomplete", etag.as_str());
        self.folder.join("blobs").join(name)
    }

    /// Waits until no other process downloads the blob. Dropping the file releases the lock.
    pub fn lock(&self, etag: &Etag) -> Result<File, HubError> {
        let path = self.locks.join(format!("{}.lock", etag.as_str()));
        let lock = || -> io::Result<File> {
            fs::create_dir_all(&self.locks)?;
            fs::create_dir_all(self.folder.join("blobs"))?;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)?;
            if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
                tracing::info!(
                    blob = etag.as_str(),
                    lock = %path.display(),
                    "another process is downloading this file, waiting"
                );
                file.lock()?;
            }
            Ok(file)
        };
        lock().map_err(HubError::io(&path))
    }

    /// True if the snapshot's `path` is a link to the blob.
    pub fn is_linked(&self, commit: &str, path: &str, etag: &Etag) -> bool {
        is_same_file(&self.snapshot(commit).join(path), &self.blob(etag))
    }

    pub fn link(&self, commit: &str, path: &str, etag: &Etag) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(path);
        let blob = self.blob(etag);
        let put = || -> io::Result<()> {
            let parent = link.parent().unwrap_or(&self.folder);
            fs::create_dir_all(parent)?;
            if is_same_file(&link, &blob) {
                return Ok(());
            }
            // Removes a stale entry: a link to a deleted blob, or a copy of another blob.
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => symlink_or_copy(&blob, path, &link),
            }
        };
        put().map_err(HubError::io(&link))
    }
}

/// True for a full commit hash, unlike a branch or a tag.
pub(super) fn is_commit(revision: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    revision.len() == 40 && revision.bytes().all(is_hex)
}

fn list(folder: &Path, prefix: &str, depth: usize, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        if path.is_file() {
            found.insert(name);
        } else if depth > 0 && path.is_dir() {
            list(&path, &format!("{name}/"), depth - 1, found);
        }
    }
}

fn is_same_file(link: &Path, blob: &Path) -> bool {
    match (link.canonicalize(), blob.canonicalize()) {
        (Ok(link), Ok(blob)) => link == blob,
        _ => false,
    }
}

#[cfg(unix)]
fn symlink_or_copy(blob: &Path, path: &str, link: &Path) -> io::Result<()> {
    // The link is relative, so that the whole cache can be moved: up from snapshots/<commit>/<path>, then to the blob.
    let up = "../".repeat(path.matches('/').count() + 2);
    let name = blob.file_name().unwrap_or_default();
    let linked = std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(name), link);
    match linked {
        // Another process made the link first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(not(unix))]
fn symlink_or_copy(blob: &Path, _: &str, link: &Path) -> io::Result<()> {
    fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(drop))
}
