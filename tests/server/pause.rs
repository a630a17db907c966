//! Tests of `POST /pause_generation` and `POST /continue_generation`.

use serde_json::{Value, json};
use souffleur::server::ApiKey;

use crate::http::{Events, get, open, post, read_response, stream};
use crate::world::World;

const PAUSE: &str = "/pause_generation";
const CONTINUE: &str = "/continue_generation";

fn completion(max_tokens: usize) -> Value {
    json!({
        "prompt": "The sea is", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
    })
}

fn begin_stream(world: &World, max_tokens: usize) -> Events {
    let mut body = completion(max_tokens);
    body["stream"] = true.into();
    let mut events = stream(world.addr, "/v1/completions", &body);
    events.next_json();
    events
}

#[track_caller]
fn post_ok(world: &World, path: &str, body: Value) {
    let answer = post(world.addr, path, &body).ok();
    assert_eq!(answer["status"], "ok", "{answer}");
    assert!(answer["message"].is_string(), "{answer}");
}

#[test]
fn running_and_new_requests_wait_in_place_and_continue_with_the_same_text() {
    let world = World::new();
    let whole = post(world.addr, "/v1/completions", &completion(1500)).ok();
    let expected = whole["choices"][0]["text"].as_str().expect("a text");
    let mut body = completion(1500);
    body["stream"] = true.into();
    let mut events = stream(world.addr, "/v1/completions", &body);
    let first = events.next_json();
    post_ok(&world, PAUSE, json!({"mode": "in_place"}));
    assert!(world.stats().is_paused);
    let info = get(world.addr, "/server_info").ok();
    assert_eq!(info["internal_states"][0]["is_paused"], true);
    let second = open(world.addr, "/v1/completions", &completion(2));
    world.wait_until("the second call waits", |stats| stats.waiting_requests > 0);
    // If a step was being planned when the pause arrived, the step is in flight by now.
    let steps = world.stats().steps;
    assert_eq!(post(world.addr, "/flush_cache", &json!({})).status, 400);
    assert_eq!(world.stats().steps, steps, "no step is planned");
    // A second pause has no effect.
    post_ok(&world, PAUSE, json!({"mode": "in_place"}));
    post_ok(&world, CONTINUE, json!({}));
    assert!(!world.stats().is_paused);
    let mut text = first["choices"][0]["text"]
        .as_str()
        .expect("a text")
        .to_owned();
    for event in events.rest() {
        text += event["choices"][0]["text"].as_str().unwrap_or_default();
    }
    assert_eq!(text, expected);
    read_response(second).ok();
    world.wait_until_idle();
}

#[test]
fn a_pause_cancels_running_requests_unless_its_mode_keeps_them() {
    let world = World::new();
    for mode in [json!({}), json!({"mode": "abort"})] {
        let events = begin_stream(&world, 30_000);
        post_ok(&world, PAUSE, mode);
        let last = events.rest().pop().expect("events");
        assert_eq!(last["choices"][0]["finish_reason"], "abort", "{last}");
        let waits = open(world.addr, "/v1/completions", &completion(2));
        world.wait_until("a request waits", |stats| stats.waiting_requests == 1);
        post_ok(&world, CONTINUE, json!({}));
        read_response(waits).ok();
        world.wait_until_idle();
    }
}

#[test]
fn requests_of_clients_that_disconnect_in_a_pause_are_freed() {
    let world = World::new();
    let runs = begin_stream(&world, 30_000);
    post_ok(&world, PAUSE, json!({"mode": "in_place"}));
    let waits = open(world.addr, "/v1/completions", &completion(2));
    world.wait_until("a request waits", |stats| stats.waiting_requests > 0);
    drop((runs, waits));
    world.wait_until_idle();
    assert_eq!(post(world.addr, "/flush_cache", &json!({})).status, 200);
    post_ok(&world, CONTINUE, json!({}));
    post(world.addr, "/v1/completions", &completion(2)).ok();
    world.wait_until_idle();
}

#[test]
fn unsupported_modes_and_clients_without_the_admin_key_are_refused() {
    let world = World::with(|_, server| server.admin_api_key = ApiKey::new("sk-admin").ok());
    for path in [PAUSE, CONTINUE] {
        let refused = post(world.addr, path, &json!({"mode": "in_place"}));
        let code = &refused.json()["error"]["code"];
        assert_eq!((refused.status, code), (401, &json!("admin_key_required")));
    }
    assert!(!world.stats().is_paused);
    let world = World::new();
    for (mode, part) in [
        (json!("retract"), "mode \"retract\" is not supported"),
        (json!("sleep"), "mode is \"sleep\""),
        (json!(5), "mode is 5"),
    ] {
        let refused = post(world.addr, PAUSE, &json!({"mode": mode}));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("mode")));
        let text = error["message"].as_str().expect("a text");
        assert!(text.contains(part), "{text}");
    }
    assert!(!world.stats().is_paused);
    world.wait_until_idle();
}
