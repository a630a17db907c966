//! Tests of Anthropic's `POST /v1/messages` and its count of tokens.

use std::net::SocketAddr;

use serde_json::{Value, json};
use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{Response, get, post, post_text, send, stream};
use crate::world::World;

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const LISBON: &str = r#"{"city": "Lisbon", "days": 3}"#;
const KEY: &str = "sk-of-this-test";

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn weather() -> Value {
    json!({"name": "weather", "description": "The weather of some days.", "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    }})
}

fn ask(question: &str) -> Value {
    json!({
        "model": "scripted", "max_tokens": 1000, "messages": [{"role": "user", "content": question}],
    })
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// A model that reasons, then writes a text and two calls.
fn two_calls() -> World {
    let (lisbon, oslo) = (call("weather", LISBON), call("weather", "{}"));
    let line = format!("<think>\nWhich one?\n</think>\n\nBoth.\n{lisbon}\n{oslo}");
    World::scripted(&[("compare", &line), ("capital", "Paris, of course.")])
}

/// The events of a stream, by name and data.
pub fn events(addr: SocketAddr, body: Value) -> Vec<(String, Value)> {
    let mut events = stream(addr, PATH, &with(body, json!({"stream": true})));
    let mut all = Vec::new();
    while let Some(event) = events.next_event() {
        let (name, data) = event.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        let data = data.strip_prefix("data: ").expect("data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], name.as_str());
        all.push((name, data));
    }
    all
}

/// Assembles a stream as clients do.
pub fn assemble(events: &[(String, Value)]) -> Value {
    let (first, rest) = events.split_first().expect("events");
    assert_eq!(first.0, "message_start");
    let mut message = first.1["message"].clone();
    let mut open: Option<(usize, String)> = None;
    for (name, data) in rest {
        let content = message["content"].as_array_mut().expect("a list");
        match name.as_str() {
            "content_block_start" => {
                assert!(open.is_none(), "blocks do not interleave: {data}");
                assert_eq!(data["index"], content.len());
                open = Some((content.len(), String::new()));
                content.push(data["content_block"].clone());
            }
            "content_block_delta" => {
                let (index, json) = open.as_mut().expect("a block is open");
                assert_eq!(data["index"], *index);
                let delta = &data["delta"];
                let kind = delta["type"].as_str().expect("a type");
                if let Some(part) = delta["partial_json"].as_str() {
                    json.push_str(part);
                    continue;
                }
                let field = kind.strip_suffix("_delta").expect("a delta");
                let more = delta[field].as_str().expect("a text");
                let text = content[*index][field].as_str().expect("a text");
                content[*index][field] = format!("{text}{more}").into();
            }
            "content_block_stop" => {
                let (index, json) = open.take().expect("a block is open");
                assert_eq!(data["index"], index);
                if content[index]["type"] == "tool_use" {
                    // The arguments of a truncated call are invalid JSON, which becomes null.
                    content[index]["input"] = serde_json::from_str(&json).unwrap_or_default();
                }
            }
            "message_delta" => {
                for (name, value) in data["delta"].as_object().expect("an object") {
                    message[name] = value.clone();
                }
                message["usage"] = data["usage"].clone();
            }
            "message_stop" | "ping" => (),
            other => panic!("{other}: {data}"),
        }
    }
    assert!(open.is_none());
    assert_eq!(events.last().expect("events").0, "message_stop");
    message
}

/// Sends a call with and without streaming, and returns the answer without streaming. Both answers must be equal except
/// for ids and for the start of a truncated tool call, which only the stream contains.
fn answer(world: &World, body: Value) -> Value {
    let whole = post(world.addr, PATH, &body).ok();
    let mut streamed = assemble(&events(world.addr, body));
    let blocks = streamed["content"].as_array_mut().expect("a list");
    if blocks
        .pop_if(|block| block["input"].is_null() && block["type"] == "tool_use")
        .is_some()
    {
        assert_eq!(whole["stop_reason"], "max_tokens", "{whole}");
        if blocks.is_empty() {
            blocks.push(json!({"type": "text", "text": ""}));
        }
    }
    streamed["id"] = whole["id"].clone();
    let content = whole["content"].as_array().expect("a list");
    for (index, block) in content.iter().enumerate() {
        // The ids of calls derive from the message's id, which differs.
        if block["type"] == "tool_use" && streamed["content"][index]["id"].is_string() {
            streamed["content"][index]["id"] = block["id"].clone();
        }
    }
    let usage = streamed["usage"].clone();
    streamed["usage"] = whole["usage"].clone();
    assert_eq!(streamed, whole);
    let prompt = |usage: &Value| {
        let number = |name: &str| usage[name].as_u64().expect("a number");
        number("input_tokens") + number("cache_read_input_tokens")
    };
    assert_eq!(prompt(&usage), prompt(&whole["usage"]));
    assert_eq!(usage["output_tokens"], whole["usage"]["output_tokens"]);
    whole
}

#[track_caller]
fn check_error(response: &Response, status: u16, kind: &str, part: &str) {
    assert_eq!(response.status, status, "{}", response.body);
    let body = response.json();
    assert_eq!(
        (&body["type"], &body["error"]["type"]),
        (&json!("error"), &json!(kind))
    );
    let id = response.header("request-id").expect("answers have an id");
    assert!(id.starts_with("req_"), "{id}");
    assert_eq!(body["request_id"], id);
    let text = body["error"]["message"].as_str().expect("a text");
    assert!(text.contains(part), "{text:?} has no {part:?}");
}

#[test]
fn reasoning_text_and_calls_are_blocks_in_their_order() {
    let world = two_calls();
    let body = with(ask("compare"), json!({"tools": [weather()]}));
    let message = answer(&world, body);
    assert!(
        message["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("msg_")),
        "{message}"
    );
    assert_eq!(
        (&message["type"], &message["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["stop_sequence"], Value::Null);
    let content = message["content"].as_array().expect("a list");
    let kinds: Vec<&str> = content
        .iter()
        .filter_map(|block| block["type"].as_str())
        .collect();
    assert_eq!(
        kinds,
        ["thinking", "text", "tool_use", "tool_use"],
        "{message}"
    );
    assert_eq!(
        content[0]["thinking"].as_str().map(str::trim),
        Some("Which one?")
    );
    assert!(
        content[0]["signature"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert_eq!(
        content[1]["text"].as_str().map(str::trim_end),
        Some("Both.")
    );
    assert_eq!(content[2]["name"], "weather");
    assert_eq!(content[2]["input"], json!({"city": "Lisbon", "days": 3}));
    assert_eq!(content[3]["input"], json!({}));
    let ids = [&content[2]["id"], &content[3]["id"]];
    assert!(
        ids.iter()
            .all(|id| id.as_str().is_some_and(|id| id.starts_with("toolu_")))
    );
    assert_ne!(ids[0], ids[1]);
    world.wait_until_idle();
}

#[test]
fn stop_reasons_have_an_order_of_precedence() {
    let world = two_calls();
    let reason = |body: Value| {
        let message = answer(&world, body);
        (
            message["stop_reason"].clone(),
            message["stop_sequence"].clone(),
        )
    };
    assert_eq!(reason(ask("capital")), (json!("end_turn"), Value::Null));
    let stopped = with(ask("capital"), json!({"stop_sequences": ["of", "x"]}));
    let message = answer(&world, stopped.clone());
    assert_eq!(message["content"][0]["text"], "Paris, ");
    assert_eq!(reason(stopped), (json!("stop_sequence"), json!("of")));
    let short = with(ask("capital"), json!({"max_tokens": 1}));
    assert_eq!(reason(short), (json!("max_tokens"), Value::Null));
    // `max_tokens` takes precedence over `tool_use`, and `tool_use` over `stop_sequence`.
    let tools = with(ask("compare"), json!({"tools": [weather()]}));
    let whole = post(world.addr, PATH, &tools).ok();
    let n_tokens = whole["usage"]["output_tokens"].as_u64().expect("a number");
    for max_tokens in 1..n_tokens {
        let cut = with(tools.clone(), json!({"max_tokens": max_tokens}));
        let message = answer(&world, cut);
        assert_eq!(message["stop_reason"], "max_tokens", "after {max_tokens}");
        assert!(!message["content"].as_array().expect("a list").is_empty());
    }
    let single = json!({"type": "auto", "disable_parallel_tool_use": true});
    let message = answer(&world, with(tools, json!({"tool_choice": single})));
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(
        message["content"].as_array().map(Vec::len),
        Some(3),
        "{message}"
    );
    let warm = post(
        world.addr,
        PATH,
        &with(ask("capital"), json!({"max_tokens": 0})),
    )
    .ok();
    assert_eq!(warm["content"], json!([{"type": "text", "text": ""}]));
    assert_eq!(warm["usage"]["output_tokens"], 0);
    world.wait_until_idle();
}

#[test]
fn tool_choice_is_followed() {
    let world = two_calls();
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let clock = json!({"name": "clock", "input_schema": nothing});
    let hosted = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3});
    let tools = json!([hosted, weather(), clock]);
    let ask = |choice: Value| {
        let more = json!({"tools": tools, "tool_choice": choice, "thinking": {"type": "disabled"}});
        with(ask("capital"), more)
    };
    let named = answer(&world, ask(json!({"type": "tool", "name": "clock"})));
    assert_eq!(named["content"][0]["name"], "clock", "{named}");
    assert_eq!(named["stop_reason"], "tool_use");
    let any = answer(&world, ask(json!({"type": "any"})));
    assert_eq!(any["content"][0]["type"], "tool_use", "{any}");
    let none = answer(&world, ask(json!({"type": "none"})));
    assert_eq!(none["content"][0]["text"], "Paris, of course.");
    let refused = [
        (
            json!({"type": "tool", "name": "web_search"}),
            "tool_choice.name is \"web_search\"",
        ),
        (json!({"type": "tool"}), "tool_choice.name is missing"),
        (json!({"type": "some"}), "tool_choice.type is \"some\""),
        (json!("auto"), "tool_choice is \"auto\", must be an object"),
    ];
    for (choice, part) in refused {
        check_error(
            &post(world.addr, PATH, &ask(choice)),
            400,
            "invalid_request_error",
            part,
        );
    }
    world.wait_until_idle();
}

/// The number of prompt tokens that the endpoint counts for a call.
fn count(world: &World, body: &Value) -> u64 {
    let counted = post(world.addr, COUNT, body).ok();
    assert_eq!(
        counted.as_object().map(serde_json::Map::len),
        Some(1),
        "{counted}"
    );
    counted["input_tokens"].as_u64().expect("a number")
}

/// The count equals the usage of the same call, and the prompt is that of the same chat in OpenAI's format.
#[test]
fn counted_tokens_equal_the_usage_of_the_same_call() {
    let world = two_calls();
    let conversation = json!([
        {"role": "user", "content": [{"type": "text", "text": "The weather?"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I look.", "signature": "unsigned"},
            {"type": "redacted_thinking", "data": "AAAA"},
            {"type": "text", "text": "A moment."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lisbon"}},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "And in the capital?"},
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
        ]},
    ]);
    let system = json!([
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]);
    let body = json!({
        "model": "scripted", "max_tokens": 50, "messages": conversation, "system": system,
        "tools": [weather()], "metadata": {"user_id": "x"}, "service_tier": "auto", "unknown_hint": 5,
        "context_management": {"edits": []},
    });
    let message = post(world.addr, PATH, &body).ok();
    let usage = &message["usage"];
    let number = |name: &str| usage[name].as_u64().expect("a number");
    let prompt = number("input_tokens") + number("cache_read_input_tokens");
    assert_eq!(count(&world, &body), prompt);
    assert_eq!(number("cache_creation_input_tokens"), 0);
    // The same conversation in OpenAI's format.
    let chat = json!({"max_tokens": 1, "messages": [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "content": "A moment.", "reasoning_content": "I look.", "tool_calls": [
            {"id": "toolu_1", "type": "function",
             "function": {"name": "weather", "arguments": "{\"city\": \"Lisbon\"}"}}]},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "weather", "content": "sunny"},
        {"role": "user", "content": "And in the capital?"},
    ], "tools": [{"type": "function", "function": {
        "name": "weather", "description": "The weather of some days.", "parameters": weather()["input_schema"],
    }}]});
    let chat = post(world.addr, "/v1/chat/completions", &chat).ok();
    assert_eq!(chat["usage"]["prompt_tokens"], prompt);
    let cached = &chat["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, prompt - 1, "the prompt is the same");
    world.wait_until_idle();
}

#[test]
fn a_final_message_of_the_assistant_is_continued() {
    let world = World::scripted(&[("I am", " a prompter."), ("", "no")]);
    let body = json!({"model": "m", "max_tokens": 20, "messages": [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "I am"},
    ]});
    assert_eq!(answer(&world, body)["content"][0]["text"], " a prompter.");
    let calls = json!({"model": "m", "max_tokens": 20, "messages": [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    ]});
    let refused = post(world.addr, PATH, &calls);
    check_error(
        &refused,
        400,
        "invalid_request_error",
        "send its tool_result",
    );
    assert!(count(&world, &calls) > 0);
    world.wait_until_idle();
}

#[test]
fn thinking_can_be_switched_off_and_hidden() {
    let world = World::scripted(&[("Think", "<think>\nOne and one.\n</think>\n\nTwo.")]);
    let ask = |thinking: Value| with(ask("Think"), json!({"thinking": thinking}));
    for thinking in [
        json!({"type": "enabled", "budget_tokens": 1024}),
        json!({"type": "adaptive"}),
        json!({"type": "adaptive", "display": "updates"}),
    ] {
        let message = answer(&world, ask(thinking));
        assert_eq!(message["content"][0]["type"], "thinking");
        assert_eq!(
            message["content"][1],
            json!({"type": "text", "text": "Two."})
        );
    }
    let hidden = answer(
        &world,
        ask(json!({"type": "adaptive", "display": "omitted"})),
    );
    assert_eq!(hidden["content"][0]["thinking"], "");
    assert_eq!(hidden["content"][1]["text"], "Two.");
    // With thinking disabled, the template adds an empty thinking block to the prompt.
    let on = count(&world, &ask(json!({"type": "adaptive"})));
    let off = count(&world, &ask(json!({"type": "disabled"})));
    assert!(off > on, "{off} {on}");
    for (wrong, part) in [
        (json!({"type": "maybe"}), "thinking.type is \"maybe\""),
        (json!({"budget_tokens": 5}), "thinking.type is missing"),
        (
            json!({"type": "enabled", "budget_tokens": "x"}),
            "thinking.budget_tokens is \"x\"",
        ),
    ] {
        let refused = post(world.addr, PATH, &ask(wrong));
        check_error(&refused, 400, "invalid_request_error", part);
    }
    world.wait_until_idle();
}

#[test]
fn an_answer_follows_the_schema_of_its_output_config() {
    let world = two_calls();
    let schema = json!({
        "type": "object", "properties": {"open": {"enum": [true]}}, "required": ["open"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [
        json!({"output_config": {"format": format, "effort": "low"}}),
        json!({"output_format": format}),
    ] {
        let message = answer(&world, with(ask("capital"), more));
        let text = message["content"][0]["text"].as_str().expect("a text");
        let parsed: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(
            (parsed, &message["stop_reason"]),
            (json!({"open": true}), &json!("end_turn"))
        );
    }
    for (config, part) in [
        (
            json!({"format": {"type": "poem"}}),
            "output_config.format.type is \"poem\"",
        ),
        (
            json!({"format": {"type": "json_schema"}}),
            "output_config.format.schema is missing",
        ),
        (
            json!({"effort": "huge"}),
            "output_config.effort is \"huge\"",
        ),
        (
            json!({"format": {"type": "json_schema", "schema": {"not": {}}}}),
            "not",
        ),
    ] {
        let refused = post(
            world.addr,
            PATH,
            &with(ask("capital"), json!({"output_config": config})),
        );
        check_error(&refused, 400, "invalid_request_error", part);
    }
    world.wait_until_idle();
}

/// Checks that the calls are refused, whole and streamed, with errors that name the fields.
fn check_refused<const N: usize>(cases: [(Value, &str); N]) {
    let world = two_calls();
    for (body, part) in cases {
        check_error(
            &post(world.addr, PATH, &body),
            400,
            "invalid_request_error",
            part,
        );
        let streamed = with(body, json!({"stream": true}));
        check_error(
            &post(world.addr, PATH, &streamed),
            400,
            "invalid_request_error",
            part,
        );
    }
    world.wait_until_idle();
}

#[test]
fn errors_of_invalid_messages_name_the_index_and_field() {
    let messages = |messages: Value| with(ask("x"), json!({"messages": messages}));
    let user = |content: Value| messages(json!([{"role": "user", "content": content}]));
    let assistant = |content: Value| messages(json!([{"role": "assistant", "content": content}]));
    let image = json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]);
    let cases = [
        (messages(json!([])), "messages is empty"),
        (messages(json!(null)), "messages is missing"),
        (messages(json!("hi")), "messages is \"hi\""),
        (
            messages(json!([{"role": "user"}])),
            "messages[0].content is missing",
        ),
        (
            messages(json!([{"content": "x"}])),
            "messages[0].role is missing",
        ),
        (
            messages(json!([{"role": "tool", "content": "x"}])),
            "messages[0].role is \"tool\"",
        ),
        (user(json!(5)), "messages[0].content is 5"),
        (user(json!([])), "messages[0].content is a list of 0"),
        (user(image), "messages[0].content[0].type is \"image\""),
        (
            user(json!([{"type": "text"}])),
            "messages[0].content[0].text is missing",
        ),
        (
            user(json!([{"type": "tool_result"}])),
            "messages[0].content[0].tool_use_id is missing",
        ),
        (
            assistant(json!([{"type": "tool_use", "id": "a"}])),
            "messages[0].content[0].name is missing",
        ),
        (
            assistant(json!([{"type": "tool_use", "id": "a", "name": "f", "input": []}])),
            "messages[0].content[0].input is a list of 0 items",
        ),
    ];
    check_refused(cases);
}

#[test]
fn invalid_calls_are_refused_by_their_field() {
    let mut no_length = ask("x");
    no_length
        .as_object_mut()
        .expect("an object")
        .remove("max_tokens");
    let cases = [
        (no_length, "max_tokens is missing"),
        (
            with(ask("x"), json!({"max_tokens": -1})),
            "max_tokens is -1",
        ),
        (with(ask("x"), json!({"system": 5})), "system is 5"),
        (
            with(ask("x"), json!({"system": [{"type": "image"}]})),
            "system[0].type is \"image\"",
        ),
        (
            with(ask("x"), json!({"tools": [{"name": "f"}]})),
            "tools[0].input_schema is missing",
        ),
        (
            with(ask("x"), json!({"tools": [weather(), weather()]})),
            "tools[1].name is \"weather\"",
        ),
        (with(ask("x"), json!({"tools": "all"})), "tools is \"all\""),
        (
            with(ask("x"), json!({"stop_sequences": 5})),
            "stop_sequences is 5",
        ),
        (with(ask("x"), json!({"n": 2})), "n is not supported"),
        (
            with(ask("x"), json!({"mcp_servers": [{"name": "s"}]})),
            "mcp_servers is not supported",
        ),
        (
            with(ask("x"), json!({"temperature": "hot"})),
            "temperature is \"hot\"",
        ),
        (
            with(ask("x"), json!({"bad_words": ["x"]})),
            "bad_words is not supported",
        ),
    ];
    check_refused(cases);
}

#[test]
fn errors_before_a_handler_have_anthropics_form_too() {
    let world = World::scripted_with(&[], |_, server| {
        server.max_body_bytes = 1000;
        server.api_key = ApiKey::new(KEY).ok();
    });
    let addr = world.addr;
    let ask = |path: &str, lines: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: {length}\r\n{lines}"
        );
        send(addr, &format!("{head}\r\n{body}"))
    };
    let json = "Content-Type: application/json\r\n";
    let keyed = format!("{json}x-api-key: {KEY}\r\n");
    for path in [PATH, COUNT] {
        let no_key = ask(path, json, "{}");
        check_error(&no_key, 401, "authentication_error", "x-api-key");
        let wrong = ask(path, &format!("{json}x-api-key: {KEY}0\r\n"), "{}");
        check_error(&wrong, 401, "authentication_error", "key");
        let invalid = "invalid_request_error";
        check_error(&ask(path, &keyed, "{"), 400, invalid, "not valid JSON");
        let long = format!("{{\"x\": \"{}\"}}", "x".repeat(1000));
        check_error(&ask(path, &keyed, &long), 413, "request_too_large", "1000");
        let key = format!("x-api-key: {KEY}\r\n");
        check_error(&ask(path, &key, "{}"), 415, invalid, "application/json");
        let evil = format!("{keyed}Origin: http://evil.example\r\n");
        check_error(
            &ask(path, &evil, "{}"),
            403,
            "permission_error",
            "evil.example",
        );
        let get =
            format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{keyed}\r\n");
        let wrong_method = send(addr, &get);
        check_error(&wrong_method, 405, invalid, "use POST");
        assert_eq!(wrong_method.header("allow"), Some("POST"));
    }
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}).to_string();
    for line in [
        format!("x-api-key: {KEY}"),
        format!("Authorization: Bearer {KEY}"),
    ] {
        let answer = ask(
            PATH,
            &format!("{json}{line}\r\nanthropic-version: 2023-06-01\r\n"),
            &body,
        );
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(
            answer
                .header("request-id")
                .is_some_and(|id| id.starts_with("req_"))
        );
    }
    world.wait_until_idle();
    let loading = World::without_engine(ServerConfig::default());
    let refused = post_text(loading.addr, PATH, &body);
    check_error(&refused, 503, "overloaded_error", "being loaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[test]
fn a_prompt_that_is_too_long_is_refused_in_streams_and_by_the_count() {
    let world = two_calls();
    let body = ask(&"word ".repeat(70_000));
    for body in [body.clone(), with(body.clone(), json!({"stream": true}))] {
        let refused = post(world.addr, PATH, &body);
        check_error(
            &refused,
            400,
            "invalid_request_error",
            "prompt is too long: 140013 tokens > ",
        );
    }
    check_error(
        &post(world.addr, COUNT, &body),
        400,
        "invalid_request_error",
        "prompt is too long: 140013 tokens > ",
    );
    world.wait_until_idle();
}

/// The billing header of Claude Code, whose hash changes in each turn.
fn header(turn: usize) -> String {
    let hash = format!("{:05x}", (turn * 7919 + 0xa1b2) % 0xfffff);
    format!("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={hash};")
}

fn dropped(world: &World) -> u64 {
    let page = get(world.addr, "/metrics").body;
    let name = "souffleur_changing_headers_dropped_total ";
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |number| number.parse().expect("a number"))
}

#[test]
fn a_changing_header_is_dropped_from_system_text_unless_configured_to_stay() {
    let plain = json!([{"type": "text", "text": "Be brief."}]);
    let body = |system: Value| with(ask("capital"), json!({"system": system}));
    let block = json!({"type": "text", "text": header(1)});
    let with_header = json!([block, {"type": "text", "text": "Be brief."}]);
    let in_text = json!(format!("{}\nBe brief.", header(2)));
    let world = two_calls();
    let before = dropped(&world);
    let expected = count(&world, &body(plain));
    assert_eq!(count(&world, &body(with_header.clone())), expected);
    assert_eq!(count(&world, &body(in_text)), expected);
    assert_eq!(
        count(&world, &body(json!([block]))),
        count(&world, &ask("capital"))
    );
    let inline = json!([
        {"role": "user", "content": "capital"}, {"role": "system", "content": [block]},
    ]);
    let inline = with(ask("x"), json!({"messages": inline}));
    assert_eq!(count(&world, &inline), count(&world, &ask("capital")));
    // Other tests increment the counter too.
    assert!(dropped(&world) >= before + 4);
    let user = count(&world, &ask(&header(1)));
    assert!(
        user > count(&world, &ask("x")) + 10,
        "the header stays in a message of the user"
    );
    world.wait_until_idle();
    let keeps = World::scripted_with(&[], |_, server| server.drop_changing_headers = false);
    assert!(count(&keeps, &body(with_header)) > expected + 10);
}

/// Twelve turns as Claude Code sends them: a changing header, results of tools, and a system reminder in each
/// turn; the model's answers come back unchanged.
#[test]
fn each_turn_of_an_agent_reuses_the_cached_earlier_turns() {
    const PAGE: u64 = 16;
    const TURNS: usize = 12;
    let lines: Vec<(String, String)> = (1..=TURNS)
        .map(|turn| {
            let arguments = format!("{{\"city\": \"Lisbon\", \"days\": {turn}}}");
            (
                format!("question {turn}."),
                format!("I look {turn} times.\n{}", call("weather", &arguments)),
            )
        })
        .collect();
    let lines: Vec<(&str, &str)> = lines
        .iter()
        .map(|(cue, line)| (cue.as_str(), line.as_str()))
        .collect();
    let world = World::scripted_with(&lines, |engine, _| engine.page_size = PAGE as u32);
    let mut messages = vec![json!({"role": "user", "content": [
        {"type": "text", "text": "This is the folder."}, {"type": "text", "text": "question 1."},
    ]})];
    let instructions = "You are an agent that works in a folder. ".repeat(40);
    let mut before = None;
    for turn in 1..=TURNS {
        let reminder = format!("A reminder of turn {turn}.");
        messages.push(json!({"role": "system", "content": reminder}));
        let body = json!({
            "model": "scripted", "max_tokens": 1000, "stream": true, "messages": messages, "tools": [weather()],
            "system": [
                {"type": "text", "text": header(turn)},
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": instructions, "cache_control": {"type": "ephemeral"}},
            ],
        });
        let message = assemble(&events(world.addr, body));
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        let usage = &message["usage"];
        let number = |name: &str| usage[name].as_u64().expect("a number");
        let cached = number("cache_read_input_tokens");
        if let Some(before) = before {
            // At least the previous prompt is cached, in whole pages.
            assert!(cached + PAGE > before, "turn {turn}: {cached} of {before}");
            assert_eq!(cached % PAGE, 0);
        }
        before = Some(number("input_tokens") + cached);
        let id = message["content"][1]["id"].clone();
        messages.push(json!({"role": "assistant", "content": message["content"]}));
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": "sunny"},
            {"type": "text", "text": format!("question {}.", turn + 1)},
        ]}));
    }
    world.wait_until_idle();
}

#[test]
fn the_report_of_a_miss_names_a_changing_value() {
    const ADMIN: &str = "sk-of-the-admin";
    let world = World::scripted_with(&[], |_, server| {
        server.drop_changing_headers = false;
        server.admin_api_key = ApiKey::new(ADMIN).ok();
    });
    let run = |turn: usize| {
        let system = format!("{}\nYou are an agent.", header(turn));
        let body = with(ask("x"), json!({"system": system, "max_tokens": 0}));
        post(world.addr, PATH, &body).ok()["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let report = |rid: &str, key: &str| {
        let line = format!("Authorization: Bearer {key}");
        let head = format!(
            "GET /debug/prefix/{rid} HTTP/1.1\r\nHost: {}\r\nConnection: close",
            world.addr
        );
        send(world.addr, &format!("{head}\r\n{line}\r\n\r\n")).ok()
    };
    run(1);
    let second = run(2);
    let full = report(&second, ADMIN);
    assert_eq!(full["cause"], "divergence", "{full}");
    let hint = full["hint"].as_str().expect("a hint");
    assert!(hint.contains("changing"), "{full}");
    let outline = report(&second, "sk-of-somebody");
    assert!(
        outline.get("hint").is_none() && outline.get("text").is_none(),
        "{outline}"
    );
    world.wait_until_idle();
}

#[test]
fn tool_references_are_accepted_in_the_last_message_and_in_earlier_ones() {
    let world = two_calls();
    let found = json!([{"type": "tool_reference", "tool_name": "seat"}]);
    let mut messages = vec![
        json!({"role": "user", "content": "hi"}),
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "seat", "input": {}}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": found}]}),
    ];
    for later in ["and now?", "and later?"] {
        let body = json!({
            "model": "m", "max_tokens": 5, "messages": messages,
            "tools": [{"name": "seat", "input_schema": {"type": "object"}}],
        });
        post(world.addr, PATH, &body).ok();
        messages.push(json!({"role": "assistant", "content": "yes"}));
        messages.push(json!({"role": "user", "content": later}));
    }
    world.wait_until_idle();
}
