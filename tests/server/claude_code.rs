//! Replays a recorded Claude Code task of twelve turns (`tests/fixtures/claude-code`), and checks that every call finds
//! the previous one in the cache. The model repeats its recorded replies.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::messages::{assemble, events};
use crate::world::World;

const TURNS: usize = 12;
/// The last answer, which no later call contains.
const END: &str = "Row 4 is yours, with seats 1 to 3.";

/// The fields that all calls share, and the messages of each call.
fn transcript() -> (Value, Vec<Vec<Value>>) {
    let file = "tests/fixtures/claude-code/twelve-turns.jsonl";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(file).expect("the fixture is readable");
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("lines are JSON"));
    let head = lines.next().expect("a first line");
    let messages = |line: Value| line["messages"].as_array().expect("a list").clone();
    (head, lines.map(messages).collect())
}

fn blocks(content: &Value) -> &[Value] {
    content.as_array().expect("a list of blocks")
}

/// The last text of a call's last user message: a tool result, or the task.
fn cue(messages: &[Value]) -> String {
    let last = messages
        .iter()
        .rfind(|message| message["role"] == "user")
        .and_then(|message| blocks(&message["content"]).last())
        .expect("the call has a user message");
    let text = last.get("text").or_else(|| last.get("content"));
    text.and_then(Value::as_str).expect("a text").to_owned()
}

/// Arguments as chat templates write them.
fn arguments(input: &Map<String, Value>) -> String {
    let fields: Vec<String> = input
        .iter()
        .map(|(name, value)| format!("{}: {value}", Value::from(name.as_str())))
        .collect();
    format!("{{{}}}", fields.join(", "))
}

/// An assistant message as the template renders it. The scripted model outputs the same text.
fn line(content: &Value) -> String {
    let parts: Vec<String> = blocks(content)
        .iter()
        .map(|block| match block["type"].as_str() {
            Some("text") => block["text"].as_str().expect("a text").to_owned(),
            _ => {
                let arguments = arguments(block["input"].as_object().expect("an object"));
                let name = &block["name"];
                format!(
                    "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
                )
            }
        })
        .collect();
    parts.join("\n")
}

/// For each turn, the cue (a text in the prompt by which the scripted model recognises the turn), and the reply.
fn lines(calls: &[Vec<Value>]) -> Vec<(String, String)> {
    let answer = |turn: usize| match calls.get(turn + 1) {
        Some(next) => line(&next[calls[turn].len()]["content"]),
        None => END.to_owned(),
    };
    let turns = calls.iter().enumerate();
    turns
        .map(|(turn, messages)| (cue(messages), answer(turn)))
        .collect()
}

/// Blocks without the ids of tool calls and without the line break between a text and a tool call.
fn comparable(content: &Value) -> Vec<Value> {
    let mut blocks = blocks(content).to_vec();
    for block in blocks.iter_mut().filter_map(Value::as_object_mut) {
        block.remove("id");
        if let Some(text) = block.get_mut("text") {
            *text = text.as_str().expect("a text").trim_end().into();
        }
    }
    blocks
}

#[test]
fn each_turn_of_claude_code_reuses_the_cached_earlier_turns() {
    for page in [1, 16] {
        replay(page);
    }
}

fn replay(page: u64) {
    let (mut body, calls) = transcript();
    assert_eq!(calls.len(), TURNS);
    let lines = lines(&calls);
    let lines: Vec<(&str, &str)> = lines
        .iter()
        .map(|(cue, line)| (cue.as_str(), line.as_str()))
        .collect();
    let world = World::scripted_with(&lines, |engine, _| engine.page_size = page as u32);
    let header = body["system"][0]["text"]
        .as_str()
        .expect("a header")
        .to_owned();
    assert!(header.starts_with("x-anthropic-billing-header: "));
    let mut before = None;
    for (turn, messages) in calls.iter().enumerate() {
        // Some versions end the header with a hash of each request. The server removes it, or nothing would be cached.
        let hash = (turn * 7919 + 0xa1b2) % 0xfffff;
        body["system"][0]["text"] = format!("{header} cch={hash:05x};").into();
        body["messages"] = messages.clone().into();
        let answer = assemble(&events(world.addr, body.clone()));
        if let Some(next) = calls.get(turn + 1) {
            let expected = &next[messages.len()]["content"];
            assert_eq!(comparable(&answer["content"]), comparable(expected));
            assert_eq!(answer["stop_reason"], "tool_use");
        } else {
            assert_eq!(answer["content"][0]["text"], END);
        }
        let number = |name: &str| answer["usage"][name].as_u64().expect("a number");
        let cached = number("cache_read_input_tokens");
        let prompt = number("input_tokens") + cached;
        if let Some(before) = before {
            // The template renders the previous answer exactly as the model wrote it, so the answer is cached as well.
            assert!(
                cached + page > before && cached < prompt,
                "turn {turn}, page size {page}: {cached} of {before} earlier tokens are cached"
            );
            assert_eq!(cached % page, 0);
        }
        // The K/V of the token that ends an answer is not computed.
        before = Some(prompt + number("output_tokens") - 1);
    }
    world.wait_until_idle();
}
