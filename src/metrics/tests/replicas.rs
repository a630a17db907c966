//! Tests of the series of replicas.

use super::{busy_stats, page, value};
use crate::{KvEventMetrics, SchedulerMetrics};
use souffleur_state::scheduler::stats::EngineStats;

#[test]
fn replicas_have_series_of_their_own() {
    let page = page(|| {
        let [first, second] = [0, 1].map(|rank| SchedulerMetrics::register_replica("tiny", rank));
        first.record_plan(&busy_stats());
        second.record_plan(&EngineStats::default());
    });
    let of = |name, rank: &str| value(&page, name, &[&format!("dp_rank=\"{rank}\"")]);
    for (name, expected) in [
        ("sglang:num_running_reqs", [1.0, 0.0]),
        ("sglang:kv_used_tokens", [250.0, 0.0]),
    ] {
        assert_eq!([of(name, "0"), of(name, "1")], expected, "{name}");
    }
    assert_eq!(of("souffleur_prefix_pins", "1"), 0.0);
    assert!(!page.contains("souffleur_prefix_pins 0"));
}

#[test]
fn publishers_of_replicas_have_series_of_their_own() {
    let page = page(|| {
        let [first, second] = [0, 1].map(KvEventMetrics::register_replica);
        first.published(3, 0, 1);
        second.published(5, 2, 0);
    });
    let of = |name, labels: &[&str]| value(&page, name, labels);
    for (rank, expected) in [("dp_rank=\"0\"", [3.0, 0.0]), ("dp_rank=\"1\"", [5.0, 2.0])] {
        let blocks = ["event=\"stored\"", "event=\"removed\""];
        let blocks = blocks.map(|event| of("souffleur_kv_event_blocks_total", &[rank, event]));
        assert_eq!(blocks, expected, "{rank}");
        assert_eq!(of("souffleur_kv_event_subscribers", &[rank]), 0.0);
    }
}
