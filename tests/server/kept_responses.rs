//! Tests of stored responses: their events can be replayed, and their conversations can stay in the cache.

use serde_json::{Value, json};

use crate::http::{delete, get, post};
use crate::responses::{check_order, events};
use crate::world::World;

const PATH: &str = "/v1/responses";

fn world(pin_ttl_s: u32) -> World {
    let call = "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\":  4}}\n</tool_call>";
    let line = format!("<think>\nWhich row? Ünd so.\n</think>\n\nRow 4.\n{call}\n{call}");
    let custom =
        "<tool_call>\n{\"name\": \"note\", \"arguments\": {\"input\": \"a\\nb\"}}\n</tool_call>";
    let lines = [
        ("seats", line.as_str()),
        ("note it", custom),
        ("hello", "Hello to you."),
        ("more", "And more."),
    ];
    World::scripted_with(&lines, |_, server| {
        server.responses_pin_ttl_s = pin_ttl_s;
        server.responses_max_count = 3;
    })
}

fn tools() -> Value {
    json!([
        {"type": "function", "name": "seat", "parameters": {"type": "object"}},
        {"type": "custom", "name": "note"},
    ])
}

fn path_of(response: &Value) -> String {
    format!("{PATH}/{}", response["id"].as_str().expect("an id"))
}

#[track_caller]
fn replayed(world: &World, path: &str, query: &str) -> Vec<Value> {
    let answer = get(world.addr, &format!("{path}?stream=true{query}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events = answer.body.split_terminator("\n\n");
    let data = events.map(|event| {
        let (name, data) = event.split_once("\ndata: ").expect("a name and data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    data.collect()
}

#[test]
fn a_replay_has_the_events_of_the_stream() {
    let world = world(0);
    for body in [
        json!({"input": "seats", "tools": tools(), "include": ["reasoning.encrypted_content"]}),
        json!({"input": "note it", "tools": tools(), "instructions": "Be kind.", "temperature": 0.7}),
        json!({"input": "hello", "max_output_tokens": 2}),
        json!({"input": "hello", "generate": false}),
    ] {
        let sent = events(world.addr, body.clone());
        let path = path_of(&sent[0]["response"]);
        let again = replayed(&world, &path, "");
        assert_eq!(again, sent, "{body}");
        for after in [0, 1, sent.len() - 2, sent.len() - 1, 9999] {
            let rest = replayed(&world, &path, &format!("&starting_after={after}"));
            assert_eq!(rest, sent[sent.len().min(after + 1)..], "after {after}");
        }
    }
    world.wait_until_idle();
}

#[test]
fn a_response_that_was_not_streamed_can_be_replayed() {
    let world = world(0);
    let body = json!({"input": "seats", "tools": tools(), "top_logprobs": 2});
    let whole = post(world.addr, PATH, &body).ok();
    let sent = replayed(&world, &path_of(&whole), "");
    check_order(&sent);
    let last = sent.last().expect("events");
    assert_eq!(last["response"], whole);
    world.wait_until_idle();
}

#[test]
fn invalid_replays_are_refused_by_name() {
    let world = world(0);
    let response = post(world.addr, PATH, &json!({"input": "hello"})).ok();
    let path = path_of(&response);
    for (query, param) in [
        ("?stream=1", "stream"),
        ("?stream=true&starting_after=x", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?starting_after=3", "starting_after"),
    ] {
        let refused = get(world.addr, &format!("{path}{query}"));
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!(param))
        );
    }
    let unknown = get(world.addr, &format!("{PATH}/resp_0?stream=true"));
    assert_eq!(unknown.status, 404);
    // OpenAI's client may add these query parameters.
    let sent = replayed(&world, &path, "&include_obfuscation=false&include[]=x");
    assert_eq!(sent.last().expect("events")["response"], response);
    world.wait_until_idle();
}

#[test]
fn conversations_stay_in_the_cache_as_long_as_their_responses() {
    let world = world(600);
    let ask = |body: Value| post(world.addr, PATH, &body).ok();
    let pinned = |what: &str, count: usize| {
        world.wait_until(what, |stats| {
            stats.soft_pins == count && (stats.protected_tokens > 0) == (count > 0)
        });
    };
    let first = ask(json!({"input": "hello"}));
    pinned("the conversation is pinned", 1);
    let second = ask(json!({"input": "more", "previous_response_id": first["id"]}));
    pinned("the next turn replaces the pin", 1);
    let fork = ask(json!({"input": "hello", "previous_response_id": first["id"]}));
    pinned("a fork has its own pin", 2);
    assert_eq!(
        ask(json!({"input": "hello", "store": false}))["store"],
        false
    );
    pinned("a response that is not stored is not pinned", 2);
    delete(world.addr, &path_of(&fork)).ok();
    pinned("a deleted response is not pinned", 1);
    // The store holds three responses, so the new ones evict all earlier ones.
    for input in ["hello 1", "hello 2", "hello 3"] {
        ask(json!({ "input": input }));
    }
    assert_eq!(get(world.addr, &path_of(&second)).status, 404);
    pinned("an evicted response is not pinned", 3);
    post(world.addr, "/flush_cache", &json!({})).ok();
    pinned("a flush removes all pins", 0);
    let warm = ask(json!({"input": "hello", "generate": false}));
    pinned("a warm-up is pinned", 1);
    delete(world.addr, &path_of(&warm)).ok();
    pinned("a deleted warm-up is not pinned", 0);
    world.wait_until_idle();
}

#[test]
fn nothing_is_pinned_without_a_pin_ttl() {
    let world = world(0);
    post(world.addr, PATH, &json!({"input": "hello"})).ok();
    world.wait_until_idle();
    assert_eq!(world.stats().soft_pins, 0);
}
