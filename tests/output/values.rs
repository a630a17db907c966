//! Generates random call arguments, and writes them in the tool call formats.

use serde_json::{Map, Value, json};

use super::transcript::Transcript;

/// Pieces of strings, many of which are syntax of a format.
const PARTS: [&str; 33] = [
    "Ada",
    "é",
    "日本",
    "😀",
    "\"",
    "'",
    "\\",
    "\n",
    "\t",
    " ",
    "/",
    "\u{1}",
    "{",
    "}",
    "[",
    "]",
    ", ",
    ";",
    "<tool_call>",
    "</tool_call>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<think>",
    "</think>",
    "</parameter>!",
    "</function>",
    "</arg_value>!",
    "<|tool_call_end|>",
    "<|end|>",
    "<|call|>",
    "<|start|>",
    "```",
];

/// The arguments of a call of `seat`, with values of the types in its schema.
pub fn arguments(rng: &mut fastrand::Rng) -> Map<String, Value> {
    let mut arguments = Map::new();
    for _ in 0..rng.usize(0..=3) {
        let (key, value) = match rng.u8(0..7) {
            0 => ("row", json!(rng.i32(-9..1000))),
            1 => ("window", json!(rng.bool())),
            2 => ("price", number(rng)),
            3 => ("tags", list(rng, 2)),
            4 => ("meal", object(rng, 2)),
            5 => ("note", json!(text(rng))),
            _ => ("who", json!(text(rng))),
        };
        arguments.insert(key.to_owned(), value);
    }
    arguments
}

pub fn text(rng: &mut fastrand::Rng) -> String {
    let n_parts = rng.usize(0..=4);
    (0..n_parts)
        .map(|_| PARTS[rng.usize(0..PARTS.len())])
        .collect()
}

fn number(rng: &mut fastrand::Rng) -> Value {
    let numbers = [
        json!(null),
        json!(0.5),
        json!(-12.25),
        json!(3),
        json!(1e30),
    ];
    numbers[rng.usize(0..numbers.len())].clone()
}

fn list(rng: &mut fastrand::Rng, depth: u32) -> Value {
    let n_items = rng.usize(0..=2);
    (0..n_items).map(|_| any(rng, depth)).collect()
}

fn object(rng: &mut fastrand::Rng, depth: u32) -> Value {
    let mut map = Map::new();
    for _ in 0..rng.usize(0..=2) {
        map.insert(text(rng), any(rng, depth));
    }
    Value::Object(map)
}

fn any(rng: &mut fastrand::Rng, depth: u32) -> Value {
    match rng.u8(0..6) {
        0 if depth > 0 => list(rng, depth - 1),
        1 if depth > 0 => object(rng, depth - 1),
        2 => json!(rng.bool()),
        3 => number(rng),
        _ => json!(text(rng)),
    }
}

pub fn json_text(value: &Value, rng: &mut fastrand::Rng) -> String {
    match rng.u8(0..4) {
        0 => serde_json::to_string_pretty(value).expect("it is JSON"),
        1 => ascii(&value.to_string()),
        2 => value.to_string().replace('/', "\\/"),
        _ => value.to_string(),
    }
}

/// Escapes all characters that are not ASCII.
fn ascii(json: &str) -> String {
    let mut text = String::new();
    for unit in json.encode_utf16() {
        match u8::try_from(unit).ok().filter(u8::is_ascii) {
            Some(byte) => text.push(byte.into()),
            None => text.push_str(&format!("\\u{unit:04x}")),
        }
    }
    text
}

pub fn python(value: &Value, rng: &mut fastrand::Rng) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_text(text, rng),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| python(item, rng)).collect();
            format!("[{}]", items.join(if rng.bool() { "," } else { ", " }))
        }
        Value::Object(map) => {
            let item = |(key, value): (&String, &Value)| {
                let key = python_text(key, rng);
                format!("{key}: {}", python(value, rng))
            };
            let items: Vec<String> = map.iter().map(item).collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

fn python_text(text: &str, rng: &mut fastrand::Rng) -> String {
    let quote = if rng.bool() { '"' } else { '\'' };
    let mut written = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => written.push_str("\\n"),
            '\t' => written.push_str("\\t"),
            '\u{1}' => written.push_str("\\x01"),
            '😀' if rng.bool() => written.push_str("\\U0001f600"),
            'é' if rng.bool() => written.push_str("\\u00e9"),
            '\\' => written.push_str("\\\\"),
            _ if c == quote => {
                written.push('\\');
                written.push(c);
            }
            _ => written.push(c),
        }
    }
    written.push(quote);
    written
}

pub fn value_text(value: &Value, rng: &mut fastrand::Rng) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) if rng.bool() => python(value, rng),
        _ => json_text(value, rng),
    }
}

/// Appends text in which tags are sometimes tokens and sometimes characters.
pub fn push_with_random_tags(transcript: &mut Transcript, text: &str, rng: &mut fastrand::Rng) {
    let mut rest = text;
    while let Some((at, tag)) = next_tag(rest) {
        transcript.text(&rest[..at]);
        if rng.bool() {
            transcript.tag(tag)
        } else {
            transcript.text(tag)
        }
        rest = &rest[at + tag.len()..];
    }
    transcript.text(rest);
}

fn next_tag(text: &str) -> Option<(usize, &'static str)> {
    let tags = PARTS
        .iter()
        .filter(|part| part.len() > 5 && part.is_ascii());
    let found = tags.filter_map(|tag| text.find(tag).map(|at| (at, *tag)));
    found.min()
}
