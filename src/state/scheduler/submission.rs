//! A request as it comes into the scheduler, with its time limits and the flag that cancels it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ids::{IntakeId, RequestId};
use crate::state::cache::namespace::Namespace;
use crate::state::grammar::Grammar;
use crate::state::pooling::Pooling;
use crate::state::prompt_vectors::PromptVectors;
use crate::state::sampling::{LogprobWish, SamplingParams};

/// A request as the tokenizer submits it: validated, clipped, encoded.
#[derive(Clone, Debug)]
#[repr(C)] // as in `Sequence`
pub struct Submission {
    /// The Tokenizer's number for it.
    pub intake: IntakeId,
    /// Log probabilities wished for.
    pub logprobs: Option<Arc<LogprobWish>>,
    /// The prompt; not empty, shorter than the context.
    pub prompt: Arc<[u32]>,
    /// The client's name for it.
    pub rid: RequestId,
    /// Where its prefix may be shared.
    pub namespace: Namespace,
    /// Validated, clipped to what can fit, with a seed.
    pub sampling: Arc<SamplingParams>,
    /// Tokens that its output begins with, fewer than its longest output; usually none. They are computed with the prompt
    /// and count as output.
    pub opening: Arc<[u32]>,
    /// Positions of the prompt that other prompts are likely to leave it at, ascending: ends of turns, and one beyond its
    /// end if other outputs of it are asked for. They decide where states are kept; none where no layer keeps any.
    pub anchors: Arc<[u32]>,
    /// The grammar of its output, if it has one.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// The prompt as vectors, for the executor. `prompt` has a placeholder for each of them.
    pub vectors: Option<Arc<PromptVectors>>,
    /// Its K/V neither comes from the cache nor goes there: its prompt is vectors.
    pub bypasses_cache: bool,
    /// The request wants the embedding of its prompt, and no output.
    pub pooling: Option<Pooling>,
    /// Priority of the request. With `enable_priority_scheduling` larger values are served first (smaller ones with
    /// `schedule_low_priority_values_first`); without it only the eviction policy `priority` looks at it.
    pub priority: Option<i64>,
    /// Tested at intake and before every plan: a cancel may overtake its request.
    pub cancel: CancelFlag,
    /// When the scheduler took it in, in seconds of its actor's clock.
    pub submitted_s: f64,
    /// How long it may wait and run, on the same clock.
    pub timeouts: RequestTimeouts,
}

/// How long a request may take before it fails with `timeout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RequestTimeouts {
    /// Seconds from intake to the first step; `None` for no limit.
    pub waiting_s: Option<f64>,
    /// Seconds from the first step to the end, time after a retraction included; `None` for no limit.
    pub running_s: Option<f64>,
}

impl RequestTimeouts {
    /// True if there is a limit.
    pub fn any(&self) -> bool {
        self.waiting_s.is_some() || self.running_s.is_some()
    }

    /// The shorter of the limits of both.
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

/// A flag that a client raises to cancel; readable before its `CancelRequest` arrives.
#[derive(Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Raises the flag.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True for clones of one flag: they belong to one request.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True once raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl fmt::Debug for CancelFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CancelFlag({})", self.is_raised())
    }
}
