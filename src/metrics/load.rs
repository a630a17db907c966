//! Metrics of an engine's load, for load balancers.

use souffleur_state::scheduler::pending::PendingTokens;
use souffleur_state::scheduler::stats::EngineStats;

/// The pending work of an engine, and its throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Queues, pools and counters, as of the last plan.
    pub stats: EngineStats,
    /// Tokens of admitted requests that are not computed yet.
    pub pending: PendingTokens,
    /// Output tokens delivered per second, over the last second of work; 0 while the engine has no request.
    pub gen_throughput: f64,
    /// Fraction of prompt tokens that came from the cache, in the last plan that admitted a request.
    pub cache_hit_rate: f64,
}
