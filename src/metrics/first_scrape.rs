//! Registers the families that otherwise appear with their first event, so that the first scrape has every family.

use metrics::{counter, gauge, histogram};

use super::{
    ChaosMetrics, GpuMetrics, KvEventMetrics, StoreMetrics, VisionMetrics, images_received,
};

/// Registers, at 0, one series of each family whose events are rare: injected faults, WebSockets, the KV store, KV
/// events, GPUs, images. To be called after the recorder is installed.
pub fn register_rare() {
    ChaosMetrics::register("scheduler", "panic");
    KvEventMetrics::register();
    StoreMetrics::register(1);
    GpuMetrics::register(0);
    VisionMetrics::register().worked(0.0);
    images_received(0);
    counter!("souffleur_kv_store_short_fetches_total", "reason" => "deadline").absolute(0);
    counter!("souffleur_kv_store_unwritten_tokens_total", "reason" => "no_space").absolute(0);
    counter!("souffleur_record_errors_total").absolute(0);
    counter!("souffleur_changing_headers_dropped_total").absolute(0);
    gauge!("souffleur_websocket_connections_active").increment(0.0);
    gauge!("souffleur_websocket_outbound_queue_depth").increment(0.0);
    counter!("souffleur_websocket_connections_total").absolute(0);
    let _ = histogram!("souffleur_websocket_connection_duration_seconds");
    counter!("souffleur_websocket_aborts_total", "reason" => "client_abort").absolute(0);
    let response = [
        ("endpoint", "/metrics"),
        ("status_code", "200"),
        ("method", "GET"),
    ];
    counter!("sglang:http_responses_total", &response).absolute(0);
}
