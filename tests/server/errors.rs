//! Tests of bad input: tables with the expected status, parameter and message.

use serde_json::{Value, json};
use souffleur::server::ServerConfig;

use crate::http::{Response, get, post, post_text, send};
use crate::world::World;

#[track_caller]
fn check(response: &Response, status: u16, param: Value, message: &str) {
    let error = &response.json()["error"];
    assert_eq!(response.status, status, "{error}");
    assert_eq!(error["param"], param, "{error}");
    let text = error["message"].as_str().expect("errors have a message");
    assert!(text.contains(message), "{text:?} has no {message:?}");
    assert!(
        error["type"].is_string() && error["code"].is_string(),
        "{error}"
    );
}

#[test]
fn malformed_requests_get_openais_error_object() {
    let config = ServerConfig {
        max_body_bytes: 100,
        body_timeout_s: 1,
        ..ServerConfig::default()
    };
    let world = World::without_engine(config);
    let addr = world.addr;
    check(&get(addr, "/nothing"), 404, Value::Null, "/nothing");
    let wrong = get(addr, "/generate");
    check(&wrong, 405, Value::Null, "use POST");
    assert_eq!(wrong.header("allow"), Some("POST"));
    check(
        &post(addr, "/health", &json!({})),
        405,
        Value::Null,
        "use GET",
    );
    check(
        &post_text(addr, "/generate", "{\"a\""),
        400,
        Value::Null,
        "not valid JSON",
    );
    check(
        &post_text(addr, "/generate", "[1]"),
        400,
        Value::Null,
        "not a JSON object",
    );
    check(
        &post_text(addr, "/generate", ""),
        400,
        Value::Null,
        "not valid JSON",
    );
    let long = "x".repeat(101);
    check(
        &post_text(addr, "/generate", &long),
        413,
        Value::Null,
        "larger than 100 bytes",
    );
    let head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json\r\n";
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n65\r\n{long}\r\n0\r\n\r\n");
    check(
        &send(addr, &chunked),
        413,
        Value::Null,
        "larger than 100 bytes",
    );
    let unfinished = format!("{head}Content-Length: 50\r\n\r\n{{");
    check(&send(addr, &unfinished), 408, Value::Null, "within 1 s");
}

/// Checks a table of body, parameter and message; the same body with `stream` must get the same error.
#[track_caller]
fn check_all<const N: usize>(path: &str, table: [(Value, Value, &str); N]) {
    let world = World::new();
    for (mut body, param, message) in table {
        check(&post(world.addr, path, &body), 400, param.clone(), message);
        body["stream"] = true.into();
        check(&post(world.addr, path, &body), 400, param, message);
    }
    world.wait_until_idle();
}

#[test]
fn bad_fields_of_the_native_api_are_refused_by_name() {
    let sampling = |sampling: Value| json!({"text": "a", "sampling_params": sampling});
    let long: Vec<u32> = vec![5; crate::world::CONTEXT_TOKENS];
    let table = [
        (json!({}), json!("text"), "text is missing"),
        (json!({"text": 5}), json!("text"), "text is 5"),
        (json!({"text": ""}), Value::Null, "prompt"),
        (json!({"input_ids": [9999]}), Value::Null, "9999"),
        (
            json!({"input_ids": long}),
            Value::Null,
            "the input (65536 tokens) is longer than the model's context length (",
        ),
        (
            json!({"text": "a", "lora_path": "x"}),
            json!("lora_path"),
            "not supported",
        ),
        (
            sampling(json!({"temprature": 1})),
            json!("temprature"),
            "temprature",
        ),
        (
            sampling(json!({"max_new_tokens": -1})),
            json!("max_new_tokens"),
            "-1",
        ),
        (
            sampling(json!({"temperature": -1})),
            json!("temperature"),
            "temperature is -1",
        ),
        (sampling(json!({"top_p": 2})), json!("top_p"), "top_p is 2"),
        (
            sampling(json!({"top_k": -5})),
            json!("top_k"),
            "top_k is -5",
        ),
        (
            sampling(json!({"n": 100_000})),
            json!("n"),
            "limits are 1 to 128",
        ),
    ];
    check_all("/generate", table);
}

#[test]
fn bad_fields_of_completions_are_refused_by_name() {
    let with = |field: &str, value: Value| json!({"prompt": "a", field: value});
    let table = [
        (json!({}), json!("prompt"), "prompt is missing"),
        (with("max_tokens", json!(-3)), json!("max_tokens"), "-3"),
        (
            with("temperature", json!("hot")),
            json!("temperature"),
            "hot",
        ),
        (
            with("logprobs", json!(50)),
            json!("logprobs"),
            "limit is 20",
        ),
        (with("n", json!(0)), json!("n"), "limits are 1 to 128"),
        (
            json!({"prompt": "a", "min_tokens": 9, "max_tokens": 5}),
            json!("min_tokens"),
            "min_tokens is 9, must be at most max_tokens (5)",
        ),
        (
            json!({"prompt": [9999]}),
            Value::Null,
            "prompt contains token id 9999",
        ),
        (with("suffix", json!(5)), json!("suffix"), "suffix is 5"),
        (with("stop", json!(5)), json!("stop"), "stop is 5"),
    ];
    check_all("/v1/completions", table);
}

#[test]
fn bad_fields_of_chats_are_refused_by_name() {
    let chat = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let mut tools = chat(json!("a"));
    tools["tools"] = json!([{}]);
    let with = |field: &str, value: Value| {
        let mut body = chat(json!("a"));
        body[field] = value;
        body
    };
    let table = [
        (json!({}), json!("messages"), "messages is missing"),
        (chat(json!(7)), json!("messages[0].content"), "7"),
        (tools, json!("tools[0].type"), "is missing"),
        (
            with("tool_choice", json!("required")),
            json!("tool_choice"),
            "there are no tools",
        ),
        (
            with("response_format", json!({"type": "xml"})),
            json!("response_format.type"),
            "xml",
        ),
        (
            with("reasoning_effort", json!("huge")),
            json!("reasoning_effort"),
            "huge",
        ),
        (
            with("continue_final_message", json!(true)),
            json!("continue_final_message"),
            "assistant's message",
        ),
        (
            with("audio", json!({"voice": "x"})),
            json!("audio"),
            "not supported",
        ),
    ];
    check_all("/v1/chat/completions", table);
}

#[test]
fn top_p_0_and_unbounded_top_k_are_accepted_by_every_endpoint() {
    let world = World::scripted(&[("hello", "Hello to you.")]);
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (name, value) in [
        ("top_p", json!(0)),
        ("top_p", json!(-0.0)),
        ("top_k", json!(0)),
        ("top_k", json!(-1)),
    ] {
        let mut bodies = [
            (
                "/v1/chat/completions",
                json!({"messages": messages, "max_tokens": 2}),
            ),
            (
                "/v1/completions",
                json!({"prompt": "hello", "max_tokens": 2}),
            ),
            (
                "/v1/messages",
                json!({"model": "m", "messages": messages, "max_tokens": 2}),
            ),
            (
                "/v1/responses",
                json!({"input": "hello", "max_output_tokens": 2}),
            ),
        ];
        for (path, body) in &mut bodies {
            body[name] = value.clone();
            post(world.addr, path, body).ok();
        }
        let sampling = json!({"max_new_tokens": 2, name: value});
        post(
            world.addr,
            "/generate",
            &json!({"text": "hello", "sampling_params": sampling}),
        )
        .ok();
    }
    world.wait_until_idle();
}

#[test]
fn top_p_0_samples_the_most_likely_token_and_top_k_0_equals_minus_1() {
    let world = World::new();
    let answer = |sampling: Value| {
        let body = json!({"input_ids": [5, 6, 7], "sampling_params": sampling});
        post(world.addr, "/generate", &body).ok()["output_ids"].clone()
    };
    let greedy = answer(json!({"max_new_tokens": 24, "ignore_eos": true, "temperature": 0}));
    for seed in 0..3 {
        let zero = json!({"max_new_tokens": 24, "ignore_eos": true, "temperature": 3.0, "top_p": 0, "sampling_seed": seed});
        assert_eq!(answer(zero), greedy);
    }
    let all = |top_k: i32| {
        answer(
            json!({"max_new_tokens": 24, "ignore_eos": true, "temperature": 3.0, "top_k": top_k, "sampling_seed": 9}),
        )
    };
    assert_eq!(all(0), all(-1));
    assert_ne!(all(0), greedy);
    world.wait_until_idle();
}

#[test]
fn a_compressed_body_is_refused_on_every_route_that_reads_one() {
    let world = World::new();
    let document = get(world.addr, "/openapi.json").ok();
    let paths = document["paths"].as_object().expect("paths");
    let mut n_routes = 0;
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            if operation.get("requestBody").is_none() {
                continue;
            }
            n_routes += 1;
            let path = path.replace("{id}", "x");
            let ask = |encoding: &str| {
                let method = method.to_uppercase();
                send(
                    world.addr,
                    &format!(
                        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                         Content-Type: application/json\r\nContent-Encoding: {encoding}\r\nContent-Length: 2\r\n\r\n{{}}"
                    ),
                )
            };
            for encoding in ["gzip", "GZIP", "br", "identity, zstd", "deflate"] {
                let refused = ask(encoding);
                assert_eq!(refused.status, 415, "{method} {path}: {}", refused.body);
                assert_eq!(refused.header("accept-encoding"), Some("identity"));
                let error = refused.json()["error"].to_string();
                assert!(error.contains("content-encoding is"), "{error}");
            }
            assert_ne!(ask("identity").status, 415, "{method} {path}");
        }
    }
    assert!(n_routes > 15, "{n_routes} routes");
}
