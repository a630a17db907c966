//! Downloads one file from the hub into the cache: resumes an earlier download, and verifies the hash.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::cache::RepoCache;
use super::client::{Client, RemoteFile, unreachable_host};
use super::digest::Hasher;
use super::error::HubError;
use super::settings::HubSettings;

const MAX_ATTEMPTS: u32 = 5;
const BUFFER_BYTES: usize = 1 << 20;
const RANGE_NOT_SATISFIABLE: u16 = 416;

pub(super) struct FileDownloader<'a> {
    pub settings: &'a HubSettings,
    pub client: &'a Client<'a>,
    pub cache: &'a RepoCache,
    pub commit: &'a str,
}

/// A file that is being written, and the hash of its contents.
struct Partial {
    file: File,
    bytes: u64,
    hasher: Hasher,
}

impl FileDownloader<'_> {
    pub fn missing_bytes(&self, file: &RemoteFile) -> u64 {
        if size_of_file(&self.cache.blob(&file.etag)) == Some(file.bytes) {
            return 0;
        }
        let present = size_of_file(&self.cache.partial(&file.etag)).unwrap_or(0);
        file.bytes.saturating_sub(present)
    }

    /// Makes sure that the snapshot has the file. `progress` is called with the number of bytes present so far.
    pub fn ensure(&self, file: &RemoteFile, progress: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let blob = self.cache.blob(&file.etag);
        let is_here = || size_of_file(&blob) == Some(file.bytes);
        let is_linked = || self.cache.is_linked(self.commit, &file.path, &file.etag);
        // A complete file is used without the lock, as the cache may be read-only.
        if !is_here() || !is_linked() {
            let _lock = self.cache.lock(&file.etag)?;
            if !is_here() {
                self.fetch(file, progress)?;
            }
            self.cache.link(self.commit, &file.path, &file.etag)?;
        }
        progress(file.bytes);
        Ok(())
    }

    fn fetch(&self, file: &RemoteFile, progress: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let mut fetch = Fetch {
            downloader: self,
            file,
            path: self.cache.partial(&file.etag),
            progress,
        };
        let resumed = size_of_file(&fetch.path).is_some_and(|bytes| bytes > 0);
        match fetch.once() {
            // The resumed part may have been corrupt: downloads the whole file.
            Err(HubError::Checksum { .. }) if resumed => fetch.once(),
            Err(HubError::Status {
                status: RANGE_NOT_SATISFIABLE,
                ..
            }) => {
                fetch.discard()?;
                fetch.once()
            }
            fetched => fetched,
        }
    }
}

struct Fetch<'a> {
    downloader: &'a FileDownloader<'a>,
    file: &'a RemoteFile,
    /// Path of the incomplete file.
    path: PathBuf,
    progress: &'a mut dyn FnMut(u64),
}

impl Fetch<'_> {
    /// Downloads the missing part and verifies the hash, then renames the file, or removes it if it is corrupt.
    fn once(&mut self) -> Result<(), HubError> {
        let file = self.file;
        let mut partial = Partial::open(&self.path, file).map_err(self.io())?;
        (self.progress)(partial.bytes);
        self.complete(&mut partial)?;
        if let Some((algorithm, got)) = partial.hasher.finish() {
            if got != file.etag.as_str() {
                self.discard()?;
                return Err(HubError::Checksum {
                    file: file.path.clone(),
                    algorithm,
                    got,
                    expected: file.etag.as_str().to_owned(),
                });
            }
        } else {
            tracing::warn!(
                file = file.path,
                "the hub gave no hash for this file, checking only its size"
            );
        }
        // Syncs before the rename, so that the final name has complete contents even after a power cut.
        let blob = self.downloader.cache.blob(&file.etag);
        let named = partial
            .file
            .sync_all()
            .and_then(|()| fs::rename(&self.path, blob));
        named.map_err(self.io())
    }

    /// Resumes after interruptions until all bytes are present.
    fn complete(&mut self, partial: &mut Partial) -> Result<(), HubError> {
        let file = self.file;
        let mut attempts = 0;
        let mut most_bytes = partial.bytes;
        while partial.bytes < file.bytes {
            let outcome = self.append(partial);
            // A host that restarts from the first byte each time makes no progress.
            if partial.bytes > most_bytes {
                most_bytes = partial.bytes;
                attempts = 0;
            }
            attempts += 1;
            let reason = match outcome {
                Ok(()) if partial.bytes >= file.bytes => break,
                Ok(()) => "the response ended early".to_owned(),
                Err(error) if error.is_transient() => error.to_string(),
                Err(error) => return Err(error),
            };
            if attempts >= MAX_ATTEMPTS {
                return Err(HubError::Truncated {
                    file: file.path.clone(),
                    bytes: file.bytes,
                    got_bytes: partial.bytes,
                    attempts,
                    reason,
                });
            }
            tracing::warn!(
                file = file.path,
                bytes = partial.bytes,
                reason,
                "the download was interrupted, resuming"
            );
            wait(self.downloader.settings, attempts);
        }
        Ok(())
    }

    fn append(&mut self, partial: &mut Partial) -> Result<(), HubError> {
        let file = self.file;
        let FileDownloader {
            settings,
            client,
            commit,
            ..
        } = self.downloader;
        let part = client.part(commit, file, partial.bytes)?;
        if part.from != partial.bytes {
            // The host ignores range requests, and sends the file from its first byte.
            partial.restart(file).map_err(self.io())?;
        }
        // Reads at most one byte more than expected, to detect a host that sends another file.
        let limit = (file.bytes - partial.bytes).saturating_add(1);
        let body = part.body.into_with_config().limit(u64::MAX);
        let mut body = body.reader().take(limit);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => &buffer[..read],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(unreachable_host(&settings.endpoint, &error.to_string()));
                }
            };
            partial.append(read).map_err(self.io())?;
            if partial.bytes > file.bytes {
                self.discard()?;
                return Err(HubError::Protocol {
                    host: settings.endpoint.clone(),
                    what: file.path.clone(),
                    reason: format!("received more than the {} bytes of the file", file.bytes),
                });
            }
            (self.progress)(partial.bytes);
        }
    }

    fn discard(&self) -> Result<(), HubError> {
        fs::remove_file(&self.path).map_err(self.io())
    }

    fn io(&self) -> impl FnOnce(io::Error) -> HubError + use<> {
        HubError::io(self.path.clone())
    }
}

impl Partial {
    fn open(path: &Path, remote: &RemoteFile) -> io::Result<Self> {
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        let mut partial = Self {
            bytes: 0,
            hasher: Hasher::new(&remote.etag, remote.bytes),
            file: file.try_clone()?,
        };
        if file.metadata()?.len() > remote.bytes {
            partial.restart(remote)?;
            return Ok(partial);
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(partial);
            }
            partial.hasher.update(&buffer[..read]);
            partial.bytes += read as u64;
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self, remote: &RemoteFile) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.bytes = 0;
        self.hasher = Hasher::new(&remote.etag, remote.bytes);
        Ok(())
    }
}

/// Waits before the next attempt, with exponential backoff; the first retry comes at once.
pub(super) fn wait(settings: &HubSettings, attempts: u32) {
    if attempts > 1 {
        std::thread::sleep(settings.first_wait * 2u32.pow(attempts.min(10) - 2));
    }
}

fn size_of_file(path: &Path) -> Option<u64> {
    let metadata = fs::metadata(path).ok()?;
    metadata.is_file().then_some(metadata.len())
}
