//! Tests of the publisher's thread after panics.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::super::config::{Encoding, Endpoint, IdFormat};
use super::super::feed::EmptiedList;
use super::*;

fn started(chaos: Chaos) -> (KvEventPublisher, PrometheusHandle) {
    let config = KvEventsConfig {
        endpoint: Endpoint::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 0,
        },
        replay_endpoint: None,
        buffer_steps: 4,
        hwm: None,
        max_queue_size: 16,
        topic: String::new(),
        format: IdFormat::default(),
        encoding: Encoding::default(),
        block_size: 1,
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let page_size = PageSize::new(1).expect("positive");
    let start = || {
        // It connects to no subscriber, since nothing listens on port 0.
        let replica = Replica {
            rank: 0,
            subscribers: None,
            replays: None,
            metrics: KvEventMetrics::register(),
        };
        KvEventPublisher::start(chaos, config, page_size, replica)
    };
    let publisher = metrics::with_local_recorder(&recorder, start);
    (publisher.expect("a thread starts"), handle)
}

fn deaths(handle: &PrometheusHandle) -> Option<String> {
    let page = handle.render();
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with("souffleur_actor_deaths_total{"));
    line.map(str::to_owned)
}

/// Sends changes to the publisher, and returns whether it has lost them.
fn loses(publisher: &KvEventPublisher, changes: Vec<CacheChange>) -> bool {
    let (give_back, mut emptied) = mpsc::channel::<EmptiedList>(1);
    let list = ChangeList::new(1, changes, give_back);
    assert!(publisher.queue.try_send(list).is_ok());
    emptied.blocking_recv().expect("it comes back").is_lost
}

/// A split of an unknown node makes the publisher panic.
fn deadly() -> Vec<CacheChange> {
    let split = CacheChange::Split {
        upper: 0,
        lower: 7,
        at: 1,
    };
    vec![CacheChange::Cleared, split]
}

/// The numbers of the first `n` batches, all of which clear everything.
fn clears(publisher: &KvEventPublisher, n: usize) -> Vec<u64> {
    let subscription = publisher.subscriptions().subscribe(0);
    let mut subscription = subscription.expect("the publisher runs");
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let mut next = || {
        let batch = runtime.block_on(subscription.next());
        let batch = batch.expect("the publisher runs");
        assert_eq!(batch.events, [KvEvent::Cleared]);
        batch.number
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn a_publisher_that_dies_begins_anew_and_continues_its_numbers() {
    let (publisher, handle) = started(Chaos::default());
    assert!(!loses(&publisher, vec![CacheChange::Cleared]));
    assert!(loses(&publisher, deadly()));
    // Until the whole content follows, changes are dropped.
    assert!(loses(&publisher, deadly().split_off(1)));
    assert!(!loses(&publisher, vec![CacheChange::Cleared]));
    let counted = "souffleur_actor_deaths_total{actor=\"kv_events\"} 1";
    assert_eq!(deaths(&handle).as_deref(), Some(counted));
    let numbers = clears(&publisher, 3);
    assert_eq!(numbers[1..], [numbers[0] + 1, numbers[0] + 2]);
    drop(publisher);
    assert_eq!(deaths(&handle).as_deref(), Some(counted));
}

#[test]
fn a_publisher_that_dies_too_often_ends() {
    let (publisher, handle) = started(Chaos::default());
    for _ in 0..=ALLOWED_RESTARTS.limit {
        assert!(loses(&publisher, deadly()));
    }
    assert!(publisher.ended.recv().is_err(), "its thread ends");
    let counted = "souffleur_actor_deaths_total{actor=\"kv_events\"} 6";
    assert_eq!(deaths(&handle).as_deref(), Some(counted));
}

#[test]
fn a_stop_is_no_death() {
    let (publisher, handle) = started(Chaos::default());
    drop(publisher);
    let none = "souffleur_actor_deaths_total{actor=\"kv_events\"} 0";
    assert_eq!(deaths(&handle).as_deref(), Some(none));
}

#[test]
fn chaos_panics_at_a_list_of_changes() {
    let spec = "actor=kv_events,kind=panic,message=ChangeList,after=1";
    let chaos = Chaos::new(&[spec.parse().expect("a valid spec")]);
    let (publisher, handle) = started(chaos);
    assert!(loses(&publisher, vec![CacheChange::Cleared]));
    assert!(!loses(&publisher, vec![CacheChange::Cleared]));
    let counted = "souffleur_actor_deaths_total{actor=\"kv_events\"} 1";
    assert_eq!(deaths(&handle).as_deref(), Some(counted));
}
