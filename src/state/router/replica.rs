//! The load of one replica.

use souffleur_base::ids::UnitId;

/// The load of a replica, in requests and tokens that the Router sent to it and that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLoad {
    pub unit: UnitId,
    pub is_live: bool,
    pub requests: usize,
    /// Prompt tokens of requests without a first token, less the ones that were cached when the request was routed.
    pub owed_tokens: usize,
    /// Tokens of prompts and outputs.
    pub total_tokens: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) is_live: bool,
    pub(super) requests: usize,
    pub(super) owed_tokens: usize,
    pub(super) total_tokens: usize,
    /// Tokens that the replica computed. Each token that any replica computes reduces the number, so that old work
    /// counts little.
    pub(super) recent_tokens: u64,
}

impl Replica {
    /// A live replica without requests.
    pub(super) fn new() -> Self {
        Self {
            is_live: true,
            requests: 0,
            owed_tokens: 0,
            total_tokens: 0,
            recent_tokens: 0,
        }
    }

    /// Reduces `recent_tokens` because replicas computed `tokens`.
    pub(super) fn age(&mut self, tokens: usize, window_tokens: u64) {
        let window = u128::from(window_tokens);
        let kept = u128::from(self.recent_tokens) * window / (window + tokens as u128);
        self.recent_tokens = kept as u64;
    }

    pub(super) fn load(&self, unit: UnitId) -> ReplicaLoad {
        ReplicaLoad {
            unit,
            is_live: self.is_live,
            requests: self.requests,
            owed_tokens: self.owed_tokens,
            total_tokens: self.total_tokens,
        }
    }
}
