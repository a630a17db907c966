//! The order of the waiting queue: one small file a policy, one line each in one table.
//!
//! A policy sees the queue in order of arrival and sorts it stably, so that ties stay in that order. Priorities come
//! on top of every policy ([`PriorityOrder`]), and retracted requests stand ahead of all of it.

mod dfs_weight;
mod fcfs;
mod hrrn;
mod lof;
mod lpm;
mod random;
mod shortest_prefill_first;

use crate::ids::SeqId;
use crate::state::plan::probe::{Matched, ProbeKind};

/// With more waiting requests than this, policies that [fall back](Crowd::FallsBack) match none.
pub const MAX_PROBED: usize = 128;

/// The facts that a policy may know of one waiting request.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request; a smaller one arrived earlier.
    pub seq: SeqId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens to have K/V of before it can decode: prompt, and output so far.
    pub fill_tokens: usize,
    /// Tokens it may generate.
    pub max_new_tokens: usize,
    /// Prompt tokens that the engine has prefilled since the request arrived, those of others.
    pub waited_tokens: u64,
    /// The cached part of it; nothing for policies that do not ask.
    pub matched: Matched,
}

/// The question of a policy to the cache before it orders the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeNeed {
    /// The facts to be found out besides the lengths of matches.
    pub kind: ProbeKind,
    /// The order when more than [`MAX_PROBED`] requests wait.
    pub crowd: Crowd,
}

/// The order that a policy gives more than [`MAX_PROBED`] waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Keeps the order of arrival, which costs nothing.
    FallsBack,
    /// Orders all of them, and pays for it.
    OrdersAll,
}

/// Orders the waiting queue before an admission.
pub trait SchedulePolicy: Send {
    /// Name in the configuration.
    fn name(&self) -> &'static str;

    /// The facts that it must know of the cache; `None` for one that does not look at it.
    fn probe_need(&self) -> Option<ProbeNeed> {
        None
    }

    /// True for the policy whose order is that of arrival.
    fn keeps_arrival(&self) -> bool {
        false
    }

    /// Puts those to be admitted first in front. `waiting` is in order of arrival; equals must stay in it.
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

/// The names of all policies.
pub fn schedule_policy_names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|(name, _)| *name)
}

/// Makes the policy of this name.
///
/// # Errors
/// Names the policies that there are.
pub fn schedule_policy(name: &str) -> Result<Box<dyn SchedulePolicy>, String> {
    let found = POLICIES.iter().find(|(known, _)| *known == name);
    found.map(|(_, constructor)| constructor()).ok_or_else(|| {
        let known: Vec<&str> = schedule_policy_names().collect();
        format!("is {name:?}, must be one of {}", known.join(", "))
    })
}

/// The policy that runs where `wanted` was asked for: one that orders by the cache makes no sense without one.
pub fn effective_policy(
    wanted: Box<dyn SchedulePolicy>,
    has_prefix_cache: bool,
) -> Box<dyn SchedulePolicy> {
    match wanted.probe_need() {
        Some(_) if !has_prefix_cache => Box::new(fcfs::Fcfs),
        _ => wanted,
    }
}

/// Whether the priorities of requests count, and which way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PriorityOrder {
    /// The policy alone decides.
    #[default]
    Ignored,
    /// Larger values first.
    LargerFirst,
    /// Smaller values first.
    SmallerFirst,
}

impl PriorityOrder {
    /// A request's rank: the smaller is the sooner. No priority is the worst.
    pub fn rank(self, priority: Option<i64>) -> i128 {
        let worst = i128::MAX;
        match self {
            Self::Ignored => 0,
            Self::LargerFirst => priority.map_or(worst, |priority| -i128::from(priority)),
            Self::SmallerFirst => priority.map_or(worst, i128::from),
        }
    }
}
