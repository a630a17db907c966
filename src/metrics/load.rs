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

impl EngineLoad {
    /// The load of several schedulers together, with the mean of their hit rates.
    pub fn sum(all: &[Self]) -> Self {
        let stats: Vec<EngineStats> = all.iter().map(|load| load.stats).collect();
        let hit_rates: f64 = all.iter().map(|load| load.cache_hit_rate).sum();
        Self {
            stats: EngineStats::sum(&stats),
            pending: PendingTokens {
                waiting: all.iter().map(|load| load.pending.waiting).sum(),
                prefilling: all.iter().map(|load| load.pending.prefilling).sum(),
            },
            gen_throughput: all.iter().map(|load| load.gen_throughput).sum(),
            cache_hit_rate: hit_rates / all.len().max(1) as f64,
        }
    }
}
