//! Sends a model's tokenizer files, as a ZIP archive, to gateways (smg) that render and encode prompts themselves.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::{fs, io};

use futures_util::stream;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tonic::Status;

use super::answer::Responses;
use super::proto::scheduler::GetTokenizerChunk;
use super::zip::Archive;

const FILES: [&str; 11] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tiktoken.model",
    "chat_template.json",
    "preprocessor_config.json",
];
/// Name endings of further files that smg reads.
const ENDINGS: [&str; 3] = [".tiktoken", ".jinja", ".model"];
/// The file that a gateway needs to encode prompts for this engine.
const NEEDED: &str = "tokenizer.json";
/// The maximum number of files in an archive that smg accepts.
const MAX_FILES: usize = 50;
/// Maximum bytes of all files; smg accepts 200 MiB.
const MAX_BYTES: u64 = 128 << 20;

/// Archive bytes in one message.
const CHUNK_BYTES: usize = 64 << 10;

/// Sends a tokenizer's archive. Concurrent clients share one archive, so a client that stops reading blocks no others.
#[derive(Default)]
pub(super) struct Bundles {
    /// The archive that is being sent to clients. The lock is held while an archive is made.
    current: Arc<Mutex<Weak<Bundle>>>,
}

impl Bundles {
    /// Streams the archive of the tokenizer in `folder` in chunks. The last chunk has the archive's hash.
    pub(super) async fn stream(
        &self,
        folder: PathBuf,
    ) -> Result<Responses<GetTokenizerChunk>, Status> {
        let bundle = self.bundle(folder).await?;
        let chunks = stream::unfold((bundle, 0), |(bundle, start)| async move {
            let (chunk, end) = bundle.chunk(start)?;
            Some((Ok::<_, Status>(chunk), (bundle, end)))
        });
        Ok(Box::pin(chunks))
    }

    async fn bundle(&self, folder: PathBuf) -> Result<Arc<Bundle>, Status> {
        let mut current = self.current.clone().lock_owned().await;
        if let Some(bundle) = current.upgrade().filter(|bundle| bundle.folder == folder) {
            return Ok(bundle);
        }
        // The task holds the lock: if this client disconnects, the next client waits, and no second archive is made.
        let made = spawn_blocking(move || {
            let bundle = Arc::new(Bundle::of(folder)?);
            *current = Arc::downgrade(&bundle);
            Ok(bundle)
        });
        let made: Result<_, BundleError> = made.await.map_err(|_| {
            Status::unavailable("the server stopped while it read the tokenizer: try again later")
        })?;
        made.map_err(refused)
    }
}

#[derive(Debug)]
struct Bundle {
    folder: PathBuf,
    bytes: Vec<u8>,
    sha256: String,
}

impl Bundle {
    fn of(folder: PathBuf) -> Result<Self, BundleError> {
        let bytes = archive(&folder)?;
        let sha256 = hex(&Sha256::digest(&bytes));
        Ok(Self {
            folder,
            bytes,
            sha256,
        })
    }

    /// The chunk that begins at `start`, and its end; `None` after the last chunk.
    fn chunk(&self, start: usize) -> Option<(GetTokenizerChunk, usize)> {
        let rest = self.bytes.get(start..).filter(|rest| !rest.is_empty())?;
        let data = rest[..rest.len().min(CHUNK_BYTES)].to_vec();
        let end = start + data.len();
        let sha256 = if end == self.bytes.len() {
            self.sha256.clone()
        } else {
            String::new()
        };
        Some((GetTokenizerChunk { data, sha256 }, end))
    }
}

fn refused(error: BundleError) -> Status {
    let text = error.to_string();
    match error {
        BundleError::NoTokenizer | BundleError::TooLarge { .. } => {
            Status::failed_precondition(text)
        }
        BundleError::Io(_) => Status::internal(text),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

#[derive(Debug, thiserror::Error)]
enum BundleError {
    /// The tokenizer is not a file in the model's folder, for example because the model is a GGUF file.
    #[error(
        "the model's folder has no {}: configure a tokenizer in the gateway",
        NEEDED
    )]
    NoTokenizer,
    #[error(
        "the tokenizer has {n_files} files with {n_bytes} bytes in total, limits are {} files and {} bytes: configure \
         a tokenizer in the gateway",
        MAX_FILES,
        MAX_BYTES
    )]
    TooLarge { n_files: usize, n_bytes: u64 },
    #[error("the tokenizer cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Archives the tokenizer's files; blocks. Fails if the tokenizer is missing or too large, or a file cannot be read.
fn archive(folder: &Path) -> Result<Vec<u8>, BundleError> {
    if !folder.join(NEEDED).is_file() {
        return Err(BundleError::NoTokenizer);
    }
    let names = names(folder)?;
    let mut n_bytes = 0;
    for name in &names {
        n_bytes += fs::metadata(folder.join(name))?.len();
    }
    if names.len() > MAX_FILES || n_bytes > MAX_BYTES {
        let n_files = names.len();
        return Err(BundleError::TooLarge { n_files, n_bytes });
    }
    let mut archive = Archive::default();
    for name in &names {
        archive.add(name, &fs::read(folder.join(name))?);
    }
    Ok(archive.finish())
}

/// The names of the tokenizer's files, sorted.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let is_known =
            FILES.contains(&name.as_str()) || ENDINGS.iter().any(|ending| name.ends_with(ending));
        // Symbolic links are included: the files of a downloaded model are links to another folder.
        if is_known && entry.path().is_file() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = TempDir::new().expect("a folder can be made");
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("the file can be written");
        }
        folder
    }

    #[test]
    fn an_archive_has_only_the_files_that_a_gateway_reads() {
        let folder = folder(&[
            ("tokenizer.json", "{}"),
            ("model.safetensors", "weights"),
            ("chat_template.jinja", "{{ x }}"),
            (".env", "secret"),
        ]);
        let mut expected = Archive::default();
        expected.add("chat_template.jinja", b"{{ x }}");
        expected.add("tokenizer.json", b"{}");
        let archive = archive(folder.path()).expect("it has a tokenizer");
        assert_eq!(archive, expected.finish());
    }

    #[test]
    fn models_without_a_tokenizer_or_with_too_many_files_are_refused() {
        let none = archive(folder(&[("config.json", "{}")]).path());
        let error = none.expect_err("the folder has no tokenizer").to_string();
        assert!(error.contains("no tokenizer.json"), "{error}");
        let many = folder(&[("tokenizer.json", "{}")]);
        for n in 0..MAX_FILES {
            fs::write(many.path().join(format!("{n}.jinja")), "").expect("the file can be written");
        }
        let error = archive(many.path())
            .expect_err("the folder has too many files")
            .to_string();
        assert!(error.contains("51 files with 2 bytes in total"), "{error}");
    }

    #[tokio::test]
    async fn clients_that_stop_reading_do_not_block_others() {
        let text = "x".repeat(2 * CHUNK_BYTES);
        let folder = folder(&[("tokenizer.json", &text)]);
        let path = folder.path().to_owned();
        let bundles = Bundles::default();
        let mut stopped = Vec::new();
        for _ in 0..10 {
            let mut chunks = bundles.stream(path.clone()).await.expect("a tokenizer");
            assert!(chunks.next().await.is_some());
            stopped.push(chunks);
        }
        let chunks = bundles.stream(path.clone()).await.expect("a tokenizer");
        let chunks: Vec<_> = chunks.collect().await;
        let chunks: Vec<_> = chunks
            .into_iter()
            .map(|chunk| chunk.expect("no chunk is an error"))
            .collect();
        let bytes = chunks.iter().flat_map(|chunk| chunk.data.clone());
        let expected = archive(&path).expect("a tokenizer");
        assert_eq!(bytes.collect::<Vec<_>>(), expected);
        let hashes: Vec<_> = chunks.iter().map(|chunk| chunk.sha256.as_str()).collect();
        let of_all = hex(&Sha256::digest(&expected));
        assert_eq!(hashes, ["", "", of_all.as_str()]);
        // All clients share one archive, which is freed when the last client is dropped.
        let current = || {
            bundles
                .current
                .lock()
                .now_or_never()
                .expect("the lock is free")
                .clone()
        };
        assert_eq!(current().strong_count(), stopped.len());
        drop(stopped);
        assert_eq!(current().strong_count(), 0);
    }
}
