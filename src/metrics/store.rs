//! Metrics of the KV store: tokens read and written, and bytes on the disk.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, counter, gauge};

/// The value of the gauge, which cannot be read; of the process, as the gauge.
static DISK_BYTES: AtomicU64 = AtomicU64::new(0);

pub struct StoreMetrics {
    prefetched_tokens: Counter,
    backuped_tokens: Counter,
    disk_bytes: Gauge,
    stale_messages: Counter,
    tokens_per_block: u64,
}

impl StoreMetrics {
    pub fn register(tokens_per_block: usize) -> Self {
        Self {
            prefetched_tokens: counter!("sglang:prefetched_tokens_total"),
            backuped_tokens: counter!("sglang:backuped_tokens_total"),
            disk_bytes: gauge!("souffleur_kv_store_bytes"),
            stale_messages: counter!("souffleur_stale_messages_total"),
            tokens_per_block: tokens_per_block as u64,
        }
    }

    /// Records the end of a fetch: its number of blocks, and the reason if some are missing.
    pub fn fetched(&self, blocks: usize, short: Option<&'static str>) {
        self.prefetched_tokens
            .increment(blocks as u64 * self.tokens_per_block);
        if let Some(reason) = short {
            counter!("souffleur_kv_store_short_fetches_total", "reason" => reason).increment(1);
        }
    }

    pub fn written(&self) {
        self.backuped_tokens.increment(self.tokens_per_block);
    }

    pub fn not_written(&self, reason: &'static str) {
        counter!("souffleur_kv_store_unwritten_tokens_total", "reason" => reason)
            .increment(self.tokens_per_block);
    }

    /// Counts orders of a Scheduler that was replaced.
    pub fn stale_orders(&self) {
        self.stale_messages.increment(1);
    }

    pub fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.set(bytes as f64);
        DISK_BYTES.store(bytes, Ordering::Relaxed);
    }
}

/// The bytes of the KV store on its disk, as last recorded.
pub fn stored_bytes() -> u64 {
    DISK_BYTES.load(Ordering::Relaxed)
}
