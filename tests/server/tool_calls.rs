//! Tests of tool calls in every API: in the models' real formats, within the requested number, and never partial.

use serde_json::{Value, json};

use crate::http::{post, stream};
use crate::world::World;
use crate::{messages, responses};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const LISBON: &str = "{\n    \"city\": \"Lisbon\",\n    \"days\": 3\n  }";

/// A call as Qwen2.5-Coder writes it.
fn fenced(name: &str, arguments: &str) -> String {
    format!("```json\n{{\n  \"name\": \"{name}\",\n  \"arguments\": {arguments}\n}}\n```")
}

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    })
}

fn chat(question: &str, more: Value) -> Value {
    let function = json!({"name": "weather", "parameters": parameters()});
    with(
        json!({"messages": [{"role": "user", "content": question}],
            "tools": [{"type": "function", "function": function}]}),
        more,
    )
}

fn response(question: &str, more: Value) -> Value {
    let tool = json!({"type": "function", "name": "weather", "parameters": parameters()});
    with(json!({"input": question, "tools": [tool]}), more)
}

fn message(question: &str, more: Value) -> Value {
    let tool = json!({"name": "weather", "input_schema": parameters()});
    let messages = json!([{"role": "user", "content": question}]);
    with(
        json!({"model": "m", "max_tokens": 1000, "messages": messages, "tools": [tool]}),
        more,
    )
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Name and arguments of the calls of a chat that is not streamed.
fn chat_calls(answer: &Value) -> Vec<(String, String)> {
    let calls = list(&answer["choices"][0]["message"]["tool_calls"]).iter();
    calls
        .map(|call| {
            (
                text(&call["function"]["name"]),
                text(&call["function"]["arguments"]),
            )
        })
        .collect()
}

/// Name and arguments of a response's completed calls.
fn response_calls(answer: &Value) -> Vec<(String, String)> {
    let items = list(&answer["output"]).iter();
    items
        .filter(|item| item["type"] == "function_call" && item["status"] == "completed")
        .map(|item| (text(&item["name"]), text(&item["arguments"])))
        .collect()
}

/// Name and input of a message's calls.
fn message_calls(answer: &Value) -> Vec<(String, Value)> {
    let blocks = list(&answer["content"]).iter();
    blocks
        .filter(|block| block["type"] == "tool_use")
        .map(|block| (text(&block["name"]), block["input"].clone()))
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn streamed_chat(world: &World, body: Value) -> (Vec<(String, String)>, String, String) {
    let (mut calls, mut content, mut reason) = (Vec::new(), String::new(), String::new());
    for event in stream(world.addr, CHAT, &with(body, json!({"stream": true}))).rest() {
        let choice = &event["choices"][0];
        content += &text(&choice["delta"]["content"]);
        reason += &text(&choice["finish_reason"]);
        for part in list(&choice["delta"]["tool_calls"]) {
            let function = &part["function"];
            if function["name"].is_string() {
                calls.push((text(&function["name"]), String::new()));
            }
            let (_, arguments) = calls.last_mut().expect("a call");
            *arguments += &text(&function["arguments"]);
        }
    }
    (calls, content, reason)
}

#[test]
fn a_fenced_object_that_names_a_tool_is_a_call_in_every_api() {
    let line = format!("I look it up.\n\n{}", fenced("weather", LISBON));
    let world = World::scripted(&[("Lisbon", &line)]);
    let called = vec![("weather".to_owned(), LISBON.to_owned())];

    let answer = post(world.addr, CHAT, &chat("Lisbon?", json!({}))).ok();
    assert_eq!(chat_calls(&answer), called, "{answer}");
    assert_eq!(answer["choices"][0]["message"]["content"], "I look it up.");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let (calls, content, reason) = streamed_chat(&world, chat("Lisbon?", json!({})));
    assert_eq!((calls, content.as_str()), (called.clone(), "I look it up."));
    assert_eq!(reason, "tool_calls");

    let answer = post(world.addr, RESPONSES, &response("Lisbon?", json!({}))).ok();
    assert_eq!(response_calls(&answer), called, "{answer}");
    let events = responses::events(world.addr, response("Lisbon?", json!({})));
    responses::check_order(&events);
    let last = &events.last().expect("events")["response"];
    assert_eq!(response_calls(last), called);

    let input: Value = serde_json::from_str(LISBON).expect("JSON");
    let answer = post(world.addr, MESSAGES, &message("Lisbon?", json!({}))).ok();
    assert_eq!(
        message_calls(&answer),
        [("weather".to_owned(), input.clone())]
    );
    assert_eq!(answer["stop_reason"], "tool_use");
    let answer = messages::assemble(&messages::events(world.addr, message("Lisbon?", json!({}))));
    assert_eq!(message_calls(&answer), [("weather".to_owned(), input)]);
    world.wait_until_idle();
}

#[test]
fn a_fenced_object_stays_text_where_it_is_no_call() {
    let (line, other) = (fenced("weather", LISBON), fenced("train", LISBON));
    let world = World::scripted(&[("Lisbon", &line), ("train", &other)]);
    let content = |body: &Value| {
        let answer = post(world.addr, CHAT, body).ok();
        assert_eq!(chat_calls(&answer), []);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        text(&answer["choices"][0]["message"]["content"])
    };
    assert_eq!(content(&chat("A train?", json!({}))), other);
    let none = json!({"tool_choice": "none"});
    assert_eq!(content(&chat("Lisbon?", none)), line);
    let mut without_tools = chat("Lisbon?", json!({}));
    without_tools["tools"] = json!([]);
    assert_eq!(content(&without_tools), line);
    let (calls, streamed, _) = streamed_chat(&world, chat("A train?", json!({})));
    assert_eq!((calls.len(), streamed), (0, other));
    world.wait_until_idle();
}

/// The text of all messages of a response.
fn text_of(answer: &Value) -> String {
    let items = list(&answer["output"]).iter();
    items
        .map(|item| text(&item["content"][0]["text"]))
        .collect()
}

#[test]
fn a_call_that_is_no_json_is_text_and_never_a_complete_call() {
    let line = format!("Well.\n{}", call("weather", r#"{"city": "Lisbon",}"#));
    let world = World::scripted(&[("Lisbon", &line)]);
    let no_calls: [(String, String); 0] = [];

    let answer = post(world.addr, CHAT, &chat("Lisbon?", json!({}))).ok();
    assert_eq!(chat_calls(&answer), no_calls);
    assert_eq!(answer["choices"][0]["message"]["content"], line.as_str());
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let (calls, content, reason) = streamed_chat(&world, chat("Lisbon?", json!({})));
    let partial = r#"{"city": "Lisbon","#;
    assert_eq!(calls, [("weather".to_owned(), partial.to_owned())]);
    assert_eq!(content, "Well.}}\n</tool_call>");
    assert_eq!(reason, "stop");

    let answer = post(world.addr, RESPONSES, &response("Lisbon?", json!({}))).ok();
    assert_eq!(response_calls(&answer), no_calls);
    assert_eq!(text_of(&answer), line);
    let events = responses::events(world.addr, response("Lisbon?", json!({})));
    responses::check_order(&events);
    let last = &events.last().expect("events")["response"];
    assert_eq!(response_calls(last), no_calls);

    let answer = post(world.addr, MESSAGES, &message("Lisbon?", json!({}))).ok();
    assert_eq!(answer["content"], json!([{"type": "text", "text": line}]));
    assert_eq!(answer["stop_reason"], "end_turn");
    let events = messages::events(world.addr, message("Lisbon?", json!({})));
    let stop = events.iter().find(|(name, _)| name == "message_delta");
    let (_, stop) = stop.expect("a message_delta event");
    assert_eq!(stop["delta"]["stop_reason"], "end_turn");
    world.wait_until_idle();
}

/// A model that writes forty calls.
fn forty_calls() -> World {
    let one = call("weather", r#"{"city": "Lisbon", "days": 3}"#);
    let line = vec![one.as_str(); 40].join("\n");
    World::scripted(&[("again", &line)])
}

#[test]
fn a_named_tool_is_called_once_in_every_api() {
    let world = forty_calls();
    let function = json!({"type": "function", "function": {"name": "weather"}});
    for parallel in [json!(null), json!(true), json!(false)] {
        let more = json!({"tool_choice": function, "parallel_tool_calls": parallel});
        let answer = post(world.addr, CHAT, &chat("again", more.clone())).ok();
        assert_eq!(chat_calls(&answer).len(), 1, "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        let (calls, content, reason) = streamed_chat(&world, chat("again", more));
        assert_eq!((calls.len(), content.as_str()), (1, ""));
        assert_eq!(reason, "tool_calls");
    }
    let more = json!({"tool_choice": {"type": "function", "name": "weather"}});
    let answer = post(world.addr, RESPONSES, &response("again", more)).ok();
    assert_eq!(
        (response_calls(&answer).len(), &answer["status"]),
        (1, &json!("completed"))
    );
    let more = json!({"tool_choice": {"type": "tool", "name": "weather"}});
    let answer = post(world.addr, MESSAGES, &message("again", more)).ok();
    assert_eq!(
        (message_calls(&answer).len(), &answer["stop_reason"]),
        (1, &json!("tool_use"))
    );
    let more = json!({"tool_choice": {"type": "any", "disable_parallel_tool_use": true}});
    let answer = post(world.addr, MESSAGES, &message("again", more)).ok();
    assert_eq!(message_calls(&answer).len(), 1);
    world.wait_until_idle();
}

#[test]
fn the_number_of_required_calls_is_limited_in_every_api() {
    let world = forty_calls();
    let required = json!({"tool_choice": "required"});
    let answer = post(world.addr, CHAT, &chat("again", required.clone())).ok();
    assert_eq!(chat_calls(&answer).len(), 16, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    assert!(answer["choices"][0]["message"]["content"].is_null());
    let answer = post(world.addr, RESPONSES, &response("again", required)).ok();
    assert_eq!(
        (response_calls(&answer).len(), &answer["status"]),
        (16, &json!("completed"))
    );
    let any = json!({"tool_choice": {"type": "any"}});
    let answer = post(
        world.addr,
        MESSAGES,
        &message("again", with(any, json!({"max_tokens": 4000}))),
    )
    .ok();
    assert_eq!(
        (message_calls(&answer).len(), &answer["stop_reason"]),
        (16, &json!("tool_use"))
    );
    world.wait_until_idle();
}

/// Some models end an answer with a line break. If the grammar took the line break for the start of another call, it
/// would force calls without end.
#[test]
fn a_line_break_after_a_required_call_does_not_force_another() {
    let one = call("weather", r#"{"city": "Lisbon", "days": 3}"#);
    let world = World::scripted(&[("once", &format!("{one}\n"))]);
    let required = json!({"tool_choice": "required"});
    let answer = post(world.addr, CHAT, &chat("once", required)).ok();
    assert_eq!(chat_calls(&answer).len(), 1, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    world.wait_until_idle();
}

#[test]
fn a_truncated_call_is_never_sent_as_a_complete_one() {
    let arguments = r#"{"city": "Lisbon", "days": 3}"#;
    let lines = [call("weather", arguments), fenced("weather", arguments)];
    let world = World::scripted(&[("plainly", &lines[0]), ("fenced", &lines[1])]);
    for cue in ["plainly", "fenced"] {
        let whole = post(world.addr, CHAT, &chat(cue, json!({}))).ok();
        assert_eq!(
            chat_calls(&whole),
            [("weather".to_owned(), arguments.to_owned())]
        );
        let tokens = whole["usage"]["completion_tokens"]
            .as_u64()
            .expect("a number");
        for limit in 1..tokens {
            let case = format!("{limit} tokens of {cue}");
            check_truncated_chat(&world, cue, limit, &case);
            check_truncated_response(&world, cue, limit, &case);
            let body = message(cue, json!({"max_tokens": limit}));
            let answer = post(world.addr, MESSAGES, &body).ok();
            assert_eq!(answer["stop_reason"], "max_tokens", "{case}");
            for (_, input) in message_calls(&answer) {
                assert_eq!(input.to_string(), r#"{"city":"Lisbon","days":3}"#, "{case}");
            }
            assert!(!list(&answer["content"]).is_empty(), "{case}");
        }
    }
    world.wait_until_idle();
}

fn check_truncated_chat(world: &World, cue: &str, limit: u64, case: &str) {
    let body = chat(cue, json!({"max_tokens": limit}));
    let answer = post(world.addr, CHAT, &body).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{case}");
    let content = text(&answer["choices"][0]["message"]["content"]);
    assert!(!content.contains("<tool_call>"), "{case}: {content}");
    for (_, arguments) in chat_calls(&answer) {
        serde_json::from_str::<Value>(&arguments).expect("complete calls only");
    }
    let (_, streamed, reason) = streamed_chat(world, body);
    assert_eq!((streamed, reason.as_str()), (content, "length"), "{case}");
}

fn check_truncated_response(world: &World, cue: &str, limit: u64, case: &str) {
    let events = responses::events(
        world.addr,
        response(cue, json!({"max_output_tokens": limit})),
    );
    responses::check_order(&events);
    let answer = &events.last().expect("events")["response"];
    assert_eq!(answer["status"], "incomplete", "{case}");
    let is_done = |event: &&Value| event["type"] == "response.function_call_arguments.done";
    let done: Vec<String> = events
        .iter()
        .filter(is_done)
        .map(|event| text(&event["arguments"]))
        .collect();
    let completed: Vec<String> = response_calls(answer)
        .into_iter()
        .map(|(_, arguments)| arguments)
        .collect();
    assert_eq!(done, completed, "{case}");
    for arguments in completed {
        serde_json::from_str::<Value>(&arguments).expect("complete calls only");
    }
}

/// A truncated command can be a different and harmful command.
#[test]
fn the_input_of_a_custom_tool_is_sent_whole_or_not_at_all() {
    let line = call("shell", r#"{"input": "rm -rf /tmp/x"}"#);
    let world = World::scripted(&[("tidy", &line)]);
    let body = |limit: u64| json!({"input": "tidy", "tools": [{"type": "custom", "name": "shell"}], "max_output_tokens": limit});
    let whole = post(world.addr, RESPONSES, &body(200)).ok();
    assert_eq!(whole["output"][0]["input"], "rm -rf /tmp/x");
    let tokens = whole["usage"]["output_tokens"].as_u64().expect("a number");
    for limit in 1..tokens {
        for event in responses::events(world.addr, body(limit)) {
            let item = &event["item"];
            let is_whole = item["status"] == "completed";
            let sent = [&event["delta"], &event["input"], &item["input"]];
            for sent in sent.into_iter().filter_map(Value::as_str) {
                let is_of_text = event["type"] == "response.output_text.delta";
                assert!(
                    sent.is_empty() || is_whole || is_of_text || sent.ends_with("/tmp/x"),
                    "{event}"
                );
            }
        }
    }
    world.wait_until_idle();
}

/// The grammar of a constant forces the whole output, so the next request finds prompt and constant in the cache.
#[test]
fn forced_tokens_of_a_grammar_do_not_count_as_cached_prompt_tokens() {
    let world = World::new();
    let schema = json!({"const": "one two three four five six seven"});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let messages = json!([{"role": "user", "content": "again"}]);
    let body = json!({"messages": messages, "max_tokens": 60, "response_format": format});
    for turn in 0..3 {
        let usage = &post(world.addr, CHAT, &body).ok()["usage"];
        let prompt = usage["prompt_tokens"].as_u64().expect("a number");
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(cached <= Some(prompt), "{turn}: {usage}");
        assert!(turn == 0 || cached >= Some(prompt - 1), "{turn}: {usage}");
    }
}

#[test]
fn cached_tokens_never_exceed_the_prompt() {
    let world = forty_calls();
    let function = json!({"type": "function", "function": {"name": "weather"}});
    let body = chat("again", json!({"tool_choice": function}));
    for turn in 0..3 {
        let usage = &post(world.addr, CHAT, &body).ok()["usage"];
        let prompt = usage["prompt_tokens"].as_u64().expect("a number");
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        match turn {
            0 => assert!(cached < Some(prompt), "{usage}"),
            _ => assert!(cached <= Some(prompt), "{usage}"),
        }
    }
    let stats = world.stats();
    assert!(stats.cached_tokens <= stats.prompt_tokens, "{stats:?}");
    world.wait_until_idle();
}
