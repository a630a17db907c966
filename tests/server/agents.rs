//! Tests of agents' conversations over chat completions, with a model that replies with scripted lines.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::http::{post, stream};
use crate::scripted::NO_LINE;
use crate::world::World;

const PATH: &str = "/v1/chat/completions";
const LISBON: &str = r#"{"city": "Lisbon", "days": 3}"#;
const OSLO: &str = r#"{"city": "Oslo", "days": 1}"#;

/// A call as the model writes it.
fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": false,
    }}})
}

/// A model that reasons, then writes a text and two calls.
fn two_calls() -> World {
    let (lisbon, oslo) = (call("weather", LISBON), call("weather", OSLO));
    let line = format!("<think>\nWhich one?\n</think>\n\nBoth.\n{lisbon}\n{oslo}");
    World::scripted(&[("compare", &line)])
}

fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "tools": [weather()]})
}

/// The events of a stream except the last, and the last event, which has the usage.
fn events(addr: SocketAddr, mut body: Value) -> (Vec<Value>, Value) {
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let mut events = stream(addr, PATH, &body).rest();
    let usage = events.pop().expect("events");
    (events, usage)
}

fn deltas(events: &[Value], index: usize) -> impl Iterator<Item = &Value> {
    let choices = events.iter().map(|event| &event["choices"][0]);
    let of_choice = choices.filter(move |choice| choice["index"] == index);
    of_choice.map(|choice| &choice["delta"])
}

fn joined(events: &[Value], index: usize, field: &str) -> String {
    deltas(events, index)
        .filter_map(|delta| delta[field].as_str())
        .collect()
}

fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

#[test]
fn a_scripted_model_replies_with_the_line_of_the_last_cue() {
    let world = World::scripted(&[
        ("row", "In which row?"),
        ("the first row", "Booked."),
        ("seat", "A seat or a box?"),
    ]);
    let reply_to = |question: &str| {
        let call = json!({"messages": [{"role": "user", "content": question}]});
        let answer = post(world.addr, PATH, &call).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        choice["message"]["content"].as_str().map(str::to_owned)
    };
    let expected = [
        ("A row?", "In which row?"),
        ("A seat in the first row.", "Booked."),
        ("Not in a row, on a seat.", "A seat or a box?"),
        ("Hello!", NO_LINE),
    ];
    for (question, answer) in expected {
        assert_eq!(reply_to(question).as_deref(), Some(answer), "{question}");
    }
    world.wait_until_idle();
}

#[test]
fn a_scripted_model_has_log_probabilities_and_tokens_of_partial_characters() {
    let world = World::scripted(&[("", "Grüße, 観客 🎭!")]);
    let mut call = json!({
        "messages": [{"role": "user", "content": "?"}], "logprobs": true, "top_logprobs": 2,
    });
    let whole = post(world.addr, PATH, &call).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "Grüße, 観客 🎭!");
    let tokens = choice["logprobs"]["content"].as_array().expect("a list");
    let bytes = tokens.iter().flat_map(|token| token["bytes"].as_array());
    let bytes: Vec<u8> = bytes
        .flatten()
        .map(|byte| byte.as_u64().expect("a number") as u8)
        .collect();
    let decoded = String::from_utf8(bytes).expect("the bytes are whole characters");
    assert_eq!(decoded, "Grüße, 観客 🎭!<|im_end|>");
    call["stream"] = true.into();
    let events = stream(world.addr, PATH, &call).rest();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "Grüße, 観客 🎭!");
}

#[test]
fn a_stream_has_the_order_that_clients_rely_on() {
    let world = two_calls();
    let mut body = ask("compare");
    body["n"] = 2.into();
    let (events, usage) = events(world.addr, body);
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64() > Some(0));
    let mut choice_order: Vec<&Value> = Vec::new();
    for index in events.iter().map(|event| &event["choices"][0]["index"]) {
        if !choice_order.contains(&index) {
            choice_order.push(index);
        }
    }
    assert_eq!(choice_order, [0, 1]);
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["choices"].as_array().map(Vec::len), Some(1));
        assert!(event["choices"][0]["delta"].is_object(), "{event}");
    }
    for index in 0..2 {
        let of_choice: Vec<&Value> = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        let roles = of_choice
            .iter()
            .filter(|choice| !choice["delta"]["role"].is_null());
        assert_eq!(roles.count(), 1);
        assert_eq!(of_choice[0]["delta"]["role"], "assistant");
        let (last, before) = of_choice.split_last().expect("chunks");
        assert_eq!(last["finish_reason"], "tool_calls");
        assert!(
            before
                .iter()
                .all(|choice| choice["finish_reason"].is_null())
        );
        check_calls(&events, index);
        assert_eq!(
            joined(&events, index, "reasoning_content").trim(),
            "Which one?"
        );
        assert_eq!(joined(&events, index, "content").trim(), "Both.");
    }
    world.wait_until_idle();
}

/// Checks the deltas of tool calls as clients read them: a client concatenates all strings of a call's deltas except
/// `index` and `type`, and a new `index` ends the previous call.
fn check_calls(events: &[Value], index: usize) {
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in deltas(events, index) {
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let is_first = !part["id"].is_null();
            if is_first {
                assert_eq!(part["index"], calls.len());
                assert_eq!(part["type"], "function");
                assert_eq!(part["function"]["arguments"], "");
                let id = part["id"].as_str().expect("a text");
                assert!(id.starts_with("call_"), "{id}");
                let name = part["function"]["name"].as_str().expect("a text");
                calls.push((name.to_owned(), String::new()));
                continue;
            }
            assert_eq!(keys(part), ["index", "function"]);
            assert_eq!(keys(&part["function"]), ["arguments"]);
            assert_eq!(part["index"], calls.len() - 1);
            let text = part["function"]["arguments"].as_str().expect("a text");
            calls.last_mut().expect("a call with an id").1 += text;
        }
    }
    let expected = [LISBON, OSLO].map(|arguments| ("weather".to_owned(), arguments.to_owned()));
    assert_eq!(calls, expected);
}

#[test]
fn every_call_in_every_choice_has_its_own_id() {
    let world = two_calls();
    let mut body = ask("compare");
    body["n"] = 3.into();
    let answer = post(world.addr, PATH, &body).ok();
    let choices = answer["choices"].as_array().expect("a list");
    let calls = choices
        .iter()
        .flat_map(|choice| choice["message"]["tool_calls"].as_array().expect("calls"));
    let mut ids: Vec<&str> = calls
        .map(|call| call["id"].as_str().expect("a text"))
        .collect();
    assert_eq!(ids.len(), 6);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    for choice in choices {
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert!(choice["matched_stop"].is_null());
    }
    world.wait_until_idle();
}

#[test]
fn a_truncated_call_finishes_with_reason_length() {
    let world = two_calls();
    let whole = post(world.addr, PATH, &ask("compare")).ok();
    let n_tokens = whole["usage"]["completion_tokens"]
        .as_u64()
        .expect("a number");
    for max_tokens in 1..n_tokens {
        let mut body = ask("compare");
        body["max_tokens"] = max_tokens.into();
        let answer = post(world.addr, PATH, &body).ok();
        let (events, usage) = events(world.addr, body);
        assert_eq!(usage["usage"]["completion_tokens"], max_tokens);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "after {max_tokens}");
        for field in ["content", "reasoning_content"] {
            let text = choice["message"][field].as_str().unwrap_or_default();
            assert_eq!(
                joined(&events, 0, field),
                text,
                "{field} after {max_tokens}"
            );
            assert!(!text.contains("think>"), "{text}");
            assert!(!text.contains("<tool_call>"), "{text}");
        }
        // The stream may end within a call. The answer that is not streamed contains complete calls only.
        let calls = choice["message"]["tool_calls"].as_array();
        for call in calls.into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().expect("a text");
            serde_json::from_str::<Value>(arguments).expect("complete calls only");
        }
        let last = events.last().expect("events");
        assert_eq!(last["choices"][0]["finish_reason"], "length");
    }
    world.wait_until_idle();
}

/// A paraphrased conversation of Codex 0.94 over chat completions, with fewer tools. Each tool has its name twice, a
/// developer message follows the system message, two user messages are adjacent, and messages with calls lack content.
#[test]
fn codex_conversation_with_two_calls_to_its_shell_tool() {
    let run = |script: &str| json!({"command": ["bash", "-c", script]}).to_string();
    let (write, read) = (run("echo four > row.txt"), run("cat row.txt"));
    let world = World::scripted(&[
        ("Keep my row", &call("shell", &write)),
        ("\"output\":\"\"", &call("shell", &read)),
        ("\"output\":\"four\\n\"", "Your row is kept."),
    ]);
    let shell = json!({"type": "function", "name": "shell", "function": {
        "name": "shell", "description": "Runs a command.", "strict": false,
        "parameters": {"type": "object", "required": ["command"], "additionalProperties": false, "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "What to run."},
            "timeout_ms": {"type": "number"},
        }},
    }});
    let mut messages = vec![
        json!({"role": "system", "content": "You work in a folder."}),
        json!({"role": "developer", "content": "<rules>\nEverything may be run.\n</rules>"}),
        json!({"role": "user", "content": "<place>\n  <cwd>/home</cwd>\n</place>"}),
        json!({"role": "user", "content": "Keep my row in a file."}),
    ];
    let mut computed_before = 0;
    for (arguments, output) in [(&write, ""), (&read, "four\n")] {
        let body = json!({"model": "scripted", "messages": messages, "tools": [shell]});
        let (events, usage) = events(world.addr, body);
        let calls: Vec<&Value> = deltas(&events, 0)
            .filter_map(|delta| delta["tool_calls"].get(0))
            .collect();
        let text: String = calls
            .iter()
            .filter_map(|part| part["function"]["arguments"].as_str())
            .collect();
        assert_eq!(&text, arguments);
        let function = json!({"name": "shell", "arguments": text});
        let id = &calls[0]["id"];
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": function},
        ]}));
        let result =
            json!({"output": output, "metadata": {"exit_code": 0, "duration_seconds": 0.0}});
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result.to_string()}));
        let usage = &usage["usage"];
        let number = |value: &Value| value.as_u64().expect("a number");
        let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
        assert!(cached >= computed_before, "{cached} of {computed_before}");
        // The next prompt begins with this one, which must be in the cache.
        computed_before = number(&usage["prompt_tokens"]);
    }
    let body = json!({"model": "scripted", "messages": messages, "tools": [shell]});
    let (events, _) = events(world.addr, body);
    assert_eq!(joined(&events, 0, "content"), "Your row is kept.");
    world.wait_until_idle();
}

#[test]
fn only_allowed_tools_are_called() {
    let line = format!("Well. {}", call("weather", LISBON));
    let world = World::scripted(&[("now", &line)]);
    let clock = json!({"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}});
    let allowed = json!({"mode": "auto", "tools": [clock]});
    let mut body = ask("now");
    body["tools"] = json!([weather(), clock]);
    body["tool_choice"] = json!({"type": "allowed_tools", "allowed_tools": allowed});
    body["max_tokens"] = 64.into();
    let answer = post(world.addr, PATH, &body).ok();
    let message = &answer["choices"][0]["message"];
    let calls = message["tool_calls"].as_array();
    for call in calls.into_iter().flatten() {
        assert_eq!(call["function"]["name"], "clock", "{answer}");
    }
    let text = message["content"].as_str().unwrap_or_default();
    assert!(!text.contains("weather"), "{answer}");
    world.wait_until_idle();
}

#[test]
fn a_line_break_as_stop_string_stops_a_chat() {
    let world = World::scripted(&[("capital", "Paris\nThe end")]);
    let body = json!({"messages": [{"role": "user", "content": "capital"}], "stop": ["\n"]});
    let answer = post(world.addr, PATH, &body).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "Paris");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["matched_stop"], "\n");
    world.wait_until_idle();
}

#[test]
fn calls_stay_text_without_a_tool_call_parser() {
    let line = call("weather", LISBON);
    let world = World::scripted_with(&[("compare", &line)], |config, _| {
        config.tool_call_parser = "none".to_owned();
    });
    let answer = post(world.addr, PATH, &ask("compare")).ok();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], line.as_str());
    assert!(message["tool_calls"].is_null(), "{answer}");
    let mut required = ask("compare");
    required["tool_choice"] = "required".into();
    let refused = post(world.addr, PATH, &required);
    assert_eq!(refused.status, 400);
    world.wait_until_idle();
}

#[test]
fn a_continued_message_has_no_reasoning() {
    let world = World::scripted_with(&[("capital", " Paris.")], |config, _| {
        config.reasoning_parser = "deepseek-r1".to_owned();
    });
    let mut body = json!({"messages": [
        {"role": "user", "content": "capital"},
        {"role": "assistant", "content": "It is"},
    ]});
    body["continue_final_message"] = true.into();
    body["add_generation_prompt"] = false.into();
    let answer = post(world.addr, PATH, &body).ok();
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].is_null(), "{answer}");
    assert!(
        !message["content"].as_str().unwrap_or_default().is_empty(),
        "{answer}"
    );
    world.wait_until_idle();
}
