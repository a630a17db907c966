//! Tests of warm-up requests, which generate nothing, and of waiting and running timeouts.

use serde_json::{Value, json};

use crate::dying_engine::{kill, world_with_dying_engine};
use crate::http::{get, post, stream};
use crate::world::World;

fn cached_tokens(world: &World, text: &str) -> (u64, u64) {
    let call = json!({"text": text, "sampling_params": {"max_new_tokens": 1}});
    let meta = post(world.addr, "/generate", &call).ok()["meta_info"].clone();
    let count = |key: &str| meta[key].as_u64().expect("a count");
    (count("cached_tokens"), count("prompt_tokens"))
}

#[test]
fn a_warm_up_over_generate_leaves_its_prompt_in_the_cache() {
    let world = World::new();
    let text = "a system prompt that many requests will begin with";
    let mut call = json!({"text": text, "sampling_params": {"max_new_tokens": 0}});
    let reply = post(world.addr, "/generate", &call).ok();
    assert_eq!(
        (&reply["text"], &reply["output_ids"]),
        (&json!(""), &json!([]))
    );
    let meta = &reply["meta_info"];
    assert_eq!(meta["completion_tokens"], 0);
    assert_eq!(
        meta["finish_reason"],
        json!({"type": "length", "length": 0})
    );
    let (cached, prompt) = cached_tokens(&world, text);
    assert_eq!(cached, prompt - 1);
    call["stream"] = true.into();
    let events = stream(world.addr, "/generate", &call).rest();
    let last = &events.last().expect("one event at least")["meta_info"];
    assert_eq!(last["finish_reason"]["type"], "length");
    assert_eq!(last["completion_tokens"], 0);
    world.wait_until_idle();
}

#[track_caller]
fn check_openai(world: &World, path: &str, call: &mut Value) {
    let reply = post(world.addr, path, call).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length", "{reply}");
    assert_eq!(reply["usage"]["completion_tokens"], 0, "{reply}");
    let prompt_tokens = reply["usage"]["prompt_tokens"].as_u64();
    assert_eq!(reply["usage"]["total_tokens"].as_u64(), prompt_tokens);
    call["stream"] = true.into();
    call["stream_options"] = json!({"include_usage": true});
    let mut events = stream(world.addr, path, call).rest();
    let usage = events.pop().expect("the usage comes last")["usage"].clone();
    assert_eq!(usage["completion_tokens"], 0, "{usage}");
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached.as_u64(), prompt_tokens.map(|tokens| tokens - 1));
    let ends = events
        .iter()
        .filter_map(|event| event["choices"][0]["finish_reason"].as_str());
    assert_eq!(ends.collect::<Vec<_>>(), ["length"]);
}

#[test]
fn warm_ups_work_over_openais_endpoints() {
    let world = World::new();
    let mut completion = json!({"prompt": "one prompt", "max_tokens": 0});
    check_openai(&world, "/v1/completions", &mut completion);
    let messages = json!([{"role": "user", "content": "another prompt"}]);
    let mut chat = json!({"messages": messages, "max_completion_tokens": 0});
    check_openai(&world, "/v1/chat/completions", &mut chat);
    let mut echo =
        json!({"prompt": "a scored prompt", "max_tokens": 0, "echo": true, "logprobs": 0});
    let reply = post(world.addr, "/v1/completions", &echo).ok();
    assert_eq!(reply["choices"][0]["text"], "a scored prompt");
    echo["echo"] = false.into();
    check_openai(&world, "/v1/completions", &mut echo);
    world.wait_until_idle();
}

#[test]
fn time_limits_end_requests_with_503_and_name_the_limit() {
    let world = World::with(|engine, _| {
        engine.max_running_requests = Some(1);
        engine.req_running_timeout_s = Some(600.0);
    });
    let endless = json!({"max_new_tokens": 60000, "ignore_eos": true});
    let runs = json!({"text": "x", "rid": "r", "stream": true, "sampling_params": endless});
    let mut runs = stream(world.addr, "/generate", &runs);
    runs.next_json();
    let waits = json!({"prompt": "y", "max_tokens": 4, "waiting_timeout": 0.2});
    let late = post(world.addr, "/v1/completions", &waits);
    let error = late.json()["error"].clone();
    assert_eq!(
        (late.status, &error["code"]),
        (503, &json!("timeout")),
        "{error}"
    );
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("waited for 200 ms") && message.contains("waiting_timeout"),
        "{message}"
    );
    post(world.addr, "/abort_request", &json!({"rid": "r"})).ok();
    let runs = json!({"text": "z", "running_timeout": 0.2, "sampling_params": endless});
    let long = post(world.addr, "/generate", &runs);
    assert_eq!(long.status, 503, "{}", long.body);
    assert!(long.body.contains("ran for 200 ms"), "{}", long.body);
    world.wait_until_idle();
    let page = get(world.addr, "/metrics").body;
    assert!(page.contains("souffleur_requests_failed_total{code=\"timeout\"}"));
}

#[test]
fn a_request_waits_for_a_restart_no_longer_than_it_may() {
    let (world, _model, fail) = world_with_dying_engine();
    let killer = kill(&world);
    let sampling = json!({"max_new_tokens": 3});
    let waits = json!({"input_ids": [7], "waiting_timeout": 0.1, "sampling_params": sampling});
    // The rebuild waits until this answer has come.
    let late = post(world.addr, "/generate", &waits);
    let code = &late.json()["error"]["code"];
    assert_eq!(
        (late.status, code),
        (503, &json!("timeout")),
        "{}",
        late.body
    );
    fail.send(()).expect("a rebuild");
    let answer = killer.join().expect("the client does not panic");
    assert_eq!(answer.status, 503, "{}", answer.body);
}

#[test]
fn time_limits_must_be_positive_numbers() {
    let world = World::new();
    for limit in [json!(0), json!(-1.0), json!("1"), json!(true)] {
        let call = json!({"text": "x", "waiting_timeout": limit});
        let reply = post(world.addr, "/generate", &call);
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["error"]["param"], "waiting_timeout");
        assert!(
            reply.body.contains("a number of seconds above 0"),
            "{}",
            reply.body
        );
    }
}
