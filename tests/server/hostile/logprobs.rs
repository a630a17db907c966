//! Tests of large lists of log probabilities: they are limited, sent only once, and unread ones share a memory budget.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::child::{ChildServer, MIB};
use crate::http::{open, post, stream};
use crate::world::{World, wait_until};

/// The vocabulary size of the tests' model, which is the maximum number of alternatives of a position.
const VOCABULARY: usize = 288;

fn tokens(count: usize) -> Vec<usize> {
    (0..count).map(|index| 2 + index % 250).collect()
}

/// A request for all log probabilities of `prompt_tokens` positions and of `new_tokens` more.
fn everything(prompt_tokens: usize, new_tokens: usize) -> Value {
    json!({
        "input_ids": tokens(prompt_tokens),
        "return_logprob": true,
        "logprob_start_len": 0,
        "top_logprobs_num": 1024,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": true},
    })
}

/// The JSON of all events of a stream, and their bytes.
fn events_of(addr: SocketAddr, path: &str, call: &Value) -> (Vec<Value>, usize) {
    let mut call = call.clone();
    call["stream"] = true.into();
    let mut events = stream(addr, path, &call);
    let (mut values, mut bytes) = (Vec::new(), 0);
    while let Some(data) = events.next_data().filter(|data| data != "[DONE]") {
        bytes += data.len();
        values.push(serde_json::from_str(&data).expect("data is JSON"));
    }
    (values, bytes)
}

fn length(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

#[test]
fn a_small_request_for_more_log_probabilities_than_the_limit_is_refused_before_any_work() {
    let child = ChildServer::start(&[]);
    let mut call = everything(1200, 16);
    call["token_ids_logprob"] = json!(vec![7; 1024]);
    assert!(call.to_string().len() < 10_000);
    let grown = child.growth_bytes(|| {
        for is_streamed in [true, false] {
            call["stream"] = is_streamed.into();
            let refused = post(child.addr, "/generate", &call);
            assert_eq!(refused.status, 400);
            let text = refused.json()["error"]["message"].to_string();
            let entries = 1200 * (1 + VOCABULARY + 1024);
            assert!(text.contains(&entries.to_string()), "{text}");
            assert!(text.contains("limit is 1048576"), "{text}");
        }
    });
    assert!(grown < 16 * MIB, "{grown} bytes");
}

#[test]
fn the_prompts_log_probabilities_come_once_with_the_last_event() {
    let world = World::new();
    let mut call = everything(1000, 48);
    call["token_ids_logprob"] = json!([7, 8]);
    let whole = post(world.addr, "/generate", &call);
    let (events, bytes) = events_of(world.addr, "/generate", &call);
    assert!(events.len() > 8, "{} events", events.len());
    assert!(bytes < 2 * whole.body.len(), "{bytes} bytes");
    let (last, before) = events.split_last().expect("events");
    let (meta, expected) = (&last["meta_info"], &whole.ok()["meta_info"]);
    for list in [
        "input_token_logprobs",
        "input_top_logprobs",
        "input_token_ids_logprobs",
        "output_token_logprobs",
        "output_top_logprobs",
        "output_token_ids_logprobs",
    ] {
        assert!(length(&meta[list]) >= 48, "{list}");
        assert_eq!(length(&meta[list]), length(&expected[list]), "{list}");
    }
    assert_eq!(meta["input_token_logprobs"][999][1], 2 + 999 % 250);
    for event in before {
        let meta = &event["meta_info"];
        assert_eq!(meta["input_token_logprobs"], json!([]));
        assert_eq!(meta["input_top_logprobs"], json!([]));
        let shown = length(&meta["output_token_logprobs"]);
        assert_eq!(
            shown,
            length(&event["output_ids"]),
            "each event has the log probabilities of its tokens"
        );
    }
    world.wait_until_idle();
}

#[test]
fn alternatives_do_not_grow_with_the_square_of_the_output() {
    const NEW_TOKENS: usize = 400;
    let world = World::new();
    let call = everything(4, NEW_TOKENS);
    let (events, bytes) = events_of(world.addr, "/generate", &call);
    let last = events.last().expect("events");
    assert_eq!(
        length(&last["meta_info"]["output_top_logprobs"]),
        NEW_TOKENS
    );
    // An alternative takes 25 bytes. If every event repeated all earlier ones, the stream would be 200 times as large.
    assert!(bytes < 60 * NEW_TOKENS * VOCABULARY, "{bytes} bytes");
    world.wait_until_idle();
}

fn few_entries() -> World {
    World::with(|engine, _| engine.max_logprob_entries = 2000)
}

#[test]
fn an_accumulated_answer_ends_with_an_error_beyond_the_limit() {
    let world = few_entries();
    let call = everything(4, 60_000);
    let refused = post(world.addr, "/generate", &call);
    assert_eq!(refused.status, 400);
    let text = refused.json()["error"]["message"].to_string();
    assert!(text.contains("limit is 2000"), "{text}");
    let (events, _) = events_of(world.addr, "/generate", &call);
    let text = events.last().expect("events")["error"]["message"].to_string();
    assert!(text.contains("limit is 2000"), "{text}");
    world.wait_until_idle();
    assert!(world.stats().steps < 60_000, "the requests ran to the end");
}

#[test]
fn the_samples_of_a_call_share_the_limit() {
    let world = few_entries();
    let sampling = json!({"max_new_tokens": 60, "ignore_eos": true, "n": 1});
    let mut call = json!({
        "text": "abc", "return_logprob": true, "top_logprobs_num": 20, "sampling_params": sampling,
    });
    assert_eq!(post(world.addr, "/generate", &call).status, 200);
    call["sampling_params"]["n"] = 4.into();
    assert_eq!(post(world.addr, "/generate", &call).status, 400);
    let call = json!({
        "prompt": "abc", "logprobs": 20, "max_tokens": 60, "ignore_eos": true, "n": 4,
    });
    let refused = post(world.addr, "/v1/completions", &call);
    assert_eq!(refused.status, 400, "{}", refused.body);
    world.wait_until_idle();
}

#[test]
fn incremental_streams_are_not_limited() {
    let world = few_entries();
    let call = json!({
        "messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 20,
        "max_tokens": 300, "ignore_eos": true,
    });
    let (events, _) = events_of(world.addr, "/v1/chat/completions", &call);
    let shown = events
        .iter()
        .map(|event| length(&event["choices"][0]["logprobs"]["content"]));
    assert_eq!(shown.sum::<usize>(), 300);
    world.wait_until_idle();
}

#[test]
fn a_long_echo_is_streamed_in_small_chunks() {
    let world = World::new();
    let call = json!({
        "prompt": tokens(2000), "echo": true, "logprobs": 20, "max_tokens": 1, "ignore_eos": true,
    });
    let whole = post(world.addr, "/v1/completions", &call).ok();
    let (events, _) = events_of(world.addr, "/v1/completions", &call);
    let largest = events.iter().map(|event| event.to_string().len()).max();
    assert!(largest < Some(MIB / 4), "{largest:?} bytes");
    let joined = |list: &str| -> Vec<Value> {
        let lists = events
            .iter()
            .map(|event| &event["choices"][0]["logprobs"][list]);
        lists
            .flat_map(|list| list.as_array().cloned().unwrap_or_default())
            .collect()
    };
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            joined(list).len(),
            length(&whole["choices"][0]["logprobs"][list]),
            "{list}"
        );
    }
    assert_eq!(
        json!(joined("text_offset")),
        whole["choices"][0]["logprobs"]["text_offset"]
    );
    world.wait_until_idle();
}

/// If a worker wrote a large answer without yielding, the next event of its other stream would carry many tokens.
#[test]
fn a_large_answer_does_not_hold_up_another_stream_of_its_worker() {
    const CHANNEL_EVENTS: usize = 256;
    let world = World::with(|engine, server| {
        engine.client_channel_events = CHANNEL_EVENTS;
        server.workers = 1;
    });
    let endless = json!({
        "prompt": "a", "stream": true, "max_tokens": 60_000, "ignore_eos": true, "return_token_ids": true,
    });
    let mut events = stream(world.addr, "/v1/completions", &endless);
    let is_served = AtomicBool::new(false);
    let (mut largest, mut seen) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut call = everything(3500, 1);
            call["return_text_in_logprobs"] = true.into();
            let large = crate::http::read_response(open(world.addr, "/generate", &call));
            assert_eq!(large.status, 200);
            assert!(large.body.len() > 16 * MIB, "{} bytes", large.body.len());
            is_served.store(true, Ordering::Release);
        });
        while !is_served.load(Ordering::Acquire) {
            let at_once = length(&events.next_json()["choices"][0]["token_ids"]);
            largest = largest.max(at_once);
            seen += at_once;
        }
    });
    assert!(seen > 0);
    assert!(
        largest <= CHANNEL_EVENTS / 4,
        "{largest} tokens at once, {seen} in all"
    );
    drop(events);
    world.wait_until_idle();
}

#[test]
fn samples_far_over_the_limit_of_their_call_take_little_memory() {
    let child = ChildServer::start(&[]);
    let mut call = everything(3600, 1);
    call["top_logprobs_num"] = 256.into();
    call["sampling_params"]["n"] = 128.into();
    let refusal = "the limit per call is 1048576";
    let grown = child.growth_bytes(|| {
        let refused = post(child.addr, "/generate", &call);
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains(refusal), "{}", refused.body);
        call["stream"] = true.into();
        let text = post(child.addr, "/generate", &call).body;
        assert!(text.contains(refusal), "{} bytes", text.len());
    });
    assert!(grown < 128 * MIB, "{grown} bytes");
}

#[test]
fn unread_answers_share_a_budget() {
    let child = ChildServer::start(&["--max-answers-bytes", "67108864"]);
    let mut call = everything(3000, 1);
    call["top_logprobs_num"] = 256.into();
    let unread = || {
        let client = open(child.addr, "/generate", &call);
        let peeked = client.peek(&mut [0]).expect("the answer begins");
        assert_eq!(peeked, 1);
        client
    };
    let unread_answers = [unread(), unread()];
    let refused = post(child.addr, "/generate", &call);
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1"))
    );
    let small = post(child.addr, "/generate", &everything(5, 1));
    assert_eq!(small.status, 200, "{}", small.body);
    drop(unread_answers);
    wait_until("the memory is released", || {
        post(child.addr, "/generate", &call).status == 200
    });
}
