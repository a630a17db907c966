//! Tests of `POST /generate`, the native API of SGLang.

use serde_json::{Value, json};

use crate::http::{post, stream};
use crate::world::World;

fn greedy(max_new_tokens: u32) -> Value {
    json!({"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": true})
}

#[test]
fn one_prompt_gets_one_object_with_meta_info() {
    let world = World::new();
    let call = json!({"text": "The cat", "rid": "mine", "sampling_params": greedy(8)});
    let reply = post(world.addr, "/generate", &call).ok();
    assert!(reply["text"].is_string(), "{reply}");
    assert_eq!(reply["output_ids"].as_array().map(Vec::len), Some(8));
    let meta = &reply["meta_info"];
    assert_eq!(meta["id"], "mine");
    assert_eq!(
        meta["finish_reason"],
        json!({"type": "length", "length": 8})
    );
    assert_eq!(meta["completion_tokens"], 8);
    assert_eq!(meta["cached_tokens"], 0);
    assert!(
        meta["e2e_latency"]
            .as_f64()
            .is_some_and(|seconds| seconds > 0.0),
        "{meta}"
    );
    assert_eq!(meta["input_token_logprobs"], Value::Null);
    let prompt_tokens = meta["prompt_tokens"].as_u64().expect("a count");
    let again = post(world.addr, "/generate", &call).ok();
    assert_eq!(again["output_ids"], reply["output_ids"]);
    assert_eq!(again["meta_info"]["cached_tokens"], prompt_tokens - 1);
    world.wait_until_idle();
}

#[test]
fn batches_and_samples_get_lists_in_order() {
    let world = World::new();
    let batch = json!({
        "input_ids": [[10, 11], [12], [13, 14, 15]],
        "sampling_params": [greedy(2), greedy(3), greedy(0)],
    });
    let replies = post(world.addr, "/generate", &batch).ok();
    let counts = |key: &str| -> Vec<u64> {
        let replies = replies.as_array().expect("a list").iter();
        replies
            .map(|reply| reply["meta_info"][key].as_u64().expect("a count"))
            .collect()
    };
    assert_eq!(counts("prompt_tokens"), [2, 1, 3]);
    assert_eq!(counts("completion_tokens"), [2, 3, 0]);
    let samples = json!({
        "text": "x", "rid": "s",
        "sampling_params": {"n": 2, "max_new_tokens": 6, "sampling_seed": 3, "ignore_eos": true},
    });
    let samples = post(world.addr, "/generate", &samples).ok();
    let ids = |index: usize| &samples[index]["meta_info"]["id"];
    assert_eq!((ids(0), ids(1)), (&json!("s-0"), &json!("s-1")));
    let second = json!({
        "text": "x", "sampling_params": {"max_new_tokens": 6, "sampling_seed": 4, "ignore_eos": true},
    });
    let second = post(world.addr, "/generate", &second).ok();
    assert_eq!(second["output_ids"], samples[1]["output_ids"]);
    world.wait_until_idle();
}

#[test]
fn each_event_repeats_all_output_and_the_last_equals_the_whole_answer() {
    let world = World::new();
    let mut call = json!({"text": "abc", "return_logprob": true, "sampling_params": greedy(12)});
    let whole = post(world.addr, "/generate", &call).ok();
    call["stream"] = true.into();
    let events = stream(world.addr, "/generate", &call).rest();
    let mut tokens = 0;
    for event in &events {
        let so_far = event["output_ids"].as_array().expect("a list").len();
        assert!(so_far >= tokens && event.get("index").is_none(), "{event}");
        assert_eq!(event["meta_info"]["completion_tokens"], so_far);
        tokens = so_far;
    }
    let last = events.last().expect("events");
    assert_eq!(last["text"], whole["text"]);
    assert_eq!(last["output_ids"], whole["output_ids"]);
    let logprobs = "output_token_logprobs";
    assert_eq!(last["meta_info"][logprobs], whole["meta_info"][logprobs]);
    assert_eq!(
        last["meta_info"]["finish_reason"],
        whole["meta_info"]["finish_reason"]
    );
    world.wait_until_idle();
}

#[test]
fn members_of_a_streamed_batch_carry_their_index() {
    let world = World::new();
    let call = json!({"text": ["a", "b"], "stream": true, "sampling_params": greedy(4)});
    let mut ended = [false, false];
    for event in stream(world.addr, "/generate", &call).rest() {
        let index = event["index"].as_u64().expect("an index") as usize;
        ended[index] |= !event["meta_info"]["finish_reason"].is_null();
    }
    assert_eq!(ended, [true, true]);
    world.wait_until_idle();
}

#[test]
fn log_probabilities_cover_the_prompt_and_the_output() {
    let world = World::new();
    let call = json!({
        "input_ids": [10, 11, 12, 13],
        "sampling_params": greedy(3),
        "return_logprob": true,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [7],
        "return_text_in_logprobs": true,
    });
    let meta = post(world.addr, "/generate", &call).ok()["meta_info"].take();
    let input = meta["input_token_logprobs"].as_array().expect("a list");
    let tokens: Vec<&Value> = input.iter().map(|triple| &triple[1]).collect();
    assert_eq!(tokens, [10, 11, 12, 13]);
    assert!(input[0][0].is_null() && input[1][0].is_number() && input[1][2].is_string());
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
    assert_eq!(
        meta["input_top_logprobs"][1].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(
        meta["output_token_logprobs"].as_array().map(Vec::len),
        Some(3)
    );
    // Greedy sampling takes the most likely token.
    assert_eq!(
        meta["output_top_logprobs"][0][0],
        meta["output_token_logprobs"][0]
    );
    assert_eq!(meta["output_token_ids_logprobs"][0][0][1], 7);
    world.wait_until_idle();
}

#[test]
fn an_abort_ends_the_named_request_and_no_other() {
    let world = World::new();
    let long = |rid: &str| json!({"text": "a", "rid": rid, "stream": true, "sampling_params": greedy(60000)});
    let mut named = stream(world.addr, "/generate", &long("a"));
    let mut other = stream(world.addr, "/generate", &long("ab"));
    named.next_json();
    other.next_json();
    let aborted = post(world.addr, "/abort_request", &json!({"rid": "a"})).ok();
    assert_eq!(aborted["aborted"], 1);
    let last = named.rest().pop().expect("events");
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(other.next_json()["meta_info"]["finish_reason"], Value::Null);
    assert_eq!(
        post(world.addr, "/abort_request", &json!({"abort_all": true})).ok()["aborted"],
        1
    );
    let last = other.rest().pop().expect("events");
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(post(world.addr, "/abort_request", &json!({})).status, 400);
    world.wait_until_idle();
}
