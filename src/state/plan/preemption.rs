//! Priorities: the order of service, and preemption of running requests for a waiting one.

use std::cmp::Reverse;

use souffleur_base::ids::SeqId;

/// A request's rank by priority: greater is served sooner. A missing priority ranks last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(Option<i64>);

impl Rank {
    /// The rank of a priority; with `low_values_first` small numbers are served sooner.
    pub fn of(priority: Option<i64>, low_values_first: bool) -> Self {
        if low_values_first {
            Self(priority.map(i64::saturating_neg))
        } else {
            Self(priority)
        }
    }

    /// How far this rank is above another one; a missing priority is infinitely far below every other one.
    fn above(self, other: Self) -> i64 {
        match (self.0, other.0) {
            (Some(own), Some(other)) => own.saturating_sub(other),
            (Some(_), None) => i64::MAX,
            (None, Some(_)) => i64::MIN,
            (None, None) => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PriorityRules {
    pub low_values_first: bool,
    /// A running request is preempted for one whose priority is better by more than this; `None` disables preemption.
    pub preemption_threshold: Option<i64>,
    /// Most requests in the engine: beyond that the scheduler rejects the worst waiting request, or the new one.
    pub max_requests: usize,
}

impl PriorityRules {
    pub fn rank(&self, priority: Option<i64>) -> Rank {
        Rank::of(priority, self.low_values_first)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Victim {
    /// The sequence; ids ascend in order of arrival.
    pub seq: SeqId,
    pub rank: Rank,
    pub reserved_tokens: f64,
    /// Tokens of window pages that the sequence holds or reserves; 0 for models without window layers.
    pub window_tokens: f64,
}

/// The tokens that a waiting request lacks; 0 or less where it lacks nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deficit {
    pub tokens: f64,
    pub window_tokens: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Preemption {
    threshold: i64,
    /// The running requests, in order of preemption.
    running: Vec<Victim>,
}

impl Preemption {
    /// Orders the running requests: lowest priority first, then the newest.
    pub fn new(threshold: i64, mut running: Vec<Victim>) -> Self {
        running.sort_unstable_by_key(|victim| (victim.rank, Reverse(victim.seq)));
        Self { threshold, running }
    }

    /// Chooses the fewest victims, in order and at least one, that cover the deficit of a request of this rank. Returns
    /// `None` if all requests of lower rank together do not cover the deficit. A request that preempts all others runs
    /// alone: then the window pages always suffice for its prefill.
    pub fn choose(&self, rank: Rank, deficit: Deficit) -> Option<&[Victim]> {
        let mut missing = deficit;
        for (at, victim) in self.running.iter().enumerate() {
            if rank.above(victim.rank) <= self.threshold {
                return None;
            }
            missing.tokens -= victim.reserved_tokens;
            missing.window_tokens -= victim.window_tokens;
            let is_last = at + 1 == self.running.len();
            if missing.tokens <= 0.0 && (missing.window_tokens <= 0.0 || is_last) {
                return Some(&self.running[..=at]);
            }
        }
        None
    }
}
