//! Metrics of an engine's load, for load balancers.

use super::DraftRates;
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
    /// The yield of the last drafts.
    pub drafts: DraftRates,
}

impl EngineLoad {
    /// The load of several schedulers together, with the means of their hit rates, and of the yields of drafts where
    /// there were some.
    pub fn sum(all: &[Self]) -> Self {
        let stats: Vec<EngineStats> = all.iter().map(|load| load.stats).collect();
        let n = all.len().max(1) as f64;
        let mean = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / n;
        Self {
            stats: EngineStats::sum(&stats),
            pending: PendingTokens {
                waiting: all.iter().map(|load| load.pending.waiting).sum(),
                prefilling: all.iter().map(|load| load.pending.prefilling).sum(),
            },
            gen_throughput: all.iter().map(|load| load.gen_throughput).sum(),
            cache_hit_rate: mean(|load| load.cache_hit_rate),
            drafts: mean_yield(all),
        }
    }
}

/// The mean yield of the schedulers that have verified drafts.
fn mean_yield(all: &[EngineLoad]) -> DraftRates {
    let yields = all.iter().map(|load| load.drafts);
    let yields: Vec<DraftRates> = yields.filter(|some| some.accept_length > 0.0).collect();
    let n = yields.len().max(1) as f64;
    let mean = |of: fn(&DraftRates) -> f64| yields.iter().map(of).sum::<f64>() / n;
    DraftRates {
        accept_length: mean(|some| some.accept_length),
        accept_rate: mean(|some| some.accept_rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_without_drafts_do_not_lower_the_mean_yield() {
        let load = |accept_length, accept_rate| EngineLoad {
            drafts: DraftRates {
                accept_length,
                accept_rate,
            },
            ..EngineLoad::default()
        };
        let all = [load(3.0, 0.5), load(0.0, 0.0), load(2.0, 0.25)];
        assert_eq!(EngineLoad::sum(&all).drafts, load(2.5, 0.375).drafts);
        assert_eq!(EngineLoad::sum(&all[1..2]).drafts, DraftRates::default());
    }
}
