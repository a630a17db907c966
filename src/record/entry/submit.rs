//! The message log's form of a request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::sampling::{LogprobWish, SamplingParams};
use souffleur_state::scheduler::submission::Submission;

/// The log's form of a [`Namespace`]; the entry's variant shows whether the sequence uses long-context RoPE factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceEntry {
    extra_key: Option<String>,
    cache_salt: Option<String>,
}

impl From<&Namespace> for NamespaceEntry {
    fn from(namespace: &Namespace) -> Self {
        Self {
            extra_key: namespace.extra_key().map(str::to_owned),
            cache_salt: namespace.cache_salt().map(str::to_owned),
        }
    }
}

impl From<&NamespaceEntry> for Namespace {
    fn from(entry: &NamespaceEntry) -> Self {
        Self::new(entry.extra_key.as_deref(), entry.cache_salt.as_deref())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubmitEntry {
    pub rid: RequestId,
    pub intake: IntakeId,
    pub prompt: Arc<[u32]>,
    pub namespace: NamespaceEntry,
    /// The sampling parameters as JSON, so that a new parameter that the states ignore needs no new format.
    pub sampling_json: String,
    pub logprobs: Option<LogprobWish>,
    pub priority: Option<i64>,
    /// By the scheduler's clock.
    pub submitted_s: f64,
    pub timeouts: RequestTimeouts,
}

impl From<&Submission> for SubmitEntry {
    fn from(request: &Submission) -> Self {
        let Submission {
            rid,
            intake,
            prompt,
            namespace,
            sampling,
            logprobs,
            // In the entry's variant, see [`Entry`](super::Entry).
            opening: _,
            anchors: _,
            // Its effect appears in the tokens and verdicts of the steps.
            grammar: _,
            // Only the executor reads them.
            vectors: _,
            images: _,
            // In the entry's variant.
            bypasses_cache: _,
            pooling: _,
            priority,
            // Written as [`Entry::CancelsSeen`] when the state reads it.
            cancel: _,
            submitted_s,
            timeouts,
            draft_texts: _,
        } = request;
        Self {
            rid: rid.clone(),
            intake: *intake,
            prompt: prompt.clone(),
            namespace: namespace.into(),
            sampling_json: serde_json::to_string(sampling.as_ref()).unwrap_or_default(),
            logprobs: logprobs.as_deref().cloned(),
            priority: *priority,
            submitted_s: *submitted_s,
            timeouts: *timeouts,
        }
    }
}

impl SubmitEntry {
    /// Converts back to a request, with a cancel flag that is not raised.
    ///
    /// # Errors
    /// The entry is invalid.
    pub fn submission(
        self,
        opening: Arc<[u32]>,
        anchors: Arc<[u32]>,
        cancel: CancelFlag,
    ) -> Result<Submission, String> {
        if self.prompt.is_empty() {
            return Err(format!("request {} has an empty prompt", self.rid));
        }
        let rid = &self.rid;
        let sampling: SamplingParams = serde_json::from_str(&self.sampling_json)
            .map_err(|error| format!("invalid sampling parameters of request {rid}: {error}"))?;
        Ok(Submission {
            rid: self.rid,
            intake: self.intake,
            prompt: self.prompt,
            namespace: (&self.namespace).into(),
            sampling: Arc::new(sampling),
            logprobs: self.logprobs.map(Arc::new),
            opening,
            anchors,
            grammar: None,
            vectors: None,
            images: None,
            bypasses_cache: false,
            pooling: None,
            priority: self.priority,
            cancel,
            submitted_s: self.submitted_s,
            timeouts: self.timeouts,
            draft_texts: Default::default(),
        })
    }
}
