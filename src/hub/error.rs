//! Errors of downloads from the hub. Messages name the remedy if there is one.

use std::io;
use std::path::PathBuf;

use super::id::{HubModel, RepoId};

/// No message contains the token, or the query of a signed URL.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("{name} is {value:?}, {reason}")]
    Setting {
        name: &'static str,
        value: String,
        /// The rule that the value breaks.
        reason: String,
    },
    /// The token has characters that an HTTP header cannot carry. The message does not show it.
    #[error(
        "invalid Hugging Face token in {place}, as it has a space, a line break or a non-ASCII character: copy it again"
    )]
    BadToken { place: String },
    /// The repository is gated: only accounts that accepted its conditions have access.
    #[error(
        "{repo} is gated: accept its conditions at {endpoint}/{repo}, and {}", token_advice(*has_token)
    )]
    Gated {
        repo: RepoId,
        endpoint: String,
        has_token: bool,
    },
    /// The hub refuses the token, or requires one.
    #[error(
        "{endpoint} has no model {repo}, or denies access to it: check the name (there is no local folder of this \
        name either); if it is private, {}",
        token_advice(*has_token)
    )]
    NoAccess {
        repo: RepoId,
        endpoint: String,
        has_token: bool,
    },
    #[error(
        "there is no model {repo} at {endpoint}, and no local folder with this name: check the name; if it is private, \
        {}",
        token_advice(*has_token)
    )]
    NoRepository {
        repo: RepoId,
        endpoint: String,
        has_token: bool,
    },
    #[error("{repo} has no revision {revision:?}: --revision takes a branch, a tag or a commit")]
    NoRevision { repo: RepoId, revision: String },
    #[error("{repo} {reason}")]
    Unsuitable { repo: RepoId, reason: String },
    /// The hub is not used or not available, and the cache does not have the model.
    #[error("{} has no complete copy of {repo} at revision {revision:?}, and {why}", cache.display())]
    NotCached {
        repo: RepoId,
        revision: String,
        cache: PathBuf,
        why: String,
    },
    /// The model that is to be deleted is not in the cache.
    #[error("{model} is not in {}: `souffleur list` shows the downloaded models", cache.display())]
    Absent { model: HubModel, cache: PathBuf },
    #[error(
        "another process is downloading files of {repo}: stop that process, or wait until it has finished"
    )]
    Downloading { repo: RepoId },
    /// The host sent no response, or an incomplete one; a retry may succeed.
    #[error("the request to {host} failed: {reason}")]
    Unreachable { host: String, reason: String },
    /// A response with a status that has no variant here.
    #[error("{host} answered {status} for {what}")]
    Status {
        host: String,
        status: u16,
        what: String,
    },
    #[error(
        "{host} sent an invalid answer for {what}: {reason}; check HF_ENDPOINT, and look for a proxy that changes \
         answers"
    )]
    Protocol {
        host: String,
        what: String,
        reason: String,
    },
    /// Each attempt failed, or received fewer bytes than the file has.
    #[error(
        "{file}: received only {got_bytes} of {bytes} bytes in {attempts} attempts ({reason}): start again later, the \
         download resumes"
    )]
    Truncated {
        file: String,
        bytes: u64,
        got_bytes: u64,
        attempts: u32,
        /// The last attempt's error.
        reason: String,
    },
    #[error(
        "{file}: its {algorithm} is {got}, the hub says {expected}: the download is corrupt and was deleted; try \
         again, and if that fails too, look for a proxy or mirror that changes files"
    )]
    Checksum {
        file: String,
        algorithm: &'static str,
        got: String,
        expected: String,
    },
    /// The disk has too little free space.
    #[error(
        "the download needs {needed_bytes} bytes in {}, which has {free_bytes} bytes free: free some space, or set \
         HF_HUB_CACHE to a folder on a larger disk",
        folder.display()
    )]
    NoSpace {
        folder: PathBuf,
        needed_bytes: u64,
        free_bytes: u64,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {source}{}", file.display(), disk_advice(source))]
    Io { file: PathBuf, source: io::Error },
}

impl HubError {
    /// True if a retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    /// True if a cached model may be used instead, as in `huggingface_hub`: after every error but an unknown revision.
    pub(super) fn allows_cached_model(&self) -> bool {
        !matches!(self, Self::NoRevision { .. })
    }

    /// True for errors in the configuration, which no response of the hub can resolve.
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
        "set HF_TOKEN to a token of an account that may read it (the token that was sent has no access)"
    } else {
        "set HF_TOKEN to a token of an account that may read it, or run `hf auth login` (no token was sent)"
    }
}

fn disk_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space and start again to resume, or set HF_HUB_CACHE to a folder on a larger disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": set HF_HUB_CACHE to a writable folder"
        }
        _ => "",
    }
}
