//! Tests of sessions (`POST /open_session`, `POST /close_session`, `session_params` of `POST /generate`), and of
//! `POST /set_internal_state`.

use serde_json::{Value, json};
use souffleur::server::ApiKey;

use crate::http::{post, stream};
use crate::websocket::Client;
use crate::world::{World, block_on};

fn open(world: &World, body: &Value) -> String {
    let id = post(world.addr, "/open_session", body).ok();
    id.as_str().expect("an id").to_owned()
}

/// A call with the id `rid` that continues the request `parent` of the session.
fn call(session: &str, parent: Option<&str>, rid: &str, new: &[u32]) -> Value {
    json!({
        "input_ids": new, "rid": rid,
        "session_params": {"id": session, "rid": parent},
        "sampling_params": {"max_new_tokens": 5, "temperature": 0, "ignore_eos": true},
    })
}

fn ids(reply: &Value) -> Vec<u32> {
    let ids = reply["output_ids"].as_array().expect("a list").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn sessionless(world: &World, prompt: &[u32]) -> Vec<u32> {
    let mut body = call("", None, "plain", prompt);
    body.as_object_mut()
        .expect("an object")
        .remove("session_params");
    ids(&post(world.addr, "/generate", &body).ok())
}

#[track_caller]
fn check_refused(world: &World, path: &str, body: &Value, status: u16, part: &str) {
    let refused = post(world.addr, path, body);
    let error = refused.json()["error"]["message"].clone();
    assert_eq!(refused.status, status, "{error}");
    let text = error.as_str().expect("a text");
    assert!(
        text.contains(part) && text.len() < 700,
        "{text:?} has no {part:?}"
    );
}

#[test]
fn a_request_continues_an_earlier_one_of_its_session() {
    let world = World::new();
    let id = open(
        &world,
        &json!({"capacity_of_str_len": 1000, "session_id": "mine"}),
    );
    assert_eq!(id, "mine");
    let first = post(
        world.addr,
        "/generate",
        &call(&id, None, "a", &[10, 11, 12]),
    )
    .ok();
    let first_output = ids(&first);
    assert_eq!(first_output, sessionless(&world, &[10, 11, 12]));
    let so_far = [&[10, 11, 12][..], &first_output].concat();
    // The session stores streamed requests too.
    let mut second = call(&id, Some("a"), "b", &[20, 21]);
    second["stream"] = true.into();
    let events = stream(world.addr, "/generate", &second).rest();
    let last = events.last().expect("events");
    let prompt = [&so_far[..], &[20, 21]].concat();
    assert_eq!(ids(last), sessionless(&world, &prompt));
    assert_eq!(last["meta_info"]["prompt_tokens"], prompt.len());
    let third = post(world.addr, "/generate", &call(&id, Some("b"), "c", &[30])).ok();
    let prompt = [&prompt[..], &ids(last), &[30]].concat();
    assert_eq!(ids(&third), sessionless(&world, &prompt));
    // Only the new tokens are computed.
    let cached = third["meta_info"]["cached_tokens"]
        .as_u64()
        .expect("a count");
    assert!(cached as usize >= prompt.len() - 2, "{third}");
    let mut branch = call(&id, Some("a"), "d", &[40]);
    branch["session_params"]["offset"] = 2.into();
    branch["session_params"]["replace"] = true.into();
    let branch = post(world.addr, "/generate", &branch).ok();
    assert_eq!(ids(&branch), sessionless(&world, &[10, 11, 40]));
    // `b` also continued `a`, so `d` has replaced it.
    let gone = call(&id, Some("b"), "e", &[1]);
    check_refused(&world, "/generate", &gone, 400, "has no request \"b\"");
    let closed = post(world.addr, "/close_session", &json!({"session_id": id}));
    assert_eq!((closed.status, closed.body.as_str()), (200, ""));
    check_refused(
        &world,
        "/generate",
        &call(&id, None, "f", &[1]),
        400,
        "is not open",
    );
    world.wait_until_idle();
}

#[test]
fn texts_are_continued_without_another_bos_token() {
    let world = World::new();
    let id = open(&world, &json!({"capacity_of_str_len": 1000}));
    assert_eq!(id.len(), 32, "a random id");
    let text = |parent: Value, rid: &str, text: &str| {
        json!({
            "text": text, "rid": rid, "session_params": {"id": id, "rid": parent},
            "sampling_params": {"max_new_tokens": 0},
        })
    };
    let first = post(world.addr, "/generate", &text(Value::Null, "a", "The cat")).ok();
    let second = post(world.addr, "/generate", &text("a".into(), "b", " sat.")).ok();
    let count = |reply: &Value| {
        reply["meta_info"]["prompt_tokens"]
            .as_u64()
            .expect("a count")
    };
    let alone = post(
        world.addr,
        "/tokenize",
        &json!({"prompt": " sat.", "add_special_tokens": false}),
    );
    assert_eq!(count(&second) - count(&first), alone.ok()["count"]);
    world.wait_until_idle();
}

#[test]
fn token_ids_are_continued_without_another_bos_token() {
    let world = World::new();
    let id = open(&world, &json!({"capacity_of_str_len": 1000}));
    let text = world.engine().text().cloned().expect("a tokenizer");
    let Some(bos) = text.bos_id() else {
        panic!("the model's files must name a BOS token");
    };
    let first = post(world.addr, "/generate", &call(&id, None, "a", &[bos, 11])).ok();
    let next = post(
        world.addr,
        "/generate",
        &call(&id, Some("a"), "b", &[bos, 21]),
    )
    .ok();
    let prompt = [&[bos, 11][..], &ids(&first), &[21]].concat();
    assert_eq!(next["meta_info"]["prompt_tokens"], prompt.len());
    assert_eq!(ids(&next), sessionless(&world, &prompt));
    world.wait_until_idle();
}

#[test]
fn a_request_that_is_refused_replaces_nothing() {
    let world = World::with(|engine, _| {
        engine.max_running_requests = Some(1);
        engine.max_queued_requests = 1;
    });
    let id = open(&world, &json!({"capacity_of_str_len": 1000}));
    post(world.addr, "/generate", &call(&id, None, "a", &[10])).ok();
    let kept = post(world.addr, "/generate", &call(&id, Some("a"), "b", &[20])).ok();
    let long = json!({
        "input_ids": [1], "rid": "long", "stream": true,
        "sampling_params": {"max_new_tokens": 60_000, "ignore_eos": true},
    });
    let running = stream(world.addr, "/generate", &long);
    world.wait_until("the request runs", |stats| stats.running_requests == 1);
    let mut replacing = call(&id, Some("a"), "c", &[30]);
    replacing["session_params"]["replace"] = true.into();
    assert_eq!(post(world.addr, "/generate", &replacing).status, 503);
    drop(running);
    world.wait_until_idle();
    let next = post(world.addr, "/generate", &call(&id, Some("b"), "d", &[40])).ok();
    assert_eq!(
        next["meta_info"]["prompt_tokens"],
        1 + 5 + 1 + ids(&kept).len() + 1
    );
    world.wait_until_idle();
}

#[test]
fn a_websocket_continues_sessions_too() {
    let world = World::new();
    let id = open(&world, &json!({"capacity_of_str_len": 1000}));
    let first = post(world.addr, "/generate", &call(&id, None, "a", &[10, 11])).ok();
    let prompt = [&[10, 11][..], &ids(&first), &[20]].concat();
    block_on(async {
        let mut client = Client::connect_to(world.addr, "/v1/ws/generate", None)
            .await
            .expect("a connection");
        let mut answer = async |frame: Value| {
            client.send(frame).await;
            let mut output: Vec<u32> = Vec::new();
            loop {
                let event = client.json().await;
                if let Some(text) = event["error"]["message"].as_str() {
                    return Err(text.to_owned());
                }
                let ids = event["output_ids"].as_array().into_iter().flatten();
                output.extend(ids.filter_map(Value::as_u64).map(|id| id as u32));
                if event["done"] == true {
                    return Ok(output);
                }
            }
        };
        let frame = |parent: Option<&str>, rid: &str, new: &[u32]| {
            let mut frame = call(&id, parent, rid, new);
            frame["op"] = "generate".into();
            frame
        };
        let second = answer(frame(Some("a"), "b", &[20]))
            .await
            .expect("an output");
        assert_eq!(second, sessionless(&world, &prompt));
        // The next request continues the previous one as soon as that has ended.
        let third = answer(frame(Some("b"), "c", &[30]))
            .await
            .expect("an output");
        assert_eq!(
            third,
            sessionless(&world, &[&prompt[..], &second, &[30]].concat())
        );
        let unknown = answer(frame(Some("x"), "d", &[1])).await;
        assert!(unknown.is_err_and(|text| text.contains("has no request")));
        let mut batch = frame(None, "e", &[1]);
        batch["input_ids"] = json!([[1], [2]]);
        let batch = answer(batch).await;
        assert!(batch.is_err_and(|text| text.contains("one prompt and one sample")));
    });
    let over_http = post(world.addr, "/generate", &call(&id, Some("c"), "d", &[40]));
    assert_eq!(over_http.status, 200, "{}", over_http.body);
    world.wait_until_idle();
}

/// A server that keeps at most two sessions, in at most 4 KiB.
fn small_world() -> World {
    World::with(|_, config| {
        config.sessions_max_count = 2;
        config.sessions_max_bytes = 4096;
    })
}

#[test]
fn invalid_sessions_are_refused_by_name_and_sessions_are_limited() {
    let world = small_world();
    let table = [
        (json!({}), "capacity_of_str_len is missing"),
        (
            json!({"capacity_of_str_len": 0}),
            "capacity_of_str_len is 0",
        ),
        (json!({"capacity_of_str_len": -1}), "capacity_of_str_len"),
        (
            json!({"capacity_of_str_len": 9, "session_id": ""}),
            "session_id is empty",
        ),
        (
            json!({"capacity_of_str_len": 9, "session_id": "x".repeat(300)}),
            "limit is 256",
        ),
        (json!({"capacity_of_str_len": 9, "timeout": -1}), "timeout"),
    ];
    for (body, part) in table {
        check_refused(&world, "/open_session", &body, 400, part);
    }
    let id = open(
        &world,
        &json!({"capacity_of_str_len": 50, "timeout": 1e300}),
    );
    let duplicate = json!({"capacity_of_str_len": 9, "session_id": id});
    check_refused(&world, "/open_session", &duplicate, 400, "is open already");
    open(&world, &json!({"capacity_of_str_len": 100_000}));
    check_refused(
        &world,
        "/open_session",
        &json!({"capacity_of_str_len": 9}),
        503,
        "limit",
    );
    check_refused(
        &world,
        "/close_session",
        &json!({"session_id": "another"}),
        404,
        "not open",
    );
    check_refused(
        &world,
        "/close_session",
        &json!({}),
        400,
        "session_id is missing",
    );
    let closed = post(world.addr, "/close_session", &json!({"session_id": id}));
    assert_eq!(closed.status, 200);
    open(&world, &json!({"capacity_of_str_len": 9}));
    world.wait_until_idle();
}

#[test]
fn invalid_calls_of_sessions_are_refused_by_name_and_their_size_is_limited() {
    let world = small_world();
    let id = open(&world, &json!({"capacity_of_str_len": 50}));
    let tokens = vec![7; 51];
    check_refused(
        &world,
        "/generate",
        &call(&id, None, "a", &tokens),
        400,
        "capacity_of_str_len is 50",
    );
    let foreign = call("someone-elses", None, "a", &[1]);
    check_refused(&world, "/generate", &foreign, 400, "is not open");
    let unknown = call(&id, Some("never"), "a", &[1]);
    check_refused(&world, "/generate", &unknown, 400, "has no request");
    let mut batch = call(&id, None, "a", &[1]);
    batch["input_ids"] = json!([[1], [2]]);
    check_refused(
        &world,
        "/generate",
        &batch,
        400,
        "one prompt and one sample",
    );
    let mut without_rid = call(&id, None, "a", &[1]);
    without_rid["session_params"] = json!({"rid": "a"});
    check_refused(
        &world,
        "/generate",
        &without_rid,
        400,
        "session_params.id is missing",
    );
    // Once the sessions' memory limit is reached, further requests are refused.
    let statuses = (0..10).map(|at| {
        let call = call(&id, None, &format!("r{at}"), &[7; 40]);
        post(world.addr, "/generate", &call).status
    });
    let statuses: Vec<u16> = statuses.collect();
    assert_eq!((statuses[0], statuses[9]), (200, 503), "{statuses:?}");
    world.wait_until_idle();
}

#[test]
fn settings_can_be_changed_while_the_server_runs() {
    let world = World::new();
    let set = |args: Value| {
        let body = json!({ "server_args": args });
        post(world.addr, "/set_internal_state", &body).ok()
    };
    assert_eq!(
        set(json!({"schedule_policy": "lpm"})),
        json!([{"updated": true}])
    );
    assert_eq!(world.stats().schedule_policy, "lpm");
    assert_eq!(
        set(json!({"max_micro_batch_size": 3})),
        json!([{"updated": false}])
    );
    // One unsupported setting rejects all settings of the call.
    let both = json!({"schedule_policy": "fcfs", "max_micro_batch_size": 3});
    assert_eq!(set(both), json!([{"updated": false}]));
    assert_eq!(world.stats().schedule_policy, "lpm");
    let unknown = json!({"server_args": {"schedule_policy": "nobody"}});
    check_refused(&world, "/set_internal_state", &unknown, 400, "nobody");
    check_refused(
        &world,
        "/set_internal_state",
        &json!({}),
        400,
        "server_args is missing",
    );
}

#[test]
fn sessions_need_the_admin_key_if_there_is_one() {
    let world = World::with(|_, config| config.admin_api_key = ApiKey::new("secret").ok());
    for (path, body) in [
        ("/open_session", json!({"capacity_of_str_len": 9})),
        ("/close_session", json!({"session_id": "a"})),
        ("/set_internal_state", json!({"server_args": {}})),
    ] {
        assert_eq!(post(world.addr, path, &body).status, 401, "{path}");
    }
}
