//! Metrics of cache misses, by cause.

use metrics::{Counter, counter};

use souffleur_state::cache::prefix_history::{Cause, PrefixReport};

pub struct PrefixMetrics {
    causes: Vec<(Cause, Counter, Counter)>,
}

impl PrefixMetrics {
    pub fn register() -> Self {
        let counters = Cause::ALL.map(|cause| {
            let label = cause.as_str();
            (
                cause,
                counter!("souffleur_prefix_misses_total", "cause" => label),
                counter!("souffleur_prefix_missed_tokens_total", "cause" => label),
            )
        });
        Self {
            causes: counters.into(),
        }
    }

    /// Counts a request and its prompt tokens that could have come from the cache and did not.
    pub fn admitted(&self, report: &PrefixReport) {
        let missed = report.match_limit.saturating_sub(report.cached_tokens) as u64;
        let found = self
            .causes
            .iter()
            .find(|(cause, ..)| *cause == report.cause);
        if let Some((_, requests, tokens)) = found {
            requests.increment(1);
            tokens.increment(missed);
        }
    }
}
