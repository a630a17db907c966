//! Why a model of the hub is not available, and the remedy.

use std::io;
use std::path::PathBuf;

use super::id::RepoId;

/// Why a model of the hub could not be downloaded. No text holds the token or the query of a signed address.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A setting that cannot be used.
    #[error("{name} is {value:?}, {reason}")]
    Setting {
        /// The flag or variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        reason: String,
    },
    /// The token has characters that no header carries. It is not shown.
    #[error("invalid Hugging Face token in {place}: copy it again")]
    BadToken {
        /// The variable or file.
        place: String,
    },
    /// The repository's owner lets only those in who accepted its conditions.
    #[error(
        "{repo} is gated: accept its conditions at {endpoint}/{repo}, and {}", token_advice(*has_token)
    )]
    Gated {
        /// The repository.
        repo: RepoId,
        /// Where it is.
        endpoint: String,
        /// A token was sent.
        has_token: bool,
    },
    /// The hub took the token for wrong, or wants one.
    #[error(
        "{endpoint} does not let this program read {repo}: if it is private, {}; else check its name (there is no \
         folder {repo} here either)",
        token_advice(*has_token)
    )]
    NoAccess {
        /// The repository.
        repo: RepoId,
        /// Where it is.
        endpoint: String,
        /// A token was sent.
        has_token: bool,
    },
    /// There is no such repository.
    #[error(
        "there is no model {repo} at {endpoint}, and no folder with this name here: check its name; a private one \
         needs HF_TOKEN"
    )]
    NoRepository {
        /// The repository.
        repo: RepoId,
        /// Where it was looked for.
        endpoint: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no revision {revision:?}: --revision takes a branch, a tag or a commit")]
    NoRevision {
        /// The repository.
        repo: RepoId,
        /// The requested branch, tag or commit.
        revision: String,
    },
    /// The repository lacks needed files.
    #[error("{repo} {reason}")]
    Unsuitable {
        /// The repository.
        repo: RepoId,
        /// The missing files, and the present ones.
        reason: String,
    },
    /// Requests to the hub are off, and the cache does not have the model.
    #[error("{repo} at revision {revision:?} is not complete in {}, and {why}", cache.display())]
    NotCached {
        /// The repository.
        repo: RepoId,
        /// The requested branch, tag or commit.
        revision: String,
        /// The folder of the cache.
        cache: PathBuf,
        /// Why it is not downloaded, and the remedy.
        why: String,
    },
    /// No answer came, or it broke off; trying again may help.
    #[error("{host}: {reason}")]
    Unreachable {
        /// The host that was asked.
        host: String,
        /// The failure.
        reason: String,
    },
    /// An answer with a status that is not explained better.
    #[error("{host} answered {status} for {what}")]
    Status {
        /// The host that was asked.
        host: String,
        /// The code.
        status: u16,
        /// The requested file or listing.
        what: String,
    },
    /// An answer that is not the hub's.
    #[error("{host} sent an invalid answer for {what}: {reason}")]
    Protocol {
        /// The host that was asked.
        host: String,
        /// The requested file or listing.
        what: String,
        /// The part of it that is wrong.
        reason: String,
    },
    /// Fewer bytes came than the file has, again and again.
    #[error(
        "{file}: only {got_bytes} of {bytes} bytes came in {attempts} attempts: start again later, the download resumes"
    )]
    Truncated {
        /// The file in the repository.
        file: String,
        /// Its size.
        bytes: u64,
        /// How much is here.
        got_bytes: u64,
        /// Number of attempts without an answer.
        attempts: u32,
    },
    /// The bytes that came are not those of the file, by the hub's hash.
    #[error(
        "{file}: its {algorithm} is {got}, the hub says {expected}: the download is corrupt and was deleted; try \
         again, and if that fails too, look for a proxy or mirror that changes files"
    )]
    Checksum {
        /// The file in the repository.
        file: String,
        /// How it was computed.
        algorithm: &'static str,
        /// The hash of the bytes that came.
        got: String,
        /// The hash that the hub gives.
        expected: String,
    },
    /// The disk is too small.
    #[error(
        "the download needs {needed_bytes} bytes in {}, which has {free_bytes} bytes free: free some space, or set \
         HF_HOME to a folder on a larger disk",
        folder.display()
    )]
    NoSpace {
        /// The folder of the cache.
        folder: PathBuf,
        /// Bytes of the model that are missing.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {source}{}", file.display(), disk_advice(source))]
    Io {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl HubError {
    /// True if the same request may be answered a little later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    /// True if the hub did not list the revision: a model in the cache may still be the requested one, as for
    /// `huggingface_hub`.
    pub(super) fn leaves_open(&self) -> bool {
        !matches!(self, Self::NoRevision { .. })
    }

    /// True if the request is unusable without any answer of the hub.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Setting { .. } | Self::BadToken { .. })
    }

    pub(super) fn io(file: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |source| Self::Io { file, source }
    }
}

fn token_advice(has_token: bool) -> &'static str {
    if has_token {
        "use a token (HF_TOKEN) of an account that may read it, the one that was sent may not"
    } else {
        "set HF_TOKEN to a token of an account that may read it, or save one with `hf auth login`: none was sent"
    }
}

fn disk_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space, or set HF_HOME to a folder on a larger disk; the download resumes there"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": set HF_HOME to a writable folder"
        }
        _ => "",
    }
}
