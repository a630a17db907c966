//! A request of the message log with the fields that an entry's variant has next to its [`SubmitEntry`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Entry, SubmitEntry};
use souffleur_request::CancelFlag;
use souffleur_state::pooling::Pooling;
use souffleur_state::scheduler::submission::Submission;

/// A submitted request, from any of its entry variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    pub request: Box<SubmitEntry>,
    pub opening: Arc<[u32]>,
    pub anchors: Arc<[u32]>,
    pub pooling: Option<Pooling>,
    pub bypasses_cache: bool,
    pub has_long_rope: bool,
}

impl From<&Submission> for Submitted {
    fn from(request: &Submission) -> Self {
        Self {
            request: Box::new(SubmitEntry::from(request)),
            opening: request.opening.clone(),
            anchors: request.anchors.clone(),
            pooling: request.pooling,
            bypasses_cache: request.bypasses_cache,
            has_long_rope: request.namespace.has_long_rotation(),
        }
    }
}

impl Submitted {
    /// Converts an entry that submits a request; returns any other entry as `Err`.
    pub(crate) fn of(entry: Entry) -> Result<Self, Entry> {
        let plain = |request| Self {
            request,
            opening: Arc::default(),
            anchors: Arc::default(),
            pooling: None,
            bypasses_cache: false,
            has_long_rope: false,
        };
        Ok(match entry {
            Entry::Submit(request) => plain(request),
            Entry::SubmitOpened(request, opening) => Self {
                opening,
                ..plain(request)
            },
            Entry::SubmitAnchored {
                request,
                opening,
                anchors,
            } => Self {
                opening,
                anchors,
                ..plain(request)
            },
            Entry::SubmitBypassing {
                request,
                opening,
                anchors,
            } => Self {
                opening,
                anchors,
                bypasses_cache: true,
                ..plain(request)
            },
            Entry::SubmitPooling {
                request,
                pooling,
                bypasses_cache,
                anchors,
            } => Self {
                anchors,
                pooling: Some(pooling),
                bypasses_cache,
                ..plain(request)
            },
            Entry::SubmitLong {
                request,
                opening,
                anchors,
                pooling,
                bypasses_cache,
            } => Self {
                request,
                opening,
                anchors,
                pooling,
                bypasses_cache,
                has_long_rope: true,
            },
            other => return Err(other),
        })
    }

    /// Converts back to a request with this cancel flag.
    ///
    /// # Errors
    /// The entry is invalid.
    pub(crate) fn submission(self, cancel: CancelFlag) -> Result<Submission, String> {
        let Self {
            request,
            opening,
            anchors,
            pooling,
            bypasses_cache,
            has_long_rope,
        } = self;
        let submission = request.submission(opening, anchors, cancel)?;
        Ok(Submission {
            pooling,
            bypasses_cache,
            namespace: submission.namespace.with_long_rotation(has_long_rope),
            ..submission
        })
    }
}
