//! Tests for every API that prompts keep the fields of tools, their order, and all digits of large numbers.

use serde_json::Value;

use crate::http::post_text;
use crate::world::World;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Checks for each (path, body, text) that the rendered prompt contains the text. The text is a cue: the scripted model
/// replies to it with a line that no other prompt gets.
fn check(cases: &[(&str, &str, &str)]) {
    let first = |expected: &str| cases.iter().position(|(_, _, text)| *text == expected);
    let lines: Vec<String> = (0..cases.len()).map(|at| format!("Text {at}.")).collect();
    let cues: Vec<(&str, &str)> = cases
        .iter()
        .zip(&lines)
        .enumerate()
        .filter(|(at, ((_, _, expected), _))| first(expected) == Some(*at))
        .map(|(_, ((_, _, expected), line))| (*expected, line.as_str()))
        .collect();
    let world = World::scripted(&cues);
    for (path, body, expected) in cases {
        let answer = post_text(world.addr, path, body).ok();
        let line = first(expected).map(|at| lines[at].as_str());
        assert_eq!(Some(text_of(&answer)), line, "{path} {body}");
    }
    world.wait_until_idle();
}

/// The text in an answer of any API.
fn text_of(answer: &Value) -> &str {
    let places = [
        "/choices/0/message/content",
        "/output/0/content/0/text",
        "/content/0/text",
    ];
    let mut places = places.iter();
    let text = places.find_map(|place| answer.pointer(place)?.as_str());
    text.unwrap_or_default()
}

#[test]
fn tools_keep_fields_order_and_large_numbers_in_the_prompt() {
    check(&[
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function":
                {"name": "f", "description": null, "strict": false, "parameters": {"maximum": 12345678901234567890123}}}]}"#,
            r#"{"type": "function", "function": {"name": "f", "description": null, "strict": false, "parameters": {"maximum": 12345678901234567890123}}}"#,
        ),
        (
            RESPONSES,
            r#"{"input": "a", "tools": [{"type": "function",
                "name": "f", "description": null, "strict": false, "parameters": {"maximum": 12345678901234567890123}}]}"#,
            r#"{"type": "function", "function": {"name": "f", "description": null, "strict": false, "parameters": {"maximum": 12345678901234567890123}}}"#,
        ),
        (
            RESPONSES,
            r#"{"input": "a", "tools": [{"type": "function", "name": "f"}]}"#,
            r#"{"type": "function", "function": {"name": "f"}}"#,
        ),
        (
            RESPONSES,
            r#"{"input": "a", "tools": [{"name": "f", "parameters": null, "type": "function"}]}"#,
            r#"{"type": "function", "function": {"name": "f", "parameters": null}}"#,
        ),
        (
            MESSAGES,
            r#"{"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "a"}], "tools": [
                {"input_schema": {"type": "object", "properties": {"x": {"type": "number", "minimum": 1.10, "maximum": 1e5}}}, "name": "f", "strict": true, "description": null}]}"#,
            r#"{"type": "function", "function": {"parameters": {"type": "object", "properties": {"x": {"type": "number", "minimum": 1.1, "maximum": 100000.0}}}, "name": "f", "strict": true, "description": null}}"#,
        ),
        (
            MESSAGES,
            r#"{"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "a"}], "tools": [
                {"name": "f", "input_schema": {"type": "object", "maximum": 12345678901234567890123}}]}"#,
            r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "maximum": 12345678901234567890123}}}"#,
        ),
    ]);
}

#[test]
fn arguments_of_earlier_calls_keep_large_numbers() {
    const EXPECTED: &str =
        r#"{"n": 12345678901234567890123, "m": [-9223372036854775809, 0, 1.1, 100000.0]}"#;
    const TEXT: &str =
        r#""{\"n\": 12345678901234567890123, \"m\": [-9223372036854775809, -0, 1.10, 1e5]}""#;
    const OBJECT: &str =
        r#"{ "n": 12345678901234567890123, "m": [-9223372036854775809, -0, 1.10, 1e5]}"#;
    let chat = |call: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", {call}}}, {{"role": "user", "content": "b"}}]}}"#
        )
    };
    let tool = |arguments: &str| {
        chat(&format!(
            r#""tool_calls": [{{"id": "1", "type": "function", "function": {{"name": "f", "arguments": "{{}}"}}}},
                {{"id": "2", "type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}]"#
        ))
    };
    let function = chat(&format!(
        r#""function_call": {{"name": "f", "arguments": {OBJECT}}}"#
    ));
    let response = format!(
        r#"{{"input": [{{"role": "user", "content": "a"}},
            {{"type": "function_call", "call_id": "1", "name": "f", "arguments": {TEXT}}},
            {{"type": "function_call_output", "call_id": "1", "output": "b"}}]}}"#
    );
    let message = format!(
        r#"{{"model": "m", "max_tokens": 100, "messages": [{{"role": "user", "content": "a"}},
            {{"role": "assistant", "content": [{{"type": "text", "text": "t"}},
                {{"type": "tool_use", "id": "1", "name": "f", "input": {OBJECT}}}]}},
            {{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "1", "content": "b"}}]}}]}}"#
    );
    check(&[
        (CHAT, tool(TEXT).as_str(), EXPECTED),
        (CHAT, tool(OBJECT).as_str(), EXPECTED),
        (CHAT, function.as_str(), EXPECTED),
        (RESPONSES, response.as_str(), EXPECTED),
        (MESSAGES, message.as_str(), EXPECTED),
    ]);
}
