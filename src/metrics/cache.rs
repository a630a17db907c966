//! Metrics of tokens evicted from the radix tree.

use metrics::{Counter, Histogram, Label, counter, histogram};

pub struct CacheMetrics {
    evicted_tokens: Counter,
    eviction_seconds: Histogram,
}

impl CacheMetrics {
    pub fn register() -> Self {
        let mut labels = vec![Label::new("cache_type", "RadixCache")];
        labels.extend(["tp_rank", "pp_rank", "dp_rank"].map(|key| Label::new(key, "0")));
        Self {
            evicted_tokens: counter!("sglang:evicted_tokens_total", labels.clone()),
            eviction_seconds: histogram!("sglang:eviction_duration_seconds", labels),
        }
    }

    /// Records the number of evicted tokens and the duration of the eviction, unless it evicted nothing.
    pub fn evicted(&self, tokens: u64, seconds: f64) {
        if tokens > 0 {
            self.evicted_tokens.increment(tokens);
            self.eviction_seconds.record(seconds);
        }
    }
}
