//! Metrics of an engine's load, for load balancers.

use souffleur_state::scheduler::pending::PendingTokens;
use souffleur_state::scheduler::stats::EngineStats;

/// An engine's load: the work it has, and how fast it does it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Queues, pools and counters, as of the last plan.
    pub stats: EngineStats,
    /// Tokens of requests in the engine that are not computed yet.
    pub pending: PendingTokens,
    /// Output tokens delivered per second, over the last second of work; 0 while the engine has no request.
    pub gen_throughput: f64,
    /// Part of the prompt tokens that came from the cache, from 0 to 1, of the last plan that admitted any request.
    pub cache_hit_rate: f64,
}
