//! Metrics of published KV events.

use metrics::{Counter, Gauge, Label, counter, gauge};

use super::with_label;

pub(super) const GAUGES: [(&str, &str); 1] = [(
    "souffleur_kv_event_subscribers",
    "Subscribers to KV events that are connected.",
)];

pub(super) const COUNTERS: [(&str, &str); 6] = [
    (
        "souffleur_kv_event_batches_total",
        "Batches of KV events published.",
    ),
    (
        "souffleur_kv_event_blocks_total",
        "Blocks reported as stored or removed by KV events.",
    ),
    (
        "souffleur_kv_event_clears_total",
        "KV events that clear all blocks: at startup, after flushes and lost changes.",
    ),
    (
        "souffleur_kv_event_lost_changes_total",
        "Cache changes dropped because the KV event publisher's queue was full; it then publishes the whole cache again.",
    ),
    (
        "souffleur_kv_event_skipped_batches_total",
        "Batches of KV events dropped because a subscriber read too slowly.",
    ),
    (
        "souffleur_kv_event_replays_total",
        "Replay requests of KV event subscribers.",
    ),
];

#[derive(Clone)]
pub struct KvEventMetrics {
    batches: Counter,
    stored: Counter,
    removed: Counter,
    clears: Counter,
    lost_changes: Counter,
    skipped_batches: Counter,
    replays: Counter,
    subscribers: Gauge,
}

impl KvEventMetrics {
    pub fn register() -> Self {
        Self::with_labels(&[])
    }

    /// The metrics of one replica's publisher.
    pub fn register_replica(rank: u32) -> Self {
        Self::with_labels(&[Label::new("dp_rank", rank.to_string())])
    }

    fn with_labels(own: &[Label]) -> Self {
        let blocks = |event| {
            let labels = with_label(own, "event", event);
            counter!("souffleur_kv_event_blocks_total", labels)
        };
        let subscribers = gauge!("souffleur_kv_event_subscribers", own.to_vec());
        subscribers.set(0.0);
        Self {
            batches: counter!("souffleur_kv_event_batches_total", own.to_vec()),
            stored: blocks("stored"),
            removed: blocks("removed"),
            clears: counter!("souffleur_kv_event_clears_total", own.to_vec()),
            lost_changes: counter!("souffleur_kv_event_lost_changes_total", own.to_vec()),
            skipped_batches: counter!("souffleur_kv_event_skipped_batches_total", own.to_vec()),
            replays: counter!("souffleur_kv_event_replays_total", own.to_vec()),
            subscribers,
        }
    }

    /// Counts a batch with `stored` and `removed` blocks, and its `clears`.
    pub fn published(&self, stored: usize, removed: usize, clears: usize) {
        self.batches.increment(1);
        self.stored.increment(stored as u64);
        self.removed.increment(removed as u64);
        self.clears.increment(clears as u64);
    }

    /// Counts changes of the cache that did not fit into the publisher's queue.
    pub fn lost(&self, n_changes: usize) {
        self.lost_changes.increment(n_changes as u64);
    }

    /// Counts batches that a subscriber did not get, because the subscriber reads too slowly.
    pub fn skipped(&self, n_batches: u64) {
        self.skipped_batches.increment(n_batches);
    }

    pub fn replayed(&self) {
        self.replays.increment(1);
    }
}

/// Counts a connected subscriber until it is dropped.
pub struct SubscriberCount(Gauge);

impl SubscriberCount {
    pub fn new(metrics: &KvEventMetrics) -> Self {
        metrics.subscribers.increment(1.0);
        Self(metrics.subscribers.clone())
    }
}

impl Drop for SubscriberCount {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
