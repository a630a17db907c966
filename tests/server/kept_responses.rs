//! What is done with a response after it has ended: its conversation kept in the cache.

use serde_json::{Value, json};

use crate::http::{delete, get, post};
use crate::world::World;

const PATH: &str = "/v1/responses";

fn world(pin_ttl_s: u32) -> World {
    let lines = [
        ("hello", "Hello to you."),
        ("more", "And more."),
    ];
    World::scripted_with(&lines, |_, server| {
        server.responses_pin_ttl_s = pin_ttl_s;
        server.responses_max_count = 3;
    })
}

fn path_of(response: &Value) -> String {
    format!("{PATH}/{}", response["id"].as_str().expect("an id"))
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
    pinned("the next turn takes its place", 1);
    let fork = ask(json!({"input": "hello", "previous_response_id": first["id"]}));
    pinned("a fork has its own", 2);
    assert_eq!(
        ask(json!({"input": "hello", "store": false}))["store"],
        false
    );
    pinned("what is not kept is not pinned", 2);
    delete(world.addr, &path_of(&fork)).ok();
    pinned("what is deleted is not pinned", 1);
    // Three are kept: the newest push the others out.
    for input in ["hello 1", "hello 2", "hello 3"] {
        ask(json!({ "input": input }));
    }
    assert_eq!(get(world.addr, &path_of(&second)).status, 404);
    pinned("what is forgotten is not pinned", 3);
    post(world.addr, "/flush_cache", &json!({})).ok();
    pinned("a flush ends all", 0);
    let warm = ask(json!({"input": "hello", "generate": false}));
    pinned("a warm-up is pinned", 1);
    delete(world.addr, &path_of(&warm)).ok();
    pinned("and given back", 0);
    world.wait_until_whole();
}

#[test]
fn nothing_is_pinned_unless_asked_for() {
    let world = world(0);
    post(world.addr, PATH, &json!({"input": "hello"})).ok();
    world.wait_until_whole();
    assert_eq!(world.stats().soft_pins, 0);
}
