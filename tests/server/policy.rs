//! Tests of `POST /set_policy`, which changes the scheduling policy and the eviction policy.

use serde_json::json;
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::scheduler::policy::schedule_policy_names;

use crate::http::{get, post, stream};
use crate::world::World;

#[test]
fn policies_can_be_changed_during_a_stream_and_are_shown() {
    let world = World::new();
    let info = |key: &str| get(world.addr, "/server_info").ok()[key].take();
    assert_eq!(info("schedule_policy"), "fcfs");
    assert_eq!(info("radix_eviction_policy"), "lru");
    let call = json!({
        "text": "The cat", "priority": 3,
        "sampling_params": {"max_new_tokens": 300, "temperature": 0, "ignore_eos": true},
    });
    let undisturbed = post(world.addr, "/generate", &call).ok();
    let mut streamed = call.clone();
    streamed["stream"] = true.into();
    let mut running = stream(world.addr, "/generate", &streamed);
    running.next_json();
    let policies = ["lpm", "dfs-weight", "hrrn"].into_iter().cycle();
    for (policy, eviction) in policies.zip(EvictionPolicy::names()) {
        let swap = json!({"schedule_policy": policy, "radix_eviction_policy": eviction});
        assert_eq!(post(world.addr, "/set_policy", &swap).ok(), swap);
        assert_eq!(info("schedule_policy"), policy);
        assert_eq!(info("radix_eviction_policy"), eviction);
        let other = post(world.addr, "/generate", &call).ok();
        assert_eq!(other["output_ids"], undisturbed["output_ids"]);
    }
    let last = running.rest().pop().expect("events");
    assert_eq!(last["output_ids"], undisturbed["output_ids"]);
    let eviction = json!({"radix_eviction_policy": "mru"});
    post(world.addr, "/set_policy", &eviction).ok();
    let policy = json!({"schedule_policy": "lof"});
    let answer = post(world.addr, "/set_policy", &policy).ok();
    let expected = json!({"schedule_policy": "lof", "radix_eviction_policy": "mru"});
    assert_eq!(answer, expected);
    world.wait_until_idle();
}

#[test]
fn an_unknown_policy_is_refused_with_the_known_ones() {
    let world = World::new();
    let refused = |body: &serde_json::Value| {
        let response = post(world.addr, "/set_policy", body);
        assert_eq!(response.status, 400, "{body}");
        response.json()["error"]["message"].take()
    };
    let known = schedule_policy_names().collect::<Vec<_>>().join(", ");
    assert_eq!(
        refused(&json!({"schedule_policy": "sjf"})),
        format!("schedule_policy is \"sjf\", must be one of {known}")
    );
    let known = EvictionPolicy::names().collect::<Vec<_>>().join(", ");
    assert_eq!(
        refused(&json!({"schedule_policy": "lpm", "radix_eviction_policy": "arc"})),
        format!("radix_eviction_policy is \"arc\", must be one of {known}")
    );
    let empty = refused(&json!({}));
    assert!(
        empty.as_str().is_some_and(|text| text.contains("missing")),
        "{empty}"
    );
    let long = refused(&json!({"schedule_policy": "x".repeat(1 << 20)}));
    assert!(long.as_str().is_some_and(|text| text.len() < 200), "{long}");
    refused(&json!({"schedule_policy": 3}));
    assert_eq!(
        get(world.addr, "/server_info").ok()["schedule_policy"],
        "fcfs"
    );
}
