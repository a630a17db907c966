//! The clients: each reads a stream to its end, and returns its content without its division into events.
//!
//! Left out are ids, times, and counts that a death may change: cached tokens and retractions.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::http::{self, Events};
use crate::load::{self, Call, Door};
use crate::server::block_on;
use crate::watch::{Stream, Watch};

/// The content of the answer to a call, which must be a success.
pub fn read(addr: SocketAddr, watch: &Watch, call: &Call) -> Value {
    let mut stream = watch.stream();
    let events = || http::stream(addr, call.door.path(), &call.body);
    match call.door {
        Door::Native => native(events(), &mut stream),
        Door::Completion | Door::Chat => choices(events(), &mut stream),
        Door::Responses => response(events(), &mut stream),
        Door::Socket => block_on(socket(addr, &call.body, &mut stream)),
    }
}

/// The text of a short request.
pub fn short(addr: SocketAddr) -> Value {
    let answer = http::post(addr, Door::Completion.path(), &load::short());
    answer.ok()["choices"][0]["text"].take()
}

/// The JSON of the next event; `None` after the last one.
fn next(events: &mut Events) -> Option<Value> {
    loop {
        let event = events.next_event()?;
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        if let Some(data) = data.filter(|data| *data != "[DONE]") {
            return Some(parse(data));
        }
    }
}

#[track_caller]
fn parse(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value["error"].is_null(), "the request failed: {text}");
    value
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn without(value: &Value, keys: &[&str]) -> Value {
    let object = value.as_object().into_iter().flatten();
    let kept = object.filter(|(key, _)| !keys.contains(&key.as_str()));
    let kept = kept.map(|(key, value)| (key.clone(), value.clone()));
    Value::Object(kept.collect::<Map<_, _>>())
}

/// The meta information of a native answer, without fields that differ between two runs.
fn meta(meta: &Value) -> Value {
    let differ = [
        "id",
        "cached_tokens",
        "cached_tokens_details",
        "num_retractions",
        "e2e_latency",
    ];
    let mut meta = without(meta, &differ);
    if let Some(meta) = meta.as_object_mut() {
        // How many drafts a step has depends on measured times.
        meta.retain(|name, _| !name.starts_with("spec_"));
    }
    meta
}

fn native(mut events: Events, stream: &mut Stream<'_>) -> Value {
    let mut last: BTreeMap<u64, Value> = BTreeMap::new();
    while let Some(event) = next(&mut events) {
        if !list(&event["output_ids"]).is_empty() {
            stream.has_token();
        }
        last.insert(event["index"].as_u64().unwrap_or(0), event);
    }
    let samples = last.values().map(|event| {
        assert!(!event["meta_info"]["finish_reason"].is_null(), "{event}");
        let (text, tokens) = (&event["text"], &event["output_ids"]);
        json!({"text": text, "tokens": tokens, "meta": meta(&event["meta_info"])})
    });
    assert!(!last.is_empty(), "the stream has no events");
    samples.collect()
}

/// A choice of a completion or of a chat.
#[derive(Default)]
struct Choice {
    text: String,
    reasoning: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    logprobs: BTreeMap<String, Vec<Value>>,
    finish: Value,
    matched: Value,
}

impl Choice {
    fn add(&mut self, choice: &Value) {
        let delta = &choice["delta"];
        self.text += text(&choice["text"]);
        self.text += text(&delta["content"]);
        self.reasoning += text(&delta["reasoning_content"]);
        for part in list(&delta["tool_calls"]) {
            let function = &part["function"];
            if function["name"].is_string() {
                let name = text(&function["name"]).to_owned();
                self.calls.push((name, String::new()));
            }
            let (_, arguments) = self.calls.last_mut().expect("a call begins with its name");
            *arguments += text(&function["arguments"]);
        }
        for (key, new) in choice["logprobs"].as_object().into_iter().flatten() {
            let all = self.logprobs.entry(key.clone()).or_default();
            all.extend_from_slice(list(new));
        }
        if !choice["finish_reason"].is_null() {
            self.finish = choice["finish_reason"].clone();
            self.matched = choice["matched_stop"].clone();
        }
    }

    fn has_token(&self) -> bool {
        !(self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty())
    }

    fn content(&self) -> Value {
        assert!(!self.finish.is_null(), "the stream has no end");
        json!({
            "text": self.text, "reasoning": self.reasoning, "calls": self.calls, "logprobs": self.logprobs,
            "finish": self.finish, "matched": self.matched,
        })
    }
}

fn choices(mut events: Events, stream: &mut Stream<'_>) -> Value {
    let mut choices: BTreeMap<u64, Choice> = BTreeMap::new();
    let mut usage = Value::Null;
    while let Some(event) = next(&mut events) {
        for choice in list(&event["choices"]) {
            let index = choice["index"].as_u64().expect("an index");
            let of_index = choices.entry(index).or_default();
            of_index.add(choice);
            if of_index.has_token() {
                stream.has_token();
            }
        }
        if event["usage"].is_object() {
            usage = counts(&event["usage"], ["prompt_tokens", "completion_tokens"]);
        }
    }
    let choices: Vec<Value> = choices.values().map(Choice::content).collect();
    assert!(!choices.is_empty() && usage.is_array(), "{usage}");
    json!({"choices": choices, "usage": usage})
}

fn counts(usage: &Value, names: [&str; 2]) -> Value {
    names.iter().map(|name| usage[*name].clone()).collect()
}

fn response(mut events: Events, stream: &mut Stream<'_>) -> Value {
    let mut last = Value::Null;
    while let Some(mut event) = next(&mut events) {
        if text(&event["type"]).ends_with(".delta") {
            stream.has_token();
        }
        last = event["response"].take();
    }
    let status = text(&last["status"]);
    assert!(matches!(status, "completed" | "incomplete"), "{last}");
    let items = list(&last["output"]).iter();
    let items: Vec<Value> = items
        .map(|item| without(item, &["id", "call_id"]))
        .collect();
    json!({
        "status": status, "output": items, "details": last["incomplete_details"],
        "usage": counts(&last["usage"], ["input_tokens", "output_tokens"]),
    })
}

async fn socket(addr: SocketAddr, body: &Value, stream: &mut Stream<'_>) -> Value {
    let url = format!("ws://{addr}{}", Door::Socket.path());
    let request = url.into_client_request().expect("a URL");
    let connection = TcpStream::connect(addr).await.expect("the server listens");
    let (mut socket, _) = client_async(request, connection)
        .await
        .expect("the server speaks WebSocket");
    let call = Message::text(body.to_string());
    socket.send(call).await.expect("the server reads");
    let (mut whole, mut tokens) = (String::new(), Vec::new());
    let mut logprobs: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    loop {
        let message = socket.next().await.expect("the server sends a frame");
        let message = message.expect("the frame is valid");
        if matches!(message, Message::Ping(_) | Message::Pong(_)) {
            continue;
        }
        let frame = parse(message.to_text().expect("frames are text"));
        whole += text(&frame["delta"]);
        tokens.extend_from_slice(list(&frame["output_ids"]));
        if !tokens.is_empty() {
            stream.has_token();
        }
        let frame_meta = frame["meta"].as_object().into_iter().flatten();
        // The counts of drafts are no log probabilities.
        let is_counted = |key: &str| key.starts_with("spec_");
        for (key, new) in frame_meta.filter(|(key, new)| new.is_array() && !is_counted(key)) {
            let all = logprobs.entry(key.clone()).or_default();
            all.extend_from_slice(list(new));
        }
        if frame["done"] == true {
            let keys: Vec<&str> = logprobs.keys().map(String::as_str).collect();
            let end = without(&meta(&frame["meta"]), &keys);
            return json!({"text": whole, "tokens": tokens, "logprobs": logprobs, "meta": end});
        }
    }
}
