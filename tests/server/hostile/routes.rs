//! Tests of hostile input to routes for agents, embeddings, tokens and sessions: errors name the field, memory is
//! bounded, and no client sees another client's stored data.

use serde_json::{Value, json};

use super::bodies::{BODY_BYTES, check};
use super::child::{ChildServer, MIB};
use crate::http::{Response, delete, get, post, post_text};
use crate::websocket::Client;
use crate::world::{World, block_on};

/// Each route, a field that every body to the route contains, and the fields to test.
const FIELDS: [(&str, &str, &[&str]); 18] = [
    (
        "/v1/responses",
        r#""input": "a""#,
        &[
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "include",
            "text",
            "reasoning",
            "previous_response_id",
            "metadata",
            "prompt_cache_options",
            "max_tool_calls",
            "user",
            "nobody_knows",
        ],
    ),
    (
        "/v1/responses/input_tokens",
        r#""input": "a""#,
        &["input", "tools", "text", "previous_response_id"],
    ),
    (
        "/v1/messages",
        r#""max_tokens": 1, "model": "m""#,
        &[
            "messages",
            "system",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "stop_sequences",
            "metadata",
        ],
    ),
    (
        "/v1/messages/count_tokens",
        r#""model": "m""#,
        &["messages", "system", "tools"],
    ),
    (
        "/v1/embeddings",
        r#""pooling": "cls""#,
        &["input", "dimensions", "encoding_format", "user"],
    ),
    (
        "/infill",
        r#""input_prefix": "a", "input_suffix": "b""#,
        &["prompt", "input_extra", "response_fields", "stop"],
    ),
    (
        "/v1/score",
        r#""apply_softmax": 5"#,
        &["query", "items", "label_token_ids"],
    ),
    (
        "/v1/rerank",
        r#""return_documents": 5"#,
        &[
            "query",
            "documents",
            "texts",
            "top_n",
            "chat_template_kwargs",
        ],
    ),
    (
        "/tokenize",
        r#""add_special_tokens": 5"#,
        &["prompt", "messages", "tools", "content"],
    ),
    (
        "/apply-template",
        r#""messages": [{"role": "user", "content": "a"}]"#,
        &["messages", "tools", "chat_template_kwargs"],
    ),
    ("/detokenize", r#""skip_special_tokens": 5"#, &["tokens"]),
    (
        "/open_session",
        r#""streaming": 5"#,
        &["capacity_of_str_len", "session_id", "timeout"],
    ),
    ("/close_session", r#""nobody_knows": 5"#, &["session_id"]),
    (
        "/generate",
        r#""text": "a""#,
        &["session_params", "input_embeds", "image_data", "prediction"],
    ),
    ("/api/chat", r#""model": "tiny""#, &["messages"]),
    (
        "/api/chat",
        r#""model": "tiny", "messages": [{"role": "user", "content": "a"}]"#,
        &["tools", "options", "format", "think", "keep_alive"],
    ),
    (
        "/api/generate",
        r#""model": "tiny", "prompt": "a""#,
        &["options", "format", "system", "context", "images"],
    ),
    (
        "/api/embed",
        r#""model": "tiny", "dimensions": -1"#,
        &["input", "keep_alive"],
    ),
];

/// Sends each field of each route with a value, in a body that is refused for any value.
fn each_field(value: &str, mut send: impl FnMut(&str, &str, &str)) {
    for (path, others, fields) in FIELDS {
        for name in fields {
            let others = if others.contains(&format!("\"{name}\":")) {
                "\"x\": 0"
            } else {
                others
            };
            let body = format!(r#"{{{others}, "{name}": {value}, "stream": 5}}"#);
            send(path, name, &body);
        }
    }
}

#[test]
fn large_values_take_little_more_memory_than_their_text_in_any_field() {
    let server = ChildServer::start(&["--workers", "1", "--served-model-name", "tiny"]);
    let zeros = format!("[{}0]", "0,".repeat(BODY_BYTES / 2));
    let lists = format!("[{}[]]", "[],".repeat(BODY_BYTES / 3));
    let fields = format!("{{{}\"a\":0}}", "\"a\":0,".repeat(BODY_BYTES / 6));
    for value in [&zeros, &lists, &fields] {
        each_field(value, |path, name, body| check(&server, path, body, name));
    }
}

#[test]
fn values_of_any_depth_and_kind_are_refused_with_a_sentence() {
    let world = World::with(|_, config| config.max_body_bytes = 1 << 20);
    let deep = [("[", "]"), (r#"{"a":"#, "}")].map(|(open, close)| {
        let depth = 100_000;
        format!("{}0{}", open.repeat(depth), close.repeat(depth))
    });
    let wide = "9".repeat(5000);
    let odd = [
        "[[[0]]]",
        "[null]",
        "{\"a\": [{}]}",
        "-1",
        "1e999",
        "-1e999",
        "0.5",
        "18446744073709551616",
        "true",
        "\"\\u0000\"",
        "[\"\\ud800\"]",
        "NaN",
        "[NaN]",
        "[1e999]",
        "",
    ];
    let values = deep
        .iter()
        .map(String::as_str)
        .chain(odd)
        .chain([wide.as_str()]);
    for value in values {
        each_field(value, |path, name, body| {
            let response = post_text(world.addr, path, body);
            check_refusal(&response, &format!("{path}, {name}: {:.80}", value));
        });
    }
    world.wait_until_idle();
}

/// Checks that a request is refused with a short message.
#[track_caller]
fn check_refusal(response: &Response, what: &str) {
    let text = &response.body;
    // 404: a route ignores the field, and the session does not exist. 200: the settings report that nothing changed.
    let is_refused = matches!(response.status, 400 | 404 | 413);
    let is_untouched = response.status == 200 && what.starts_with("/set_internal_state");
    assert!(
        is_refused || is_untouched,
        "{what}: {} {text}",
        response.status
    );
    if is_refused {
        let error = response.json()["error"].take();
        // An error of Ollama's endpoints is only a text.
        let message = error.as_str().or_else(|| error["message"].as_str());
        let message = message.unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(message.len() < 1000, "{what}: {text}");
    }
}

/// A route, a body, and the field that the error names.
type InvalidCall = (&'static str, String, &'static str);

/// A route, the start of a body, and the field whose value ends the body.
const NUMBERS: [(&str, &str, &str); 11] = [
    (
        "/infill",
        r#""input_prefix": "a", "input_suffix": "b", "n_indent": "#,
        "n_indent",
    ),
    (
        "/v1/embeddings",
        r#""input": "a", "dimensions": "#,
        "dimensions",
    ),
    (
        "/v1/embeddings",
        r#""input": "a", "encoding_format": "#,
        "encoding_format",
    ),
    (
        "/v1/score",
        r#""query": "a", "items": ["b"], "label_token_ids": "#,
        "label_token_ids",
    ),
    (
        "/v1/rerank",
        r#""query": "a", "documents": ["b"], "top_n": "#,
        "top_n",
    ),
    (
        "/open_session",
        r#""capacity_of_str_len": "#,
        "capacity_of_str_len",
    ),
    (
        "/v1/messages",
        r#""messages": [{"role": "user", "content": "a"}], "max_tokens": "#,
        "max_tokens",
    ),
    (
        "/v1/responses",
        r#""input": "a", "max_output_tokens": "#,
        "max_output_tokens",
    ),
    (
        "/v1/responses",
        r#""input": "a", "top_logprobs": "#,
        "top_logprobs",
    ),
    (
        "/api/embed",
        r#""model": "tiny", "input": "a", "dimensions": "#,
        "dimensions",
    ),
    (
        "/api/generate",
        r#""model": "tiny", "prompt": "a", "top_logprobs": "#,
        "top_logprobs",
    ),
];

fn invalid_numbers() -> impl Iterator<Item = InvalidCall> {
    NUMBERS.into_iter().flat_map(|(path, start, name)| {
        // The maximum length of an answer may be any large number.
        let large = if name.starts_with("max_") {
            "[]"
        } else {
            "4294967296"
        };
        let values = ["-1", "1.5", "{}", "\"a\"", large];
        values.map(|value| (path, format!("{{{start}{value}}}"), name))
    })
}

/// Input embeddings of one token whose last element is `value`.
fn input_embeds(value: &str) -> String {
    format!("[[{}{value}]]", "0.5,".repeat(63))
}

fn numbers_out_of_range() -> impl Iterator<Item = InvalidCall> {
    let bodies = [
        (
            "/v1/embeddings",
            r#"{"input": "a", "dimensions": 0}"#.to_owned(),
            "dimensions",
        ),
        ("/v1/embeddings", r#"{"input": [[-1]]}"#.to_owned(), "input"),
        (
            "/v1/embeddings",
            r#"{"input": [[1.5]]}"#.to_owned(),
            "input",
        ),
        (
            "/v1/embeddings",
            r#"{"input": [1, 4294967296]}"#.to_owned(),
            "input",
        ),
        (
            "/v1/score",
            r#"{"query": "a", "items": ["b"], "label_token_ids": [4294967295]}"#.to_owned(),
            "label_token_ids",
        ),
        (
            "/v1/score",
            r#"{"query": "a", "items": ["b"], "label_token_ids": [-1]}"#.to_owned(),
            "label_token_ids",
        ),
        (
            "/detokenize",
            r#"{"tokens": [4294967296]}"#.to_owned(),
            "tokens",
        ),
        ("/detokenize", r#"{"tokens": [-1]}"#.to_owned(), "tokens"),
        ("/detokenize", r#"{"tokens": [288]}"#.to_owned(), "tokens"),
        (
            "/open_session",
            r#"{"capacity_of_str_len": 9, "timeout": -1}"#.to_owned(),
            "timeout",
        ),
        (
            "/generate",
            format!(r#"{{"input_embeds": {}}}"#, input_embeds("1e39")),
            "input_embeds",
        ),
        (
            "/generate",
            format!(r#"{{"input_embeds": {}}}"#, input_embeds(&"9".repeat(400))),
            "input_embeds",
        ),
        (
            "/generate",
            format!(r#"{{"input_embeds": {}}}"#, input_embeds("null")),
            "input_embeds",
        ),
        (
            "/generate",
            format!(r#"{{"input_embeds": {}}}"#, input_embeds("\"NaN\"")),
            "input_embeds",
        ),
    ];
    bodies.into_iter()
}

#[test]
fn invalid_numbers_are_refused_by_the_name_of_their_field() {
    let world = World::new();
    for (path, body, name) in invalid_numbers().chain(numbers_out_of_range()) {
        let refused = post_text(world.addr, path, &body);
        let text = &refused.body;
        assert_eq!(refused.status, 400, "{path} {body:.120}: {text}");
        assert!(
            text.contains(name) && text.len() < 1000,
            "{path} {body:.120}: {text}"
        );
    }
    // Numbers of many digits are valid.
    let long = format!(
        r#"{{"input_embeds": {}, "sampling_params": {{"max_new_tokens": 1}}}}"#,
        input_embeds(&format!("0.{}", "3".repeat(5000)))
    );
    assert_eq!(post_text(world.addr, "/generate", &long).status, 200);
    world.wait_until_idle();
}

#[test]
fn unknown_ids_get_the_same_answer() {
    let world = World::scripted(&[("hello", "Hello to you.")]);
    let stored = post(world.addr, "/v1/responses", &json!({"input": "hello"})).ok();
    let not_stored = post(
        world.addr,
        "/v1/responses",
        &json!({"input": "hello", "store": false}),
    )
    .ok();
    let on_socket = block_on(async {
        let client = Client::connect_to(world.addr, "/v1/responses", None).await;
        let mut client = client.expect("a connection");
        client
            .send(json!({"type": "response.create", "input": "hello", "store": false}))
            .await;
        let id = loop {
            let event = client.json().await;
            if event["type"] == "response.completed" {
                break event["response"]["id"].clone();
            }
        };
        // Other clients request the response while its connection is open.
        check_unknown(&world, &id);
        id
    });
    check_unknown(&world, &on_socket);
    check_unknown(&world, &not_stored["id"]);
    check_unknown(&world, &stored["output"][0]["id"]);
    let id = stored["id"].as_str().expect("an id");
    for id in [
        id.to_uppercase(),
        id[..id.len() - 1].to_owned(),
        format!("{id}0"),
        "resp_00000000000000000000000000000000".to_owned(),
        "%00".to_owned(),
        "..%2f..%2fetc".to_owned(),
        "%F0%9F%8E%AD".to_owned(),
        "x".repeat(8000),
    ] {
        check_unknown(&world, &json!(id));
    }
    assert_eq!(get(world.addr, &format!("/v1/responses/{id}")).ok(), stored);
    // Ids that no response can have.
    for (previous, status) in [
        (json!(""), 400),
        (json!(5), 400),
        (json!(["a"]), 400),
        (json!("x".repeat(100_000)), 400),
    ] {
        let body = json!({"input": "hello", "previous_response_id": previous});
        let refused = post(world.addr, "/v1/responses", &body);
        assert_eq!(refused.status, status, "{}", refused.body);
        assert!(refused.body.len() < 1000, "{}", refused.body);
    }
    world.wait_until_idle();
}

/// Checks that every request for a response with this id gets the answer for an unknown id.
#[track_caller]
fn check_unknown(world: &World, id: &Value) {
    let id = id.as_str().expect("an id");
    let path = format!("/v1/responses/{id}");
    let answers = [
        get(world.addr, &path),
        get(world.addr, &format!("{path}?stream=true")),
        get(world.addr, &format!("{path}/input_items")),
        post(world.addr, &format!("{path}/cancel"), &json!({})),
        delete(world.addr, &path),
    ];
    for answer in answers {
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["code"]),
            (404, &json!("response_not_found")),
            "{id}"
        );
        assert!(answer.body.len() < 1000, "{}", answer.body);
    }
    if id.contains('%') || id.len() > 100 {
        return;
    }
    let body = json!({"input": "hello", "previous_response_id": id});
    let refused = post(world.addr, "/v1/responses", &body);
    let code = refused.json()["error"]["code"].clone();
    assert_eq!(
        (refused.status, code),
        (400, json!("previous_response_not_found")),
        "{id}"
    );
    let reference = json!({"input": [{"type": "item_reference", "id": format!("x{id}")}]});
    assert_eq!(
        post(world.addr, "/v1/responses", &reference).status,
        404,
        "{id}"
    );
}

#[test]
fn expired_responses_are_gone() {
    let world = World::scripted_with(&[("hello", "Hello to you.")], |_, config| {
        config.responses_ttl_s = 0;
        config.responses_pin_ttl_s = 600;
    });
    let response = post(world.addr, "/v1/responses", &json!({"input": "hello"})).ok();
    check_unknown(&world, &response["id"]);
    world.wait_until("the response's pin is gone", |stats| stats.soft_pins == 0);
    world.wait_until_idle();
}

#[test]
fn full_stores_take_no_more_memory_than_their_limits() {
    let server = ChildServer::start(&[
        "--responses-max-bytes",
        "4000000",
        "--responses-pin-ttl-s",
        "600",
        "--sessions-max-bytes",
        "1000000",
        "--sessions-max-count",
        "50",
    ]);
    let metadata = json!({"a": "x".repeat(15_000)});
    let store_responses = |count: usize| {
        for _ in 0..count {
            let body = json!({"input": "hello", "metadata": metadata, "max_output_tokens": 1});
            post(server.addr, "/v1/responses", &body).ok();
        }
    };
    // The first 300 responses fill the cache, the allocator's pools and the store.
    store_responses(300);
    let growth = server.growth_bytes(|| store_responses(300));
    assert!(growth < 40 * MIB, "{growth} bytes for 300 responses");
    let (mut opened, mut refused) = (0, 0);
    for number in 0..200 {
        let body = json!({"capacity_of_str_len": 1_000_000, "session_id": format!("s{number}")});
        match post(server.addr, "/open_session", &body).status {
            200 => opened += 1,
            503 => refused += 1,
            status => panic!("status {status}"),
        }
    }
    assert_eq!((opened, refused), (50, 150));
    let filled = (0..100).map(|number| {
        let body = json!({
            "input_ids": vec![7; 10_000], "rid": format!("r{number}"), "session_params": {"id": format!("s{}", number % 50)},
            "sampling_params": {"max_new_tokens": 0},
        });
        post(server.addr, "/generate", &body).status
    });
    let filled: Vec<u16> = filled.collect();
    let n_stored = filled.iter().filter(|status| **status == 200).count();
    assert!((10..30).contains(&n_stored), "{filled:?}");
    assert_eq!(
        post(
            server.addr,
            "/generate",
            &json!({"text": "a", "sampling_params": {"max_new_tokens": 1}})
        )
        .status,
        200
    );
}

#[test]
fn unusual_session_ids_are_accepted() {
    let world = World::new();
    for id in ["\u{0}", "\u{1f3ad}", "../..", "\"", &"x".repeat(256)] {
        let body = json!({"capacity_of_str_len": 9, "session_id": id});
        assert_eq!(post(world.addr, "/open_session", &body).ok(), id);
        let again = post(world.addr, "/open_session", &body);
        assert_eq!(again.status, 400, "{}", again.body);
        for offset in [i64::MIN, i64::MAX] {
            let call = json!({
                "input_ids": [5], "session_params": {"id": id, "offset": offset, "replace": true},
                "sampling_params": {"max_new_tokens": 1},
            });
            assert_eq!(post(world.addr, "/generate", &call).status, 200);
        }
        let closed = post(world.addr, "/close_session", &json!({"session_id": id}));
        assert_eq!((closed.status, closed.body.as_str()), (200, ""));
    }
    world.wait_until_idle();
}

#[test]
fn invalid_settings_change_nothing() {
    let world = World::new();
    let before = world.stats().schedule_policy;
    for args in [
        json!({"schedule_policy": 5}),
        json!({"schedule_policy": null, "radix_eviction_policy": 0.5}),
        json!({"schedule_policy": "lpm", "x": 1e300}),
        json!({"schedule_policy": "lpm", "radix_eviction_policy": "nobody"}),
        json!({"schedule_policy": ["lpm"]}),
        json!({"SCHEDULE_POLICY": "lpm"}),
        json!({"": ""}),
        json!([]),
        json!("schedule_policy"),
    ] {
        let answer = post(
            world.addr,
            "/set_internal_state",
            &json!({"server_args": args}),
        );
        let is_refused = answer.status == 400 || answer.json() == json!([{"updated": false}]);
        assert!(is_refused, "{args}: {} {}", answer.status, answer.body);
        assert_eq!(world.stats().schedule_policy, before, "{args}");
    }
}
