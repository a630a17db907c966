//! Metrics of injected faults.

use metrics::{Counter, counter};

/// The counter of one kind of fault in one actor.
pub struct ChaosMetrics(Counter);

impl ChaosMetrics {
    pub fn register(actor: &'static str, kind: &'static str) -> Self {
        let labels = [("actor", actor), ("kind", kind)];
        Self(counter!("souffleur_chaos_firings_total", &labels))
    }

    pub fn fired(&self) {
        self.0.increment(1);
    }
}
