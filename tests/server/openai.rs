//! Tests of `POST /v1/completions` and `POST /v1/chat/completions`.

use serde_json::{Value, json};

use crate::http::{post, stream};
use crate::world::World;

fn joined(events: &[Value], text: impl Fn(&Value) -> &Value) -> String {
    let choices = events
        .iter()
        .flat_map(|event| event["choices"].as_array().expect("a list"));
    choices.filter_map(|choice| text(choice).as_str()).collect()
}

#[test]
fn a_streamed_completion_equals_the_whole_one() {
    let world = World::new();
    let mut call = json!({"prompt": "hello", "temperature": 0, "logprobs": 2, "max_tokens": 12});
    let whole = post(world.addr, "/v1/completions", &call).ok();
    assert_eq!(
        (&whole["object"], &whole["model"]),
        (&json!("text_completion"), &json!("tiny"))
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    call["stream"] = true.into();
    call["stream_options"] = json!({"include_usage": true});
    let mut events = stream(world.addr, "/v1/completions", &call).rest();
    let usage = events.pop().expect("events");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(
        usage["usage"]["total_tokens"],
        whole["usage"]["total_tokens"]
    );
    assert_eq!(
        joined(&events, |choice| &choice["text"]),
        whole["choices"][0]["text"]
    );
    let mut tokens = Vec::new();
    let mut offsets = Vec::new();
    for event in &events {
        let logprobs = &event["choices"][0]["logprobs"];
        tokens.extend(
            logprobs["tokens"]
                .as_array()
                .expect("a list")
                .iter()
                .cloned(),
        );
        offsets.extend(
            logprobs["text_offset"]
                .as_array()
                .expect("a list")
                .iter()
                .cloned(),
        );
    }
    assert_eq!(json!(tokens), whole["choices"][0]["logprobs"]["tokens"]);
    assert_eq!(
        json!(offsets),
        whole["choices"][0]["logprobs"]["text_offset"]
    );
    world.wait_until_idle();
}

#[test]
fn a_tokens_log_probability_is_equal_in_both_lists() {
    let world = World::new();
    let call =
        json!({"prompt": "abc", "echo": true, "temperature": 0, "logprobs": 3, "max_tokens": 8});
    let reply = post(world.addr, "/v1/completions", &call).ok();
    let logprobs = &reply["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("a list");
    for (index, token) in tokens.iter().enumerate().skip(1) {
        let name = token.as_str().expect("a text");
        let alone = &logprobs["token_logprobs"][index];
        assert!(alone.is_number(), "{logprobs}");
        assert_eq!(alone, &logprobs["top_logprobs"][index][name], "{index}");
    }
    world.wait_until_idle();
}

#[test]
fn an_echo_with_no_new_tokens_scores_the_prompt() {
    let world = World::new();
    let call = json!({"prompt": "hé", "echo": true, "logprobs": 1, "max_tokens": 0});
    let reply = post(world.addr, "/v1/completions", &call).ok();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("hé"), &json!("length"))
    );
    assert_eq!(reply["usage"]["completion_tokens"], 0);
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("a list");
    assert_eq!(json!(tokens.len()), reply["usage"]["prompt_tokens"]);
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert!(logprobs["token_logprobs"][1].is_number(), "{logprobs}");
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1]));
    assert_eq!(
        logprobs["tokens"],
        json!(["h", "bytes:\\xc3", "bytes:\\xa9"])
    );
    world.wait_until_idle();
}

#[test]
fn prompts_and_samples_are_choices_in_order() {
    let world = World::new();
    let call =
        json!({"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "seed": 1, "ignore_eos": true});
    let reply = post(world.addr, "/v1/completions", &call).ok();
    let choices = reply["choices"].as_array().expect("a list");
    let indices: Vec<&Value> = choices.iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(reply["usage"]["completion_tokens"], 12);
    world.wait_until_idle();
}

#[test]
fn a_streamed_chat_equals_the_whole_one() {
    let world = World::new();
    let mut call = json!({
        "model": "whatever",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0, "logprobs": true, "top_logprobs": 1, "max_completion_tokens": 10,
    });
    let whole = post(world.addr, "/v1/chat/completions", &call).ok();
    assert_eq!(
        (&whole["object"], &whole["model"]),
        (&json!("chat.completion"), &json!("tiny"))
    );
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list");
    assert_eq!(json!(content.len()), whole["usage"]["completion_tokens"]);
    assert_eq!(content[0]["token"], content[0]["top_logprobs"][0]["token"]);
    call["stream"] = true.into();
    let events = stream(world.addr, "/v1/chat/completions", &call).rest();
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    let text = joined(&events, |choice| &choice["delta"]["content"]);
    assert_eq!(json!(text), message["content"]);
    let last = events.last().expect("events");
    assert_eq!(
        last["choices"][0]["finish_reason"],
        whole["choices"][0]["finish_reason"]
    );
    let tokens: usize = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(tokens, content.len());
    world.wait_until_idle();
}

#[test]
fn a_chat_without_a_limit_runs_to_the_end_of_the_context() {
    let world = World::with(|engine, _| engine.context_length = Some(64));
    let call = json!({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true});
    let reply = post(world.addr, "/v1/chat/completions", &call).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let total = reply["usage"]["total_tokens"].as_u64().expect("a count");
    // Like SGLang's, the limit leaves the last positions of the context unused.
    assert!((60..=64).contains(&total), "{reply}");
    world.wait_until_idle();
}

/// SGLang's `bench_serving --cache-report` reads the numbers from this extension.
#[test]
fn cached_tokens_are_in_sglangs_extension_if_requested() {
    let world = World::new();
    let messages = json!([{"role": "user", "content": "hello"}]);
    let calls = [
        ("/v1/completions", json!({"prompt": "hello"})),
        ("/v1/chat/completions", json!({"messages": messages})),
    ];
    for (path, mut call) in calls {
        call["max_tokens"] = 2.into();
        let plain = post(world.addr, path, &call).ok();
        assert!(plain.get("sglext").is_none(), "{plain}");
        call["return_cached_tokens_details"] = true.into();
        let whole = post(world.addr, path, &call).ok();
        let cached = &whole["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64() > Some(0), "{whole}");
        let extension = json!({"cached_tokens_details": {"device": cached, "host": 0}});
        assert_eq!(whole["sglext"], extension);
        call["stream"] = true.into();
        let mut events = stream(world.addr, path, &call).rest();
        let last = events.pop().expect("events");
        assert_eq!(
            (&last["choices"], &last["sglext"]),
            (&json!([]), &extension)
        );
        assert!(events.iter().all(|event| event.get("sglext").is_none()));
    }
    world.wait_until_idle();
}
