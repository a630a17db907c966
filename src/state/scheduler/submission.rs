//! A request's submission to the scheduler, with its timeouts and cancel flag.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cache::namespace::Namespace;
use crate::grammar::Grammar;
use crate::pooling::Pooling;
use crate::prompt_images::PromptImages;
use crate::prompt_vectors::PromptVectors;
use crate::sampling::{LogprobWish, SamplingParams};
use crate::speculation::DraftText;
use souffleur_base::error::RequestError;
use souffleur_base::ids::{IntakeId, RequestId};

/// A validated request from the tokenizer, with its prompt as tokens.
#[derive(Clone, Debug)]
#[repr(C)] // The fields that each step reads come first.
pub struct Submission {
    pub intake: IntakeId,
    pub logprobs: Option<Arc<LogprobWish>>,
    /// The prompt; not empty, shorter than the context.
    pub prompt: Arc<[u32]>,
    pub rid: RequestId,
    pub namespace: Namespace,
    /// Validated, with a seed, and `max_new_tokens` clipped to the context and the pool.
    pub sampling: Arc<SamplingParams>,
    /// The tokens with which the output must begin, fewer than the output limit; usually none. The prefill computes
    /// them with the prompt, and they count as output.
    pub opening: Arc<[u32]>,
    /// Prompt positions at which to keep recurrent states and window pages, ascending: ends of turns, where prompts are
    /// likely to diverge. A last entry `prompt.len() + 1` requests a state before the last token (parallel outputs).
    pub anchors: Arc<[u32]>,
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Prompt embeddings (`input_embeds`), for the executor. `prompt` has a placeholder token for each of them.
    pub vectors: Option<Arc<PromptVectors>>,
    /// The images of the prompt, for the executor. `prompt` has keys at their positions, which tell images apart, so
    /// such requests use the cache as others do.
    pub images: Option<Arc<PromptImages>>,
    /// The request's K/V neither comes from the cache nor enters it, since its prompt consists of embeddings, whose
    /// placeholders are all equal. The request saves no states and does not wait for another request's prefill.
    pub bypasses_cache: bool,
    /// Texts for drafts, for the executor: none come from requests of another namespace.
    pub draft_texts: Arc<[DraftText]>,
    /// For an embedding request, which has no output.
    pub pooling: Option<Pooling>,
    /// Priority of the request. With `enable_priority_scheduling` larger values are served first (smaller ones with
    /// `schedule_low_priority_values_first`); without it only the eviction policy `priority` reads it.
    pub priority: Option<i64>,
    /// Read at intake and before every plan: a client may cancel before its request arrives here.
    pub cancel: CancelFlag,
    /// Time of intake, in seconds of the actor's clock.
    pub submitted_s: f64,
    /// Timeouts, on the clock of `submitted_s`.
    pub timeouts: RequestTimeouts,
}

/// A request that continues in another unit, or in a later generation of its unit.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The submission as the first unit got it.
    pub submission: Submission,
    /// The output tokens that the client was told, among them the submission's opening; empty before the first token.
    pub told: Arc<[u32]>,
    /// Log probabilities of prompt tokens that the client was told.
    pub input_logprobs: u32,
    /// Prompt tokens from the cache at the first admission; `None` before it.
    pub cached_tokens: Option<u32>,
    pub retractions: u32,
    /// How often the request was continued, this time included.
    pub resumptions: u32,
    /// Seconds since the intake.
    pub age_s: f64,
    /// Seconds since the first admission; `None` before it.
    pub running_s: Option<f64>,
}

impl Resumption {
    /// True if the request was admitted before: it is not queued by the policy again.
    pub fn has_run(&self) -> bool {
        self.running_s.is_some() || self.cached_tokens.is_some() || !self.told.is_empty()
    }
}

/// The smallest ids that a unit may assign. All smaller ones may have been assigned by its earlier generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdFloor {
    /// The number of the first step. The unit's tickets are larger, too.
    pub step: u64,
    /// The number of sequences before the first one.
    pub sequences: u64,
}

/// Requests for a unit to continue, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Resume {
    pub floor: IdFloor,
    pub requests: Vec<Resumption>,
}

/// Time limits after which a request fails with `timeout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RequestTimeouts {
    /// Seconds from intake to the first step; `None` for no limit.
    pub waiting_s: Option<f64>,
    /// Seconds from the first step to the end, including time after a retraction; `None` for no limit.
    pub running_s: Option<f64>,
}

impl RequestTimeouts {
    pub fn any(&self) -> bool {
        self.waiting_s.is_some() || self.running_s.is_some()
    }

    /// The error of a request whose limit has passed at `now_s`, on the clock of its times. Only the running time is
    /// limited once it has begun.
    pub fn overrun(
        &self,
        waiting_since_s: f64,
        running_since_s: Option<f64>,
        now_s: f64,
    ) -> Option<RequestError> {
        if let Some(since_s) = running_since_s {
            let limit_s = self.running_s?;
            return (now_s - since_s >= limit_s).then(|| RequestError::running_timeout(limit_s));
        }
        let limit_s = self.waiting_s?;
        (now_s - waiting_since_s >= limit_s).then(|| RequestError::waiting_timeout(limit_s))
    }

    /// The shorter of both values for each limit.
    pub fn tightened(self, other: Self) -> Self {
        let shorter = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            waiting_s: shorter(self.waiting_s, other.waiting_s),
            running_s: shorter(self.running_s, other.running_s),
        }
    }
}

/// A client's cancel flag, readable before its `CancelRequest` arrives.
#[derive(Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True for clones of one flag, which belong to one request.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl fmt::Debug for CancelFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CancelFlag({})", self.is_raised())
    }
}
