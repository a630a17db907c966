//! The report on a request's prefix: how much of it was cached, and why not more.

use serde::Serialize;

use super::{AdmittedPrompt, Departure, StoredMiss, WINDOW_TOKENS};
use crate::pool::pages::PageSize;
use souffleur_base::ids::{RequestId, StepId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Only tokens are missing that must be computed: the last one, or those with requested log probabilities.
    MatchLimit,
    /// The missing part is less than a page.
    PageFloor,
    /// The prompt is too short to share anything: less than a page before the token that must be computed.
    TooShort,
    Evicted,
    /// A namespace with another `extra_key` has the missing part. Salted namespaces are never searched.
    DifferentNamespace,
    /// At the miss point, the cache continues with other tokens.
    Divergence,
    /// No request in the recorded history had the missing part before.
    NeverCached,
    CacheDisabled,
    /// The missing part was cached, but the cache was emptied: on request, or after a lost step.
    Flushed,
    /// More K/V of the prompt is cached, but no state to resume from: it was never saved, or was dropped for another.
    NoState,
    /// More K/V of the prompt is cached, but the window K/V before its end was evicted for other prompts.
    NoWindow,
    /// The KV store has the missing part, and computing it is faster than loading it.
    StoredTooSlow,
    /// The KV store has the missing part, and did not load it in time.
    StoredLate,
    /// The KV store had the missing part, and the data read was damaged.
    StoredDamaged,
    /// The KV store had the missing part, and has dropped it for others.
    StoredEvicted,
}

impl Cause {
    pub const ALL: [Self; 15] = [
        Self::MatchLimit,
        Self::PageFloor,
        Self::TooShort,
        Self::Evicted,
        Self::DifferentNamespace,
        Self::Divergence,
        Self::NeverCached,
        Self::CacheDisabled,
        Self::Flushed,
        Self::NoState,
        Self::NoWindow,
        Self::StoredTooSlow,
        Self::StoredLate,
        Self::StoredDamaged,
        Self::StoredEvicted,
    ];

    /// The name in JSON and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MatchLimit => "match_limit",
            Self::PageFloor => "page_floor",
            Self::TooShort => "too_short",
            Self::Evicted => "evicted",
            Self::DifferentNamespace => "different_namespace",
            Self::Divergence => "divergence",
            Self::NeverCached => "never_cached",
            Self::CacheDisabled => "cache_disabled",
            Self::Flushed => "flushed",
            Self::NoState => "no_state",
            Self::NoWindow => "no_window",
            Self::StoredTooSlow => "stored_too_slow",
            Self::StoredLate => "stored_late",
            Self::StoredDamaged => "stored_damaged",
            Self::StoredEvicted => "stored_evicted",
        }
    }
}

/// Why a prompt has no state to resume from where its K/V is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingState {
    /// No state was saved.
    NeverSaved,
    /// A state was saved, but dropped for another.
    Thinned,
    /// The state is after tokens that must be computed: the last one, or those with requested log probabilities.
    PastLimit,
}

/// The miss point of one request's prompt, and its cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrefixReport {
    pub rid: RequestId,
    pub cause: Cause,
    pub prompt_tokens: usize,
    /// Prompt tokens that came from the cache: whole pages.
    pub cached_tokens: usize,
    /// Prompt tokens that came from the KV store, included in `cached_tokens`.
    pub loaded_tokens: usize,
    /// Prompt tokens whose K/V was cached: more than `cached_tokens` if there was no state to resume from, or if
    /// the K/V of sliding-window layers was evicted.
    pub kv_tokens: usize,
    /// Why there was no state, if the cause is [`Cause::NoState`].
    pub missing_state: Option<MissingState>,
    /// Index of the first token that was not cached: `cached_tokens`, or more if a cached page agrees in part.
    pub position: usize,
    pub match_limit: usize,
    pub page_size: usize,
    pub extra_key: Option<String>,
    /// The request has a `cache_salt`. Salts are secret and not shown.
    pub has_cache_salt: bool,
    pub step: StepId,
    pub tokens_before: Vec<u32>,
    pub tokens_after: Vec<u32>,
    /// The texts of the tokens in this report; `None` without a tokenizer.
    pub text: Option<PrefixTexts>,
    /// Advice about a divergence, if its texts look like a value that changes with each request.
    pub hint: Option<&'static str>,
    /// When the missing part was evicted or flushed, if it was ever cached.
    pub evicted: Option<EvictionReport>,
    pub branch: Option<BranchReport>,
    pub elsewhere: Option<ElsewhereReport>,
    /// Some evictions up to this step were dropped from the history: their pages count as never cached.
    pub evictions_forgotten_until_step: Option<StepId>,
    /// The whole cache was dropped at this step: its pages beyond the first 32,768 count as never cached.
    pub flushed_at_step: Option<StepId>,
}

/// The report for non-admin clients. It has no prompt tokens, and reveals no more than the count of cached tokens does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrefixOutline {
    pub rid: RequestId,
    pub cause: Cause,
    /// Index of the first token that did not come from the cache, at the start of a page.
    pub position: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrefixTexts {
    pub before: String,
    pub after: String,
    pub branch: Option<String>,
}

/// The eviction or flush of the part that a prompt misses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionReport {
    /// The step that needed the memory.
    pub step: StepId,
    /// Steps between the eviction and the request's first step.
    pub steps_before: u64,
    /// Seconds between the eviction and the request's first step.
    pub seconds_before: f64,
    /// As far as recorded, the prompt was once cached up to this position.
    pub cached_until: usize,
}

/// Other tokens that the cache has at a prompt's miss point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BranchReport {
    /// Number of edges that begin at the miss point.
    pub n_branches: u32,
    /// Tokens of the newest edge, from `position` on; empty if that edge was evicted since.
    pub tokens: Vec<u32>,
}

/// Another namespace with more of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ElsewhereReport {
    pub extra_key: Option<String>,
    /// Tokens of the prompt that are cached in this namespace.
    pub cached_tokens: usize,
}

impl PrefixReport {
    pub(super) fn new(
        admitted: AdmittedPrompt,
        page_size: PageSize,
        evicted: Option<(Cause, EvictionReport)>,
    ) -> Self {
        let matched = admitted.departure.matched_tokens;
        let shared = shared_with_branch(&admitted, matched);
        let (lost, evicted) = evicted.unzip();
        let miss = admitted.stored.miss;
        let cause = cause_of(&admitted.departure, page_size, (miss, lost), shared);
        let is_diverged = cause == Cause::Divergence;
        let shift = if is_diverged { shared } else { 0 };
        let position = matched + shift;
        let AdmittedPrompt {
            rid,
            namespace,
            prompt,
            step,
            departure,
            stored,
        } = admitted;
        let branch = departure.branch.filter(|_| is_diverged);
        let branch = branch.map(|branch| BranchReport {
            n_branches: branch.n_branches,
            tokens: branch.tokens.get(shift..).unwrap_or_default().to_vec(),
        });
        let elsewhere = departure.elsewhere.map(|elsewhere| ElsewhereReport {
            extra_key: elsewhere.namespace.extra_key().map(str::to_owned),
            cached_tokens: elsewhere.tokens,
        });
        Self {
            rid,
            cause,
            prompt_tokens: prompt.len(),
            cached_tokens: matched,
            loaded_tokens: stored.loaded_tokens.min(matched),
            kv_tokens: departure.kv_tokens.max(matched),
            missing_state: departure.missing_state.filter(|_| cause == Cause::NoState),
            position,
            match_limit: departure.match_limit,
            page_size: page_size.get(),
            extra_key: namespace.extra_key().map(str::to_owned),
            has_cache_salt: namespace.cache_salt().is_some(),
            step,
            tokens_before: prompt[position.saturating_sub(WINDOW_TOKENS)..position].to_vec(),
            tokens_after: prompt[position..prompt.len().min(position + WINDOW_TOKENS)].to_vec(),
            text: None,
            hint: None,
            evicted,
            branch,
            elsewhere,
            evictions_forgotten_until_step: None,
            flushed_at_step: None,
        }
    }

    /// The part for all clients. It omits the position inside a page where another request's prompt differs: with it, a
    /// client could confirm guesses of that prompt token by token.
    pub fn outline(&self) -> PrefixOutline {
        let cause = match self.cause {
            Cause::Divergence if self.cached_tokens == 0 => Cause::NeverCached,
            cause => cause,
        };
        PrefixOutline {
            rid: self.rid.clone(),
            cause,
            position: self.cached_tokens,
        }
    }
}

/// Tokens after the match that the newest branch shares: less than a page.
fn shared_with_branch(admitted: &AdmittedPrompt, matched: usize) -> usize {
    let branch = admitted.departure.branch.as_ref();
    let tokens = branch.map_or(&[] as &[u32], |branch| branch.tokens.as_slice());
    let same = tokens.iter().zip(&admitted.prompt[matched..]);
    same.take_while(|(a, b)| a == b).count()
}

/// `miss`: why the missing part did not come from the KV store; `lost`: how it left the cache, if remembered.
fn cause_of(
    departure: &Departure,
    page_size: PageSize,
    (miss, lost): (Option<StoredMiss>, Option<Cause>),
    shared: usize,
) -> Cause {
    let matched = departure.matched_tokens;
    let reachable = page_size.floor(departure.match_limit);
    if departure.is_cache_disabled {
        Cause::CacheDisabled
    } else if reachable == 0 {
        Cause::TooShort
    } else if matched >= departure.match_limit {
        Cause::MatchLimit
    } else if matched >= reachable {
        Cause::PageFloor
    } else if let Some(miss) = miss {
        // The store would also have loaded the state.
        miss.cause()
    } else if departure.kv_tokens > matched {
        match departure.missing_state {
            Some(_) => Cause::NoState,
            None => Cause::NoWindow,
        }
    } else if let Some(lost) = lost {
        lost
    } else if departure.elsewhere.is_some() {
        Cause::DifferentNamespace
    } else if departure.branch.is_some() && matched + shared > 0 {
        // At the root, any prompt differs from those in the cache: that alone is no divergence.
        Cause::Divergence
    } else {
        Cause::NeverCached
    }
}
