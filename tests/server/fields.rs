//! Tests that each field that OpenAI, Anthropic, Ollama, vLLM, SGLang and llama.cpp document for an endpoint is read, refused
//! by its name, or ignored, as docs/api.md says.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::http::{Response, get, post};
use crate::world::World;

/// The documented fields, by endpoint and source.
fn documented() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let json = include_str!("../fixtures/request_fields.json");
    serde_json::from_str(json).expect("the fixture is JSON")
}

/// The names of the fields in a row of the table in docs/api.md.
fn row(name: &str) -> BTreeSet<&'static str> {
    let document = include_str!("../../docs/api.md");
    let start = format!("| {name} |");
    let row = document.lines().find(|line| line.starts_with(&start));
    let row = row.unwrap_or_else(|| panic!("docs/api.md has no row of {name} fields"));
    row.split('`').skip(1).step_by(2).collect()
}

/// A minimal valid body for an endpoint.
fn body(endpoint: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hello"}]);
    match endpoint {
        "/v1/chat/completions" => json!({"messages": messages, "max_tokens": 1}),
        "/v1/completions" => json!({"prompt": "hello", "max_tokens": 1}),
        "/v1/responses" => json!({"input": "hello", "max_output_tokens": 1}),
        "/v1/messages" => json!({"model": "m", "messages": messages, "max_tokens": 1}),
        "/v1/messages/count_tokens" => json!({"model": "m", "messages": messages}),
        "/v1/embeddings" => json!({"input": "hello"}),
        "/infill" => json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 1}),
        "/v1/score" => json!({"query": "a", "items": ["b"], "label_token_ids": [5]}),
        "/v1/rerank" => json!({"query": "a", "documents": ["b"]}),
        "/generate" => json!({"text": "hello", "sampling_params": {"max_new_tokens": 1}}),
        "/v1/responses/input_tokens" => json!({"input": "hello"}),
        "/tokenize" | "/apply-template" => json!({"messages": messages}),
        "/detokenize" => json!({"tokens": [5]}),
        "/api/chat" => json!({"model": "scripted", "messages": messages}),
        "/api/generate" => json!({"model": "scripted", "prompt": "hello"}),
        "/api/embed" => json!({"model": "scripted", "input": "hello"}),
        "/api/embeddings" => json!({"model": "scripted", "prompt": "hello"}),
        "/api/show" => json!({"model": "scripted"}),
        "/abort_request" => json!({"rid": "none"}),
        "/close_session" => json!({"session_id": "none"}),
        "/set_internal_state" => json!({"server_args": {}}),
        "/open_session" => json!({"capacity_of_str_len": 1}),
        "/pause_generation" | "/continue_generation" | "/set_policy" => json!({}),
        other => panic!("{other} has no body here"),
    }
}

/// The canonical endpoint of a path.
fn canonical(path: &str) -> &str {
    match path {
        "/responses" => "/v1/responses",
        "/v1/tokenize" => "/tokenize",
        "/v1/detokenize" => "/detokenize",
        "/rerank" | "/v2/rerank" => "/v1/rerank",
        path => path,
    }
}

/// Whether an answer refuses a field by its name, in `param` or in the message.
fn names(answer: &Response, field: &str) -> bool {
    // An answer in lines of JSON is no JSON.
    if answer.status != 400 {
        return false;
    }
    let error = &answer.json()["error"];
    let param = error["param"].as_str().unwrap_or_default();
    // An error of Ollama's endpoints is only a text.
    let message = error.as_str().or_else(|| error["message"].as_str());
    let message = message.unwrap_or_default();
    param.starts_with(field) || message.contains(field)
}

#[test]
fn every_documented_field_is_read_or_refused_by_name_or_ignored_as_the_document_says() {
    let world = World::scripted(&[("hello", "Hello to you.")]);
    let (ignored, ignored_by_ollama) = (row("ignored"), row("ignored on /api"));
    let mut unhandled = Vec::new();
    for (endpoint, sources) in documented() {
        let fields: BTreeSet<(&str, &str)> = sources
            .iter()
            .flat_map(|(source, fields)| fields.iter().map(|field| (place(source), field.as_str())))
            .collect();
        for (place, field) in fields {
            // No field accepts all of these values.
            let wrong = [
                json!([{"a": [1]}]),
                json!(7.5),
                json!({"a": 1}),
                json!("x y"),
            ];
            let is_named = wrong.into_iter().any(|wrong| {
                let mut body = body(&endpoint);
                match place {
                    "" => body[field] = wrong,
                    place => body[place][field] = wrong,
                }
                names(&post(world.addr, &endpoint, &body), field)
            });
            // A field of the row `ignored` may be named, too: some endpoints read a field that others ignore.
            let is_ignored = if endpoint.starts_with("/api/") {
                ignored_by_ollama.contains(field)
            } else {
                ignored.contains(field)
            };
            if !is_named && !is_ignored {
                unhandled.push(format!("{endpoint} {field}"));
            }
        }
    }
    assert_eq!(unhandled, Vec::<String>::new());
    world.wait_until_idle();
}

#[test]
fn every_endpoint_that_takes_a_body_is_tested() {
    let world = World::scripted(&[("hello", "Hello to you.")]);
    let document = get(world.addr, "/openapi.json").ok();
    let paths = document["paths"].as_object().expect("paths");
    let with_body = paths
        .iter()
        .filter(|(_, item)| !item["post"]["requestBody"].is_null());
    let with_body: BTreeSet<&str> = with_body.map(|(path, _)| canonical(path)).collect();
    assert!(with_body.contains("/generate"), "{with_body:?}");
    let tested = documented();
    let left_out: Vec<&str> = with_body
        .into_iter()
        .filter(|path| !tested.contains_key(*path))
        .collect();
    assert_eq!(left_out, Vec::<&str>::new());
}

/// The name of the object in the body that contains a source's fields; empty if the body itself contains them.
fn place(source: &str) -> &str {
    source.split_once(", in ").map_or("", |(_, place)| place)
}

#[test]
fn refused_fields_accept_only_their_defaults() {
    let world = World::scripted(&[("hello", "Hello to you.")]);
    let refused = row("refused");
    let documented = documented();
    for endpoint in ["/v1/chat/completions", "/v1/messages", "/generate"] {
        let of_endpoint = documented[endpoint]
            .iter()
            .filter(|(source, _)| place(source).is_empty());
        let fields: BTreeSet<&String> = of_endpoint.flat_map(|(_, fields)| fields).collect();
        let refused_fields: Vec<_> = fields
            .into_iter()
            .filter(|field| refused.contains(field.as_str()))
            .collect();
        let mut nulls = body(endpoint);
        for &field in &refused_fields {
            nulls[field] = Value::Null;
        }
        assert_eq!(post(world.addr, endpoint, &nulls).status, 200, "{endpoint}");
    }
    for (endpoint, field, value, expected) in [
        ("/v1/messages", "mcp_servers", json!([]), 400),
        ("/v1/chat/completions", "web_search_options", json!({}), 400),
        ("/v1/chat/completions", "allowed_token_ids", json!([]), 400),
        ("/v1/chat/completions", "bad_words", json!([]), 200),
        ("/v1/chat/completions", "length_penalty", json!(1.0), 200),
        ("/v1/chat/completions", "length_penalty", json!(1.1), 400),
        ("/v1/completions", "add_special_tokens", json!(true), 200),
        ("/v1/completions", "add_special_tokens", json!(false), 400),
        ("/v1/completions", "n_probs", json!(0), 200),
        ("/generate", "lora_path", json!([null]), 200),
        ("/v1/responses", "background", json!(false), 200),
        ("/v1/responses", "messages", json!([]), 400),
        ("/v1/embeddings", "embd_normalize", json!(-1), 400),
        ("/v1/chat/completions", "parse_tool_calls", json!(true), 200),
        (
            "/v1/chat/completions",
            "parse_tool_calls",
            json!(false),
            400,
        ),
        ("/v1/completions", "max_completion_tokens", json!(1), 200),
        ("/tokenize", "parse_special", json!(true), 200),
        ("/tokenize", "parse_special", json!(false), 400),
        (
            "/tokenize",
            "documents",
            json!([{"title": "a", "text": "b"}]),
            400,
        ),
        ("/tokenize", "logprobs", json!(true), 200),
    ] {
        let mut body = body(endpoint);
        body[field] = value.clone();
        let answer = post(world.addr, endpoint, &body);
        assert_eq!(
            answer.status, expected,
            "{endpoint} {field} {value}: {}",
            answer.body
        );
        assert!(expected == 200 || names(&answer, field), "{}", answer.body);
    }
    let alone = json!({"prompt": "hello", "max_completion_tokens": 1});
    let answer = post(world.addr, "/v1/completions", &alone);
    assert!(names(&answer, "max_completion_tokens"), "{}", answer.body);
    let mut body = body("/generate");
    body["sampling_params"]["stop_regex"] = json!([]);
    let answer = post(world.addr, "/generate", &body);
    assert!(names(&answer, "stop_regex"), "{}", answer.body);
    world.wait_until_idle();
}
