//! The trait of scheduling policies, and the table of their names; each policy is a file.
//!
//! A policy sees the queue in order of arrival and sorts it stably. Priorities take precedence over every policy
//! ([`PriorityOrder`]). Without priorities, retracted requests precede the queue.

mod dfs_weight;
mod fcfs;
mod hrrn;
mod lof;
mod lpm;
mod random;
mod shortest_prefill_first;

use crate::plan::probe::{Matched, ProbeKind};
use souffleur_base::ids::SeqId;

/// With more waiting requests than this, policies that [fall back](LongQueue::FallsBack) do not look up cached prefixes,
/// and keep the order of arrival.
pub const MAX_PROBED: usize = 128;

#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request; a request with a smaller id arrived earlier.
    pub seq: SeqId,
    pub prompt_tokens: usize,
    /// Tokens that need K/V before the request can decode: prompt, and output so far.
    pub fill_tokens: usize,
    pub max_new_tokens: usize,
    /// Tokens that the engine has prefilled for other requests since this one arrived.
    pub waited_tokens: u64,
    /// The cached prefix; empty for policies without a probe.
    pub matched: Matched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeNeed {
    pub kind: ProbeKind,
    pub long_queue: LongQueue,
}

/// The behaviour with more than [`MAX_PROBED`] waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongQueue {
    /// Keeps the order of arrival without probing.
    FallsBack,
    /// Probes and orders all waiting requests.
    OrdersAll,
}

pub trait SchedulePolicy: Send {
    fn name(&self) -> &'static str;

    /// The required probe; `None` for policies that ignore the cache.
    fn probe_need(&self) -> Option<ProbeNeed> {
        None
    }

    fn keeps_arrival_order(&self) -> bool {
        false
    }

    /// Sorts by admission order. `waiting` is in order of arrival; the sort must be stable.
    fn order(&mut self, waiting: &mut [Waiting]);
}

type Constructor = fn() -> Box<dyn SchedulePolicy>;

const POLICIES: &[(&str, Constructor)] = &[
    (fcfs::NAME, || Box::new(fcfs::Fcfs)),
    (lpm::NAME, || Box::new(lpm::Lpm)),
    (dfs_weight::NAME, || Box::new(dfs_weight::DfsWeight)),
    (lof::NAME, || Box::new(lof::Lof)),
    (random::NAME, || Box::new(random::Random::default())),
    (hrrn::NAME, || Box::new(hrrn::Hrrn)),
    (shortest_prefill_first::NAME, || {
        Box::new(shortest_prefill_first::ShortestPrefillFirst)
    }),
];

pub fn schedule_policy_names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|(name, _)| *name)
}

/// # Errors
/// Unknown name, with the list of policies.
pub fn schedule_policy(name: &str) -> Result<Box<dyn SchedulePolicy>, String> {
    let found = POLICIES.iter().find(|(known, _)| *known == name);
    found.map(|(_, constructor)| constructor()).ok_or_else(|| {
        let known: Vec<&str> = schedule_policy_names().collect();
        format!("is {name:?}, must be one of {}", known.join(", "))
    })
}

/// Returns `wanted`, or `fcfs` if that policy probes the cache and there is no cache.
pub fn effective_policy(
    wanted: Box<dyn SchedulePolicy>,
    has_prefix_cache: bool,
) -> Box<dyn SchedulePolicy> {
    match wanted.probe_need() {
        Some(_) if !has_prefix_cache => Box::new(fcfs::Fcfs),
        _ => wanted,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PriorityOrder {
    #[default]
    Ignored,
    LargerFirst,
    SmallerFirst,
}

impl PriorityOrder {
    /// A request's rank: the smallest is served first, and requests without a priority last.
    pub fn rank(self, priority: Option<i64>) -> i128 {
        let worst = i128::MAX;
        match self {
            Self::Ignored => 0,
            Self::LargerFirst => priority.map_or(worst, |priority| -i128::from(priority)),
            Self::SmallerFirst => priority.map_or(worst, i128::from),
        }
    }
}
