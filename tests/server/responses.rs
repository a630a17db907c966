//! Tests of `/v1/responses` over HTTP, with a model that replies with scripted lines.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::http::{delete, get, open, post, stream};
use crate::world::World;

const PATH: &str = "/v1/responses";
/// Arguments in a format that no template writes: several spaces, and an unnecessary escape.
const LISBON: &str = r#"{"city":   "Lis\u0062on",  "days": 3}"#;

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn weather() -> Value {
    json!({"type": "function", "name": "weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }})
}

/// A model that reasons, then writes a text and two calls, and that replies to the results of the calls.
fn two_calls_world() -> World {
    two_calls_world_with_page_size(1)
}

fn two_calls_world_with_page_size(page: u32) -> World {
    let calls = [call("weather", LISBON), call("weather", "{}")].join("\n");
    let line = format!("<think>\nWhich one?\n</think>\n\nBoth.\n{calls}");
    let lines: [(&str, &str); 5] = [
        ("compare", &line),
        ("sunny", "Lisbon it is."),
        ("hello", "Hello to you."),
        ("patch", &call("apply", r#"{"input": "*** a \"b\"\nc"}"#)),
        ("lookup", &call("crm.find", r#"{"id": 7}"#)),
    ];
    World::scripted_with(&lines, |engine, _| engine.page_size = page)
}

#[track_caller]
fn ask(world: &World, body: &Value) -> Value {
    post(world.addr, PATH, body).ok()
}

/// The events of a stream. Checks that each event's name equals its type.
#[track_caller]
pub fn events(addr: SocketAddr, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let mut stream = stream(addr, PATH, &body);
    let mut events = Vec::new();
    while let Some(event) = stream.next_event() {
        let (name, data) = event.split_once('\n').expect("a name and data");
        let data = data.strip_prefix("data: ").expect("data");
        let data: Value = serde_json::from_str(data).expect("data is JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        events.push(data);
    }
    events
}

/// Checks the event order that clients rely on: sequence numbers have no gaps, items do not interleave, deltas belong
/// to the open item, and the last event repeats all items.
#[track_caller]
pub fn check_order(events: &[Value]) {
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert_eq!(first["type"], "response.created");
    assert_eq!(events[1]["type"], "response.in_progress");
    assert_eq!(first["response"]["id"], last["response"]["id"]);
    assert_eq!(first["response"]["output"], json!([]));
    let mut done: Vec<Value> = Vec::new();
    let mut open: Option<Value> = None;
    let mut joined = String::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
        let kind = event["type"].as_str().expect("a type");
        match kind.strip_prefix("response.").unwrap_or(kind) {
            "output_item.added" => {
                assert!(open.is_none(), "{event}");
                assert_eq!(event["output_index"], done.len());
                assert_eq!(event["item"]["status"], "in_progress");
                open = Some(event["item"].clone());
                joined.clear();
            }
            "output_item.done" => {
                let added = open.take().expect("an item was added");
                for key in ["id", "type", "call_id", "name"] {
                    assert_eq!(added[key], event["item"][key], "{key}");
                }
                done.push(event["item"].clone());
            }
            kind if kind.ends_with(".delta") => {
                let item = open.as_ref().expect("an open item");
                assert_eq!(event["item_id"], item["id"]);
                joined.push_str(event["delta"].as_str().expect("a text"));
            }
            kind if kind.ends_with(".done") && kind != "content_part.done" => {
                let keys = ["text", "arguments", "input"];
                let whole = keys.iter().find_map(|key| event[*key].as_str());
                assert_eq!(whole, Some(joined.as_str()), "{event}");
            }
            _ => (),
        }
    }
    assert!(open.is_none());
    assert_eq!(last["response"]["output"], json!(done));
}

/// A response without the fields that differ between two responses to the same request.
fn comparable(response: &Value) -> Value {
    let mut response = response.clone();
    for key in ["id", "created_at", "completed_at"] {
        response[key] = Value::Null;
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    for item in response["output"].as_array_mut().into_iter().flatten() {
        for key in ["id", "call_id"] {
            if item.get(key).is_some() {
                item[key] = Value::Null;
            }
        }
    }
    response
}

#[test]
fn an_answer_has_the_shape_that_clients_know() {
    let world = two_calls_world();
    let body = json!({
        "model": "any", "input": "hello", "instructions": "Be kind.", "metadata": {"a": "b"}, "temperature": 0.5,
        "max_output_tokens": 64, "prompt_cache_key": "k", "something_new": {"x": 1}, "truncation": "auto",
    });
    let response = ask(&world, &body);
    let id = response["id"].as_str().expect("an id");
    let digits = id.strip_prefix("resp_").expect("the id begins with resp_");
    assert!(digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    for (key, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("scripted")),
        ("instructions", json!("Be kind.")),
        ("metadata", json!({"a": "b"})),
        ("temperature", json!(0.5)),
        ("max_output_tokens", json!(64)),
        ("prompt_cache_key", json!("k")),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("store", json!(true)),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
    ] {
        assert_eq!(response[key], value, "{key}");
    }
    let item = &response["output"][0];
    assert_eq!(item["type"], "message");
    assert_eq!(item["content"][0]["text"], "Hello to you.");
    let usage = &response["usage"];
    let sum = usage["input_tokens"]
        .as_u64()
        .zip(usage["output_tokens"].as_u64());
    assert_eq!(sum.map(|(a, b)| a + b), usage["total_tokens"].as_u64());
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    world.wait_until_idle();
}

#[test]
fn a_stream_has_the_official_order_and_adds_up_to_the_whole_answer() {
    let world = two_calls_world();
    let body = json!({
        "input": "compare", "tools": [weather()], "include": ["reasoning.encrypted_content"],
    });
    let events = events(world.addr, body.clone());
    check_order(&events);
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    let mut distinct = kinds.clone();
    distinct.dedup();
    let call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ];
    let mut expected = vec!["response.created", "response.in_progress"];
    for [delta, done] in [
        [
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
        ],
        ["response.output_text.delta", "response.output_text.done"],
    ] {
        expected.extend([
            "response.output_item.added",
            "response.content_part.added",
            delta,
            done,
        ]);
        expected.extend(["response.content_part.done", "response.output_item.done"]);
    }
    expected.extend(call);
    expected.extend(call);
    expected.push("response.completed");
    assert_eq!(distinct, expected);
    let streamed = &events[events.len() - 1]["response"];
    let whole = ask(&world, &body);
    assert_eq!(comparable(streamed), comparable(&whole));
    let output = &whole["output"];
    assert_eq!(output[0]["type"], "reasoning");
    assert_eq!(output[0]["content"][0]["text"], "Which one?");
    assert!(output[0]["encrypted_content"].is_string());
    assert_eq!(
        output[1]["content"][0]["text"].as_str().map(str::trim),
        Some("Both.")
    );
    assert_eq!(
        output[2]["arguments"], LISBON,
        "arguments are as the model wrote them"
    );
    assert_ne!(output[2]["call_id"], output[3]["call_id"]);
    assert!(whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
    world.wait_until_idle();
}

#[test]
fn custom_and_namespaced_tools_keep_their_names_and_hosted_tools_are_ignored() {
    let world = two_calls_world();
    let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"x\""});
    let tools = json!([
        {"type": "web_search"},
        {"type": "custom", "name": "apply", "description": "Applies.", "format": grammar},
        {"type": "namespace", "name": "crm", "description": "d", "tools": [
            {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}},
        ]},
        {"type": "mcp", "server_label": "x"},
    ]);
    let events = events(world.addr, json!({"input": "patch", "tools": tools}));
    check_order(&events);
    let response = &events[events.len() - 1]["response"];
    assert_eq!(
        response["tools"], tools,
        "tools are returned as they were sent"
    );
    let item = &response["output"][0];
    assert_eq!(item["type"], "custom_tool_call");
    assert_eq!(
        (&item["name"], &item["input"]),
        (&json!("apply"), &json!("*** a \"b\"\nc"))
    );
    let response = ask(&world, &json!({"input": "lookup", "tools": tools}));
    let item = &response["output"][0];
    assert_eq!(item["type"], "function_call");
    assert_eq!(
        (&item["name"], &item["namespace"]),
        (&json!("find"), &json!("crm"))
    );
    // The conversation continues under the same names.
    let next = json!({
        "previous_response_id": response["id"], "tools": tools,
        "input": [{"type": "function_call_output", "call_id": item["call_id"], "output": "hello"}],
    });
    assert_eq!(
        ask(&world, &next)["output"][0]["content"][0]["text"],
        "Hello to you."
    );
    for choice in [
        json!({"type": "custom", "name": "apply"}),
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply"}]}),
    ] {
        let body = json!({
            "input": "patch", "tools": tools, "tool_choice": choice, "parallel_tool_calls": false,
            "max_output_tokens": 60,
        });
        assert_eq!(ask(&world, &body)["output"][0]["type"], "custom_tool_call");
    }
    world.wait_until_idle();
}

#[test]
fn a_continuation_finds_all_earlier_tokens_in_the_cache() {
    let world = two_calls_world();
    let first = ask(&world, &json!({"input": "compare", "tools": [weather()]}));
    let results = results_of(&first, "sunny");
    assert_eq!(results.len(), 2);
    let next = json!({
        "input": results, "previous_response_id": first["id"], "tools": [weather()],
    });
    let counted = post(world.addr, "/v1/responses/input_tokens", &next).ok();
    let second = ask(&world, &next);
    assert_eq!(second["output"][0]["content"][0]["text"], "Lisbon it is.");
    assert_eq!(second["previous_response_id"], first["id"]);
    assert_eq!(counted["object"], "response.input_tokens");
    assert_eq!(counted["input_tokens"], second["usage"]["input_tokens"]);
    // The token that ended the first answer was never computed.
    let computed = first["usage"]["total_tokens"].as_u64().expect("a number") - 1;
    let cached = &second["usage"]["input_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, computed);
    // If the client sends the whole conversation, the tokens differ: the template formats the arguments differently.
    let mut input = vec![json!({"role": "user", "content": "compare"})];
    input.extend(first["output"].as_array().expect("items").iter().cloned());
    input.extend(results);
    let whole = ask(&world, &json!({"input": input, "tools": [weather()]}));
    assert_eq!(whole["output"][0]["content"][0]["text"], "Lisbon it is.");
    assert!(whole["usage"]["input_tokens_details"]["cached_tokens"].as_u64() < Some(computed));
    world.wait_until_idle();
}

/// Twelve turns of a tool loop, each with reasoning and with calls in a format that no template writes.
#[test]
fn continuations_find_all_earlier_tokens_cached_with_any_page_size() {
    for page in [1, 16] {
        let world = two_calls_world_with_page_size(page);
        let mut before: Option<Value> = None;
        for turn in 0..12 {
            let input = match &before {
                Some(response) => results_of(response, &format!("compare {turn}")).into(),
                None => json!("compare"),
            };
            let mut body = json!({"input": input, "tools": [weather()]});
            if let Some(response) = &before {
                body["previous_response_id"] = response["id"].clone();
            }
            let response = ask(&world, &body);
            if let Some(before) = &before {
                let usage = &before["usage"]["total_tokens"];
                let computed = usage.as_u64().expect("a number") - 1;
                let cached = &response["usage"]["input_tokens_details"]["cached_tokens"];
                let whole_pages = computed - computed % u64::from(page);
                assert_eq!(*cached, whole_pages, "turn {turn}, pages of {page}");
            }
            before = Some(response);
        }
        world.wait_until_idle();
    }
}

/// Tool results with this text for all calls of a response.
fn results_of(response: &Value, text: &str) -> Vec<Value> {
    let items = response["output"].as_array().expect("items").iter();
    let calls = items.filter(|item| item["type"] == "function_call");
    calls
        .map(|item| {
            let output = json!([{"type": "input_text", "text": text}]);
            json!({"type": "function_call_output", "call_id": item["call_id"], "output": output})
        })
        .collect()
}

#[test]
fn instructions_do_not_carry_over_and_a_response_can_be_continued_twice() {
    let world = two_calls_world();
    let first = ask(
        &world,
        &json!({"input": "hello", "instructions": "compare nothing"}),
    );
    let next = |input: &str| json!({"input": input, "previous_response_id": first["id"]});
    let tokens = |response: &Value| {
        response["usage"]["input_tokens"]
            .as_u64()
            .expect("a number")
    };
    let continued = ask(&world, &next("hello again"));
    assert_eq!(continued["instructions"], Value::Null);
    let with_instructions = json!({
        "input": "hello again", "previous_response_id": first["id"], "instructions": "compare nothing",
    });
    assert!(tokens(&ask(&world, &with_instructions)) > tokens(&continued));
    let other = ask(&world, &next("sunny?"));
    assert_eq!(other["output"][0]["content"][0]["text"], "Lisbon it is.");
    assert_ne!(continued["id"], other["id"]);
    // A truncated answer can be continued as well: the template renders it again.
    let cut = ask(&world, &json!({"input": "hello", "max_output_tokens": 2}));
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
    let next = json!({"input": "sunny", "previous_response_id": cut["id"]});
    assert_eq!(
        ask(&world, &next)["output"][0]["content"][0]["text"],
        "Lisbon it is."
    );
    world.wait_until_idle();
}

fn greeting() -> Value {
    json!({"input": [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
    ]})
}

#[test]
fn stored_responses_can_be_read_and_listed() {
    let world = two_calls_world();
    let response = ask(&world, &greeting());
    let id = response["id"].as_str().expect("an id");
    let path = format!("{PATH}/{id}");
    assert_eq!(get(world.addr, &path).ok(), response);
    let items = |query: &str| get(world.addr, &format!("{path}/input_items{query}"));
    let list = items("?order=asc").ok();
    assert_eq!(
        (&list["object"], &list["has_more"]),
        (&json!("list"), &json!(false))
    );
    assert_eq!(list["data"][0]["content"][0]["text"], "Be brief.");
    assert_eq!(list["data"][1]["role"], "user");
    assert_eq!(list["first_id"], list["data"][0]["id"]);
    let page = items("?limit=1").ok();
    assert_eq!(
        (&page["data"][0]["role"], &page["has_more"]),
        (&json!("user"), &json!(true))
    );
    let last = page["last_id"].as_str().expect("an id");
    let rest = items(&format!("?limit=1&after={last}")).ok();
    assert_eq!(
        (&rest["data"][0]["role"], &rest["has_more"]),
        (&json!("developer"), &json!(false))
    );
    for (query, param) in [
        ("?limit=0", "limit"),
        ("?order=up", "order"),
        ("?after=x", "after"),
    ] {
        let refused = items(query);
        assert!(matches!(refused.status, 400 | 404), "{query}");
        assert_eq!(refused.json()["error"]["param"], param);
    }
    world.wait_until_idle();
}

#[test]
fn stored_items_can_be_referenced_until_they_are_deleted() {
    let world = two_calls_world();
    let response = ask(&world, &greeting());
    let id = response["id"].as_str().expect("an id");
    let path = format!("{PATH}/{id}");
    let list = get(world.addr, &format!("{path}/input_items?order=asc")).ok();
    let reference = json!([
        {"type": "item_reference", "id": list["data"][1]["id"]},
        {"id": response["output"][0]["id"]},
        {"role": "user", "content": "sunny"},
    ]);
    assert_eq!(
        ask(&world, &json!({"input": reference}))["output"][0]["content"][0]["text"],
        "Lisbon it is."
    );
    let cancelled = post(world.addr, &format!("{path}/cancel"), &json!({}));
    assert_eq!(cancelled.status, 400);
    assert!(cancelled.body.contains("background"), "{}", cancelled.body);
    let delete = || delete(world.addr, &path);
    assert_eq!(
        delete().ok(),
        json!({"id": id, "object": "response", "deleted": true})
    );
    assert_eq!(delete().status, 404);
    for path in [path.clone(), format!("{path}/input_items")] {
        let gone = get(world.addr, &path);
        assert_eq!(
            (gone.status, &gone.json()["error"]["code"]),
            (404, &json!("response_not_found"))
        );
    }
    let cancelled = post(world.addr, &format!("{path}/cancel"), &json!({}));
    assert_eq!(cancelled.status, 404);
    let gone = post(
        world.addr,
        PATH,
        &json!({"input": "hello", "previous_response_id": id}),
    );
    assert_eq!(gone.status, 400);
    assert_eq!(gone.json()["error"]["code"], "previous_response_not_found");
    assert_eq!(gone.json()["error"]["param"], "previous_response_id");
    world.wait_until_idle();
}

#[test]
fn a_full_store_evicts_the_oldest() {
    let codes = |max_count: usize, max_bytes: usize, input: &str| {
        let world = World::scripted_with(&[("hello", "Hello to you.")], |_, server| {
            server.responses_max_count = max_count;
            server.responses_max_bytes = max_bytes;
        });
        let ids: Vec<Value> = (0..6)
            .map(|_| ask(&world, &json!({ "input": input }))["id"].take())
            .collect();
        let path = |id: &Value| format!("{PATH}/{}", id.as_str().expect("an id"));
        let found: Vec<u16> = ids
            .iter()
            .map(|id| get(world.addr, &path(id)).status)
            .collect();
        // Continuing an evicted response is an error.
        for (id, status) in ids.iter().zip(&found) {
            let next = json!({"input": "hello", "previous_response_id": id});
            if *status == 404 {
                let gone = post(world.addr, PATH, &next);
                assert_eq!(gone.json()["error"]["code"], "previous_response_not_found");
            }
        }
        found
    };
    assert_eq!(codes(2, 1 << 20, "hello"), [404, 404, 404, 404, 200, 200]);
    let long = "hello ".repeat(1000);
    let by_bytes = codes(1000, 100 << 10, &long);
    let (kept, gone): (Vec<u16>, Vec<u16>) = by_bytes.iter().partition(|status| **status == 200);
    assert_eq!(
        by_bytes,
        [gone.clone(), kept.clone()].concat(),
        "the oldest responses are evicted first"
    );
    assert!(!kept.is_empty() && gone.len() >= 2, "{by_bytes:?}");
    assert_eq!(codes(1000, 10 << 10, &long), [404; 6], "no response fits");
}

#[test]
fn responses_with_store_false_are_not_stored() {
    let world = two_calls_world();
    let response = ask(&world, &json!({"input": "hello", "store": false}));
    assert_eq!(response["store"], false);
    let path = format!("{PATH}/{}", response["id"].as_str().expect("an id"));
    assert_eq!(get(world.addr, &path).status, 404);
    let storing_none = World::scripted_with(&[], |_, server| server.responses_max_count = 0);
    let response = ask(&storing_none, &json!({"input": "hello"}));
    let path = format!("{PATH}/{}", response["id"].as_str().expect("an id"));
    assert_eq!(get(storing_none.addr, &path).status, 404);
}

#[test]
fn a_client_can_send_its_reasoning_back() {
    let world = two_calls_world();
    let body = json!({
        "input": "compare", "tools": [weather()], "store": false, "include": ["reasoning.encrypted_content"],
    });
    let response = ask(&world, &body);
    let mut thought = response["output"][0].clone();
    thought
        .as_object_mut()
        .expect("an object")
        .shift_remove("content");
    let call = &response["output"][2];
    let result =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"});
    let tokens = |input: Value| {
        let body = json!({"input": input, "tools": [weather()]});
        ask(&world, &body)["usage"]["input_tokens"].as_u64()
    };
    let ask = json!({"role": "user", "content": "compare"});
    let with = tokens(json!([ask, thought, call, result]));
    let without = tokens(json!([ask, call, result]));
    assert!(with > without, "{with:?} {without:?}");
    let foreign =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"});
    assert_eq!(tokens(json!([ask, foreign, call, result])), without);
    // Items of a hosted tool add no tokens.
    let searched = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    assert_eq!(tokens(json!([ask, searched, call, result])), without);
}

#[test]
fn an_answer_follows_its_text_format() {
    let world = World::scripted(&[("", "{\"city\": \"Lisbon\"}")]);
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "name": "city", "schema": schema, "strict": true});
    let response = ask(&world, &json!({"input": "?", "text": {"format": format}}));
    assert_eq!(response["text"]["format"], format);
    assert_eq!(
        response["output"][0]["content"][0]["text"],
        "{\"city\": \"Lisbon\"}"
    );
    let refused = |format: Value| {
        let refused = post(
            world.addr,
            PATH,
            &json!({"input": "?", "text": {"format": format}}),
        );
        assert_eq!(refused.status, 400, "{}", refused.body);
        refused.json()["error"]["param"].as_str().map(str::to_owned)
    };
    assert_eq!(
        refused(json!({"type": "poem"})).as_deref(),
        Some("text.format.type")
    );
    assert_eq!(
        refused(json!({"type": "json_schema"})).as_deref(),
        Some("text.format.schema")
    );
    let unique = json!({"type": "json_schema", "schema": {"type": "array", "uniqueItems": true}});
    assert_eq!(refused(unique).as_deref(), Some("text.format"));
    world.wait_until_idle();
}

#[test]
fn log_probabilities_are_sent_with_the_text() {
    let world = two_calls_world();
    let body = json!({
        "input": "hello", "top_logprobs": 2, "include": ["message.output_text.logprobs"],
    });
    let whole = ask(&world, &body);
    let tokens = whole["output"][0]["content"][0]["logprobs"]
        .as_array()
        .expect("a list");
    let text: String = tokens
        .iter()
        .filter_map(|token| token["token"].as_str())
        .collect();
    assert!(text.starts_with("Hello to you."), "{text}");
    assert_eq!(tokens[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    let events = events(world.addr, body);
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    assert!(deltas.clone().all(|event| event["logprobs"].is_array()));
    assert!(
        deltas
            .map(|event| event["logprobs"].as_array().map_or(0, Vec::len))
            .sum::<usize>()
            > 2
    );
}

#[test]
fn unsupported_or_invalid_fields_are_refused_by_name() {
    let world = two_calls_world();
    let check = |body: Value, status: u16, param: &str| {
        let refused = post(world.addr, PATH, &body);
        assert_eq!(refused.status, status, "{body}: {}", refused.body);
        assert_eq!(
            refused.json()["error"]["param"],
            param,
            "{body}: {}",
            refused.body
        );
    };
    for (field, value) in [
        ("background", json!(true)),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "pmpt_1"})),
        ("max_tokens", json!(5)),
        ("n", json!(2)),
        ("truncation", json!("middle")),
        ("metadata", json!({"a": "x".repeat(20_000)})),
        ("temperature", json!(-1)),
        ("top_logprobs", json!(21)),
    ] {
        let mut body = json!({"input": "hello"});
        body[field] = value;
        check(body, 400, field);
    }
    check(json!({}), 400, "input");
    check(json!({"input": 5}), 400, "input");
    check(json!({"input": [5]}), 400, "input[0]");
    check(
        json!({"input": [{"role": "bot", "content": "x"}]}),
        400,
        "input[0].role",
    );
    check(json!({"input": [{"type": "poem"}]}), 400, "input[0].type");
    check(
        json!({"input": [{"type": "item_reference", "id": "msg_1"}]}),
        404,
        "input[0].id",
    );
    let image = json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]});
    check(json!({"input": [image]}), 400, "input[0].content[0].type");
    let call = json!({"type": "function_call", "name": "f", "arguments": "{}"});
    check(json!({"input": [call]}), 400, "input[0].call_id");
    let tools = json!([weather(), weather()]);
    check(
        json!({"input": "hello", "tools": tools}),
        400,
        "tools[1].name",
    );
    let tools = json!([{"type": "web_search"}]);
    check(
        json!({"input": "hello", "tools": tools, "tool_choice": "required"}),
        400,
        "tool_choice",
    );
    world.wait_until_idle();
}

#[test]
fn a_failure_in_a_stream_is_its_last_event() {
    let world = World::new();
    let body = json!({
        "input": "x", "stream": true, "ignore_eos": true, "rid": "long", "store": true,
    });
    let mut stream = stream(world.addr, PATH, &body);
    let first = stream.next_event().expect("an event");
    assert!(first.starts_with("event: response.created\n"), "{first}");
    world.wait_until("the request runs", |stats| stats.running_requests == 1);
    post(world.addr, "/abort_request", &json!({"rid": "long"})).ok();
    let mut last = first;
    while let Some(event) = stream.next_event() {
        last = event;
    }
    assert!(last.starts_with("event: response.failed\n"), "{last}");
    assert!(last.contains("\"status\":\"failed\"") && last.contains("\"type\":\"aborted\""));
    world.wait_until_idle();
}

#[test]
fn a_client_that_disconnects_cancels_its_response() {
    let world = World::new();
    let body = json!({"input": "x", "stream": true, "ignore_eos": true});
    let client = open(world.addr, PATH, &body);
    world.wait_until("the request runs", |stats| stats.running_requests == 1);
    drop(client);
    world.wait_until_idle();
}

#[test]
fn a_warm_up_computes_a_prompt_that_can_be_continued() {
    let world = two_calls_world();
    let warm = json!({
        "input": [{"role": "developer", "content": "Be brief."}], "tools": [weather()], "generate": false,
    });
    let warm = ask(&world, &warm);
    assert_eq!(
        (&warm["status"], &warm["output"]),
        (&json!("completed"), &json!([]))
    );
    let tokens = warm["usage"]["input_tokens"].as_u64();
    let next = json!({
        "input": "hello", "previous_response_id": warm["id"], "tools": [weather()],
    });
    let next = ask(&world, &next);
    assert_eq!(next["output"][0]["content"][0]["text"], "Hello to you.");
    assert_eq!(
        next["usage"]["input_tokens_details"]["cached_tokens"].as_u64(),
        tokens
    );
    world.wait_until_idle();
}
