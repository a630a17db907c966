//! Tests of hostile parameters: lists that each prompt of a batch would copy, long names, and unsupported fields.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Map, Value, json};
use souffleur::error::RequestError;
use souffleur::request::{Event, GenerateRequest, Prompt};
use souffleur::state::cache::namespace::Namespace;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;

use super::child::{ChildServer, MIB};
use crate::http::{post, stream};
use crate::world::{World, block_on};

/// The maximum number of prompts of a call.
const PROMPTS: usize = 1024;

/// A body of many short prompts with these fields.
fn batch(fields: Value) -> Value {
    let mut body = json!({ "text": vec!["a"; PROMPTS] });
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Posts a body whose refusal must be short and contain `words`.
#[track_caller]
fn refused(server: &ChildServer, path: &str, body: &Value, words: &str) {
    let response = post(server.addr, path, body);
    let text = &response.body;
    assert_eq!(response.status, 400, "{text}");
    assert!(text.contains(words) && text.len() < 1000, "{text}");
}

fn zeros() -> Vec<u32> {
    vec![0; 20_000]
}

fn biases() -> Map<String, Value> {
    Map::from_iter((0..20_000).map(|token| (token.to_string(), json!(1))))
}

/// Checks that each body is refused with a message that contains its words, and takes little memory.
fn check_refused<const N: usize>(path: &str, table: [(Value, &str); N]) {
    let server = ChildServer::start(&["--workers", "1"]);
    for (body, words) in table {
        let growth = server.growth_bytes(|| refused(&server, path, &body, words));
        assert!(growth < 8 * MIB, "{words}: {growth} bytes");
    }
}

#[test]
fn lists_of_a_batch_are_bounded_before_they_are_multiplied() {
    let zeros = zeros();
    let biases = biases();
    let sampling = |fields: Value| batch(json!({ "sampling_params": fields }));
    let table = [
        (
            sampling(json!({ "stop_token_ids": zeros })),
            "stop_token_ids has 20000 ids, limit is 1024",
        ),
        (
            sampling(json!({ "logit_bias": biases })),
            "logit_bias has 20000 tokens, limit is 1024",
        ),
        (
            sampling(json!({ "stop": vec!["x"; 20_000] })),
            "stop has 20000 strings, limit is 32",
        ),
        (
            sampling(json!({ "stop": "x".repeat(40_000) })),
            "stop[0] has 40000 bytes, limit is 1024",
        ),
        (
            sampling(json!({ "temperature": zeros })),
            "temperature is a list of 20000 items",
        ),
        (
            sampling(json!({ "x".repeat(40_000): zeros })),
            "unknown sampling parameter",
        ),
        (
            batch(json!({ "token_ids_logprob": zeros })),
            "token_ids_logprob has 20000 ids, limit is 1024",
        ),
        (
            batch(json!({ "sampling_params": zeros })),
            "sampling_params has 20000 entries",
        ),
        (
            batch(json!({ "return_logprob": zeros })),
            "return_logprob has 20000 entries",
        ),
        (batch(json!({ "rid": zeros })), "rid has 20000 entries"),
        (
            batch(json!({ "priority": zeros })),
            "priority is a list of 20000 items",
        ),
        (
            batch(json!({ "extra_key": "k".repeat(40_000) })),
            "extra_key has 40000 bytes, limit is 256",
        ),
    ];
    check_refused("/generate", table);
}

#[test]
fn lists_of_a_completion_are_bounded_before_they_are_multiplied() {
    let zeros = zeros();
    let biases = biases();
    let completion = |name: &str, value: Value| json!({"prompt": vec!["a"; PROMPTS], name: value});
    let table = [
        (
            completion("stop_token_ids", json!(zeros)),
            "stop_token_ids has 20000 ids",
        ),
        (
            completion("logit_bias", json!(biases)),
            "logit_bias has 20000 tokens",
        ),
        (
            completion("cache_salt", json!("k".repeat(40_000))),
            "cache_salt has 40000 bytes, limit is 256",
        ),
        (
            json!({"prompt": "a".repeat(200_000), "n": 128, "echo": true}),
            "echo of 128 samples",
        ),
    ];
    check_refused("/v1/completions", table);
}

#[test]
fn lists_within_their_limits_are_shared_by_all_prompts() {
    let server = ChildServer::start(&["--workers", "1"]);
    let ids: Vec<u32> = (0..1024).map(|token| token % 200).collect();
    let stops: Vec<String> = (0..32).map(|n| "x".repeat(990 + n)).collect();
    let biases = Map::from_iter((0..200).map(|token| (token.to_string(), json!(1))));
    // The last field is invalid, so the parser reads all other fields before the body is refused.
    let body = batch(json!({
        "sampling_params": {"stop": stops, "stop_token_ids": ids, "logit_bias": biases},
        "return_logprob": true, "token_ids_logprob": ids, "waiting_timeout": "never",
    }));
    let refuse = || refused(&server, "/generate", &body, "waiting_timeout is");
    let growth = server.growth_bytes(refuse);
    assert!(growth < 8 * MIB, "{growth} bytes");
}

#[test]
fn tables_of_stop_strings_are_shared_by_all_prompts() {
    let server = ChildServer::start(&["--workers", "1"]);
    let stops: Vec<String> = (0..32).map(|index| format!("{index:01024}")).collect();
    let sampling = json!({"max_new_tokens": 1, "stop": stops});
    let answers = |body: &Value| {
        let replies = post(server.addr, "/generate", body).ok();
        assert_eq!(replies.as_array().map(Vec::len), Some(PROMPTS));
    };
    // The first call allocates the memory that every batch needs.
    answers(&batch(json!({"sampling_params": {"max_new_tokens": 1}})));
    let body = batch(json!({ "sampling_params": sampling }));
    let growth = server.growth_bytes(|| answers(&body));
    assert!(growth < 32 * MIB, "{growth} bytes");
}

#[test]
fn names_of_namespaces_are_bounded() {
    let server = ChildServer::start(&[]);
    let before = server.resident_bytes();
    for number in 0..40 {
        let key = format!("{number}{}", "k".repeat(2 * MIB));
        let (name, path) = match number % 4 {
            0 => ("extra_key", "/generate"),
            1 => ("cache_salt", "/generate"),
            2 => ("extra_key", "/v1/completions"),
            _ => ("cache_salt", "/v1/chat/completions"),
        };
        let messages = json!([{"role": "user", "content": "a"}]);
        let body = json!({"text": "a", "prompt": "a", "messages": messages, name: key});
        refused(&server, path, &body, "bytes, limit is 256: shorten it");
    }
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 48 * MIB, "{growth} bytes");
    let longest = "k".repeat(256);
    let call = json!({"text": "a", "extra_key": longest, "cache_salt": longest, "sampling_params": {"max_new_tokens": 1}});
    post(server.addr, "/generate", &call).ok();
}

#[test]
fn names_of_namespaces_are_bounded_on_websockets_and_for_hosts() {
    let world = World::new();
    let long = "k".repeat(257);
    block_on(async {
        let address = format!("ws://{}/v1/ws/generate", world.addr);
        let tcp = tokio::net::TcpStream::connect(world.addr).await;
        let (mut socket, _) = client_async(address, tcp.expect("a connection"))
            .await
            .expect("a WebSocket opens");
        let frame = json!({"op": "generate", "rid": "r", "text": "a", "extra_key": long});
        socket
            .send(Message::text(frame.to_string()))
            .await
            .expect("a message sent");
        let answer = socket.next().await.expect("an answer").expect("a frame");
        let answer = answer.to_text().expect("text");
        assert!(
            answer.contains("extra_key has 257 bytes, limit is 256"),
            "{answer}"
        );
        let mut request = GenerateRequest::new(Prompt::Tokens([5, 6].into()));
        request.namespace = Namespace::new(None, Some(&long));
        let mut generation = world.engine().generate(request).expect("a generation");
        let text = "cache_salt has 257 bytes, limit is 256: shorten it".to_owned();
        match generation.next().await {
            Some(Event::Failed(error)) => assert_eq!(error, RequestError::Invalid(text)),
            other => panic!("{other:?} is not a refusal"),
        }
    });
    world.wait_until_idle();
}

#[test]
fn a_websocket_counts_requests_before_it_reads_their_parameters() {
    let server = ChildServer::start(&["--workers", "1", "--ws-max-requests", "4"]);
    let stops: Vec<String> = (0..32).map(|n| "x".repeat(990 + n)).collect();
    let mut call = batch(json!({"sampling_params": {"stop": stops}}));
    call["op"] = "generate".into();
    let growth = server.growth_bytes(|| {
        block_on(async {
            let address = format!("ws://{}/v1/ws/generate", server.addr);
            let tcp = tokio::net::TcpStream::connect(server.addr).await;
            let (mut socket, _) = client_async(address, tcp.expect("a connection"))
                .await
                .expect("a WebSocket opens");
            let frame = Message::text(call.to_string());
            socket.send(frame).await.expect("a message sent");
            let answer = socket.next().await.expect("an answer").expect("a frame");
            let answer = answer.to_text().expect("text");
            assert!(answer.contains("more than 4 requests in"), "{answer}");
        });
    });
    assert!(growth < 8 * MIB, "{growth} bytes");
}

#[test]
fn parameters_without_effect_are_accepted() {
    let world = World::new();
    let sampling = json!({"max_new_tokens": 2, "stop": ""});
    post(
        world.addr,
        "/generate",
        &json!({"text": "a", "sampling_params": sampling}),
    )
    .ok();
    for stop in [json!(""), json!([""]), json!(null), json!([])] {
        let body = json!({"prompt": "a", "max_tokens": 2, "stop": stop});
        let answer = post(world.addr, "/v1/completions", &body).ok();
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
    }
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": true,
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none",
        "modalities": ["text"], "allowed_token_ids": null, "guided_json": null,
    });
    let events = stream(world.addr, "/v1/chat/completions", &chat).rest();
    assert!(!events.is_empty());
    world.wait_until_idle();
}

#[test]
fn unsupported_parameters_are_refused_on_every_endpoint() {
    let world = World::new();
    for name in [
        "stop_regex",
        "bad_words",
        "guided_decoding",
        "allowed_token_ids",
    ] {
        let chat = json!({"messages": [{"role": "user", "content": "a"}], name: "x"});
        let bodies = [
            ("/generate", json!({"text": "a", name: "x"})),
            (
                "/generate",
                json!({"text": "a", "sampling_params": {name: "x"}}),
            ),
            ("/v1/completions", json!({"prompt": "a", name: "x"})),
            (
                "/v1/completions",
                json!({"prompt": "a", "extra_body": {name: "x"}}),
            ),
            ("/v1/chat/completions", chat),
        ];
        for (path, body) in bodies {
            let response = post(world.addr, path, &body);
            let error = &response.json()["error"];
            assert_eq!(
                (response.status, error["code"].as_str()),
                (400, Some("not_supported")),
                "{body}"
            );
            assert_eq!(error["param"], name);
        }
    }
}

#[test]
fn vllms_constraints_are_refused_on_the_native_endpoint_and_in_extra_body() {
    let world = World::new();
    for name in ["guided_json", "guided_regex", "structured_outputs"] {
        let bodies = [
            ("/generate", json!({"text": "a", name: "x"})),
            (
                "/generate",
                json!({"text": "a", "sampling_params": {name: "x"}}),
            ),
            (
                "/v1/completions",
                json!({"prompt": "a", "extra_body": {name: "x"}}),
            ),
        ];
        for (path, body) in bodies {
            let response = post(world.addr, path, &body);
            let error = &response.json()["error"];
            assert_eq!((response.status, &error["param"]), (400, &json!(name)));
            assert_eq!(error["code"], "not_supported", "{body}");
        }
    }
}

#[test]
fn thousands_of_tools_are_refused() {
    let world = World::new();
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let body = json!({
        "messages": [{"role": "user", "content": "a"}], "tools": vec![tool; 10_000],
    });
    let response = post(world.addr, "/v1/chat/completions", &body);
    let error = &response.json()["error"];
    assert_eq!((response.status, &error["param"]), (400, &json!("tools")));
    let text = error["message"].as_str().expect("a text");
    assert!(text.contains("limit is 1024"), "{text}");
}

#[test]
fn arguments_of_earlier_calls_count_as_values_of_the_body() {
    let server = ChildServer::start(&["--max-body-values", "100"]);
    let chat = |values: usize| {
        let arguments = json!({"list": vec![0; values]}).to_string();
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "b"},
        ]})
    };
    post(server.addr, "/v1/chat/completions", &chat(20)).ok();
    let response = post(server.addr, "/v1/chat/completions", &chat(200));
    let param = &response.json()["error"]["param"];
    assert_eq!(response.status, 400);
    assert_eq!(param, "messages[1].tool_calls[0].function.arguments");
}
