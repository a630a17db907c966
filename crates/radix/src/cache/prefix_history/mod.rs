//! Diagnosis of cache misses: how much of each admitted prompt was cached, and why not more.
//!
//! The tree describes the cached part of each admitted prompt ([`Departure`]) and its evictions ([`EvictedEdge`]). The
//! scheduler forwards both in order as [`PrefixEvent`]s. The history keeps a bounded number of reports and evictions,
//! and is updated and queried outside of planning. It reads no clock: the caller passes the time.

mod changing;
mod evictions;
mod hash;
mod report;
mod stored;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cache::namespace::Namespace;
use crate::pool::pages::EdgeBuffer;
use crate::pool::pages::PageSize;
use souffleur_base::ids::{RequestId, StepId};

use evictions::Evictions;

pub use changing::{ChangingValue, changing_value};
pub use hash::PrefixHash;
pub use report::{
    BranchReport, Cause, ElsewhereReport, EvictionReport, MissingState, PrefixOutline,
    PrefixReport, PrefixTexts,
};
pub use stored::{StoredMiss, StoredPart};

/// Tokens shown before and after a prompt's miss point.
pub const WINDOW_TOKENS: usize = 24;

/// The cached part of a prompt when it was admitted, and the tree around the miss point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Tokens of the prefix that came from the cache.
    pub matched_tokens: usize,
    /// Tokens of the prompt whose K/V is cached: more than `matched_tokens` if the state or the window pages to
    /// resume from are missing.
    pub kv_tokens: usize,
    /// Why there is no state after `matched_tokens` and within `kv_tokens`.
    pub missing_state: Option<MissingState>,
    /// Longest prefix that may come from the cache: at least one token must be computed.
    pub match_limit: usize,
    /// The cache keeps nothing.
    pub is_cache_disabled: bool,
    /// How the tree continued after the matched prefix.
    pub branch: Option<Branch>,
    /// Another namespace that has more of the prompt. Neither namespace is salted.
    pub elsewhere: Option<Elsewhere>,
}

impl Departure {
    /// Limits all counts to the prompt. Output tokens that a grammar forces at the start are computed and cached with
    /// the prompt, so the counts may exceed it.
    fn clamped_to(self, prompt_tokens: usize) -> Self {
        let matched_tokens = self.matched_tokens.min(prompt_tokens);
        let is_whole = matched_tokens == prompt_tokens;
        let elsewhere = self.elsewhere.map(|elsewhere| Elsewhere {
            tokens: elsewhere.tokens.min(prompt_tokens),
            ..elsewhere
        });
        Self {
            matched_tokens,
            kv_tokens: self.kv_tokens.min(prompt_tokens),
            match_limit: self.match_limit.min(prompt_tokens),
            branch: self.branch.filter(|_| !is_whole),
            elsewhere: elsewhere.filter(|elsewhere| elsewhere.tokens > matched_tokens),
            ..self
        }
    }
}

/// How the tree continued at a prompt's miss point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Number of edges that begin at the miss point.
    pub n_branches: u32,
    /// The first tokens of the newest edge; empty if that edge was evicted since.
    pub tokens: Vec<u32>,
}

/// A namespace that has more of a prompt than the prompt's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    pub namespace: Namespace,
    /// Tokens of the prompt that are cached in this namespace.
    pub tokens: usize,
}

#[derive(Clone, Debug)]
pub struct EvictedEdge {
    /// Hash of the path above the edge.
    above: PrefixHash,
    /// Shared with the remaining path above the edge.
    buffer: EdgeBuffer,
    /// The edge's part of the buffer's tokens.
    range: Range<u32>,
}

impl EvictedEdge {
    /// An edge that held `tokens` (whole pages) after the prefix `above`.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` tokens.
    pub fn new(above: PrefixHash, tokens: Arc<[u32]>) -> Self {
        let end = u32::try_from(tokens.len()).expect("an edge must have fewer than 2^32 tokens");
        Self::part_of(above, EdgeBuffer::Short(tokens), 0..end)
    }

    pub(crate) fn part_of(above: PrefixHash, buffer: EdgeBuffer, range: Range<u32>) -> Self {
        Self {
            above,
            buffer,
            range,
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.buffer.tokens()[self.range.start as usize..self.range.end as usize]
    }
}

/// Events for the history, in the order in which they happened.
#[derive(Debug)]
pub enum PrefixEvent {
    Left(Box<AdmittedPrompt>),
    Evicted {
        /// The step that needed the memory.
        step: StepId,
        edges: Vec<EvictedEdge>,
    },
    /// The cache was emptied: after a lost step, or on request.
    Flushed {
        /// The step that was being planned.
        step: StepId,
        /// The removed edges, those at the start of prompts first.
        edges: Vec<EvictedEdge>,
    },
}

#[derive(Debug)]
pub struct AdmittedPrompt {
    pub rid: RequestId,
    pub namespace: Namespace,
    pub prompt: Arc<[u32]>,
    /// The step in which the request's prefill begins.
    pub step: StepId,
    pub departure: Departure,
    /// The tokens from the KV store, and why there were no more.
    pub stored: StoredPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    pub page_size: PageSize,
    pub max_requests: usize,
    /// Evicted pages remembered, at 24 to 50 bytes each.
    pub max_evicted_pages: usize,
}

#[derive(Debug)]
pub struct PrefixHistory {
    limits: HistoryLimits,
    evictions: Evictions,
    reports: VecDeque<PrefixReport>,
    /// Number of the first of `reports`; they are numbered without gaps.
    first: u64,
    by_rid: FxHashMap<RequestId, u64>,
    flushed_at_step: Option<StepId>,
}

impl PrefixHistory {
    pub fn new(limits: HistoryLimits) -> Self {
        Self {
            evictions: Evictions::new(limits.page_size, limits.max_evicted_pages),
            reports: VecDeque::new(),
            first: 0,
            by_rid: FxHashMap::default(),
            flushed_at_step: None,
            limits,
        }
    }

    /// Records an event. Returns the new report if the event is an admission.
    pub fn take(&mut self, event: PrefixEvent, now_s: f64) -> Option<&PrefixReport> {
        match event {
            PrefixEvent::Left(admitted) => Some(self.admit(*admitted, now_s)),
            PrefixEvent::Evicted { step, edges } => {
                for edge in &edges {
                    self.evictions.remember(edge, step, now_s);
                }
                None
            }
            PrefixEvent::Flushed { step, edges } => {
                self.flushed_at_step = Some(step);
                self.evictions.remember_flush(&edges, step, now_s);
                None
            }
        }
    }

    /// The report on the last request with this id, if it is remembered.
    pub fn report(&self, rid: &RequestId) -> Option<&PrefixReport> {
        let number = self.by_rid.get(rid)?;
        self.reports.get((number - self.first) as usize)
    }

    pub fn len(&self) -> usize {
        self.reports.len()
    }

    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    pub fn evicted_pages(&self) -> usize {
        self.evictions.n_pages()
    }

    fn admit(&mut self, admitted: AdmittedPrompt, now_s: f64) -> &PrefixReport {
        while self.reports.len() >= self.limits.max_requests.max(1) {
            self.forget_oldest();
        }
        let report = self.diagnose(admitted, now_s);
        let number = self.first + self.reports.len() as u64;
        self.by_rid.insert(report.rid.clone(), number);
        self.reports.push_back(report);
        self.reports.back().expect("a report was just pushed")
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.reports.pop_front() {
            if self.by_rid.get(&oldest.rid) == Some(&self.first) {
                self.by_rid.remove(&oldest.rid);
            }
            self.first += 1;
        }
    }

    fn diagnose(&self, mut admitted: AdmittedPrompt, now_s: f64) -> PrefixReport {
        let departure = admitted.stored.move_miss_point(admitted.departure);
        admitted.departure = departure.clamped_to(admitted.prompt.len());
        let departure = &admitted.departure;
        let reachable = self.limits.page_size.floor(departure.match_limit);
        let is_missing = departure.matched_tokens < reachable && !departure.is_cache_disabled;
        let evicted = is_missing
            .then(|| {
                let key = &admitted.prompt[..departure.match_limit];
                self.evictions
                    .find(&admitted.namespace, key, departure.matched_tokens)
            })
            .flatten();
        let evicted = evicted.map(|found| {
            let report = EvictionReport {
                step: found.step,
                steps_before: admitted.step.get().saturating_sub(found.step.get()),
                seconds_before: (now_s - found.at_s).max(0.0),
                cached_until: found.until,
            };
            (found.cause, report)
        });
        PrefixReport {
            flushed_at_step: self.flushed_at_step,
            evictions_forgotten_until_step: self.evictions.forgotten_until(),
            ..PrefixReport::new(admitted, self.limits.page_size, evicted)
        }
    }
}
