//! Counters of the KV store's reads and writes.

use metrics::{Counter, Gauge, counter, gauge};

/// Counts of the KV store. Registered by engines that have one.
pub struct StoreMetrics {
    prefetched_tokens: Counter,
    backuped_tokens: Counter,
    disk_bytes: Gauge,
    tokens_per_block: u64,
}

impl StoreMetrics {
    /// Binds the handles to the recorder that is installed now.
    pub fn register(tokens_per_block: usize) -> Self {
        Self {
            prefetched_tokens: counter!("sglang:prefetched_tokens_total"),
            backuped_tokens: counter!("sglang:backuped_tokens_total"),
            disk_bytes: gauge!("souffleur_kv_store_bytes"),
            tokens_per_block: tokens_per_block as u64,
        }
    }

    /// Records the end of a fetch: blocks that came, and why it was not all of them.
    pub fn fetched(&self, blocks: usize, short: Option<&'static str>) {
        self.prefetched_tokens
            .increment(blocks as u64 * self.tokens_per_block);
        if let Some(reason) = short {
            counter!("souffleur_kv_store_short_fetches_total", "reason" => reason).increment(1);
        }
    }

    /// Records that a block is on the disk.
    pub fn written(&self) {
        self.backuped_tokens.increment(self.tokens_per_block);
    }

    /// Records a block that is not written, and why.
    pub fn not_written(&self, reason: &'static str) {
        counter!("souffleur_kv_store_unwritten_tokens_total", "reason" => reason)
            .increment(self.tokens_per_block);
    }

    /// Records the size of the store.
    pub fn holds(&self, bytes: u64) {
        self.disk_bytes.set(bytes as f64);
    }
}
