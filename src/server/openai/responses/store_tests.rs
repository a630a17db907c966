//! Tests of the response store and its bounds.

use super::*;

fn store(max_count: usize, max_bytes: usize, ttl_s: u32) -> ResponseStore {
    ResponseStore::new(&ServerConfig {
        responses_max_count: max_count,
        responses_max_bytes: max_bytes,
        responses_ttl_s: ttl_s,
        ..ServerConfig::default()
    })
}

fn keep(name: &str, bytes: usize, earlier: &[Arc<Turn>]) -> NewResponse {
    NewResponse {
        id: ResponseId::from_client(name),
        owner: Owner::Anyone,
        json: Vec::new(),
        input: vec![StoredItem {
            id: format!("item_{name}"),
            json: "{}".into(),
        }],
        output: Vec::new(),
        earlier: earlier.to_vec(),
        messages: (vec![b' '; bytes], 1),
        tokens: None,
        delta_lens: Vec::new(),
        pin: None,
    }
}

fn find(store: &ResponseStore, name: &str) -> Option<Arc<StoredResponse>> {
    store.find(&ResponseId::from_client(name), &Owner::Anyone)
}

fn taken(store: &ResponseStore) -> usize {
    store.0.memory.taken_bytes.load(Ordering::Acquire)
}

#[test]
fn the_oldest_responses_are_evicted_with_their_items() {
    let store = store(2, 1 << 20, 60);
    for name in ["a", "b", "c"] {
        store.keep(keep(name, 10, &[]));
    }
    assert!(find(&store, "a").is_none());
    assert_eq!(store.find_item("item_a", &Owner::Anyone), None);
    assert!(find(&store, "b").is_some() && find(&store, "c").is_some());
    assert!(store.find_item("item_c", &Owner::Anyone).is_some());
    for name in ["b", "c"] {
        assert!(store.forget(&ResponseId::from_client(name), &Owner::Anyone));
    }
    assert_eq!(taken(&store), 0);
}

#[test]
fn shared_bytes_are_counted_once_until_the_last_response_is_deleted() {
    const TURN: usize = 100_000;
    let store = store(100, 5 * TURN, 60);
    store.keep(keep("0", TURN, &[]));
    for round in 1..3 {
        let earlier = find(&store, &(round - 1).to_string()).expect("it is kept");
        store.keep(keep(&round.to_string(), TURN, &earlier.turns));
    }
    assert!((3 * TURN..4 * TURN).contains(&taken(&store)));
    store.forget(&ResponseId::from_client("0"), &Owner::Anyone);
    assert!(
        taken(&store) > 3 * TURN,
        "later responses share the deleted response's messages"
    );
    store.keep(keep("too large", 6 * TURN, &[]));
    assert!(find(&store, "too large").is_none() && find(&store, "2").is_some());
    // All other responses are evicted if a new response needs their memory.
    store.keep(keep("large", 4 * TURN, &[]));
    assert!(find(&store, "1").is_none() && find(&store, "2").is_none());
    assert!(find(&store, "large").is_some());
    assert!(taken(&store) <= 5 * TURN);
}

#[test]
fn a_response_is_found_by_its_owner_until_it_expires() {
    let store = store(10, 1 << 20, 0);
    store.keep(keep("old", 1, &[]));
    assert!(find(&store, "old").is_none());
    assert_eq!(taken(&store), 0);
    let store = self::store(10, 1 << 20, 60);
    let (one, other) = (store.connection(), store.connection());
    let lane: Option<Arc<str>> = Some("a".into());
    let owner = |id| Owner::Connection { id, lane: None };
    store.keep(NewResponse {
        owner: Owner::Connection {
            id: one,
            lane: lane.clone(),
        },
        ..keep("own", 1, &[])
    });
    let id = ResponseId::from_client("own");
    assert!(find(&store, "own").is_none());
    assert!(store.find(&id, &owner(other)).is_none());
    assert!(store.find(&id, &owner(one)).is_some());
    assert!(!store.forget(&id, &Owner::Anyone));
    store.forget_own(&id, other, lane.as_ref());
    store.forget_own(&id, one, None);
    assert!(store.find(&id, &owner(one)).is_some());
    store.forget_own(&id, one, lane.as_ref());
    assert!(store.find(&id, &owner(one)).is_none());
    for name in ["1", "2"] {
        store.keep(NewResponse {
            owner: owner(one),
            ..keep(name, 1, &[])
        });
    }
    store.keep(keep("3", 1, &[]));
    store.forget_all_own(one);
    assert!(
        store
            .find(&ResponseId::from_client("1"), &owner(one))
            .is_none()
    );
    assert!(find(&store, "3").is_some());
}
