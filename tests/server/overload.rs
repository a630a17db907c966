//! Tests of a server that gets more requests than its admission limit.

use serde_json::json;

use crate::http::{post, stream};
use crate::world::World;

#[test]
fn a_full_engine_answers_503_with_retry_after() {
    let world = World::with(|engine, _| engine.max_queued_requests = 1);
    let sampling = json!({"max_new_tokens": 60000, "ignore_eos": true});
    let call = json!({"text": "a", "stream": true, "sampling_params": sampling});
    let mut running = stream(world.addr, "/generate", &call);
    running.next_json();
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let refused = [
        post(world.addr, "/generate", &call),
        post(world.addr, "/v1/completions", &json!({"prompt": "a"})),
        post(world.addr, "/v1/chat/completions", &chat),
    ];
    for response in refused {
        assert_eq!(
            (response.status, response.header("retry-after")),
            (503, Some("1"))
        );
        let error = &response.json()["error"];
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("overloaded"), &json!("service_unavailable_error"))
        );
        assert_eq!(
            error["message"],
            "the engine already has 1 requests, the limit is 1 (--max-queued-requests), and this call exceeds it: try \
             again in 1 s"
        );
    }
    drop(running);
    world.wait_until_idle();
    let sampling = json!({"max_new_tokens": 2});
    post(
        world.addr,
        "/generate",
        &json!({"text": "a", "sampling_params": sampling}),
    )
    .ok();
}

#[test]
fn a_batch_is_admitted_whole_or_not_at_all() {
    let world = World::with(|engine, _| engine.max_queued_requests = 2);
    let sampling = json!({"max_new_tokens": 1});
    let call = json!({"text": ["a", "b", "c"], "sampling_params": sampling});
    // The batch is refused every time, although its first request could finish quickly.
    for _ in 0..20 {
        assert_eq!(post(world.addr, "/generate", &call).status, 503);
    }
    world.wait_until_idle();
}

#[test]
fn prompts_are_counted_by_their_tokens_too() {
    let world = World::with(|engine, _| engine.max_queued_tokens = 100);
    let sampling = json!({"max_new_tokens": 60000, "ignore_eos": true});
    let prompt: Vec<u32> = vec![9; 90];
    let call = json!({"input_ids": prompt, "stream": true, "sampling_params": sampling});
    let mut running = stream(world.addr, "/generate", &call);
    running.next_json();
    let response = post(world.addr, "/generate", &call);
    assert_eq!(
        (response.status, response.header("retry-after")),
        (503, Some("1"))
    );
    let error = &response.json()["error"]["message"];
    assert_eq!(
        *error,
        "the engine already has 90 prompt tokens, the limit is 100 (--max-queued-tokens), and this call exceeds it: \
         try again in 1 s"
    );
    drop(running);
    world.wait_until_idle();
}

#[test]
fn a_stream_that_waits_in_the_queue_is_kept_open_by_comments() {
    let world = World::with(|engine, server| {
        engine.max_running_requests = Some(1);
        server.sse_keep_alive_s = 1;
    });
    let sampling = json!({"max_new_tokens": 60000, "ignore_eos": true});
    let call = json!({"text": "a", "rid": "first", "stream": true, "sampling_params": sampling});
    let mut running = stream(world.addr, "/generate", &call);
    running.next_json();
    let short = json!({"max_new_tokens": 2, "ignore_eos": true});
    let call = json!({"text": "b", "stream": true, "sampling_params": short});
    let mut waiting = stream(world.addr, "/generate", &call);
    assert_eq!(waiting.next_event().as_deref(), Some(": keep-alive"));
    post(world.addr, "/abort_request", &json!({"rid": "first"})).ok();
    let last = waiting.rest().pop().expect("events");
    assert_eq!(last["meta_info"]["completion_tokens"], 2);
    world.wait_until_idle();
}
