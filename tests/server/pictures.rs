//! Tests of pictures in chats with models whose towers encode them: a picture is cached by its pixels, whatever its file
//! is, and a conversation that goes on with it has the same bits as a new one.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress};
use souffleur::server::ServerConfig;
use tempfile::TempDir;

use crate::http::post;
use crate::images_counted::{text, tokens, url, user};
use crate::repository::repository;
use crate::seeing_models::{PAD, PIXTRAL, QWEN, Sight, count_encodings};
use crate::world::World;

struct Seeing {
    world: World,
    encodings: Arc<AtomicUsize>,
    _folder: TempDir,
}

impl Seeing {
    fn new(sight: Sight) -> Self {
        let folder = sight.folder();
        let config = EngineConfig {
            model_path: folder.path().to_owned(),
            served_model_name: Some("sees".to_owned()),
            max_total_tokens: Some(4096),
            max_running_requests: Some(4),
            threads: 1,
            ..EngineConfig::default()
        };
        let world = World::without_engine(ServerConfig::default());
        let parts = EngineParts::from_model(&config, Progress::silent());
        let mut parts = parts.unwrap_or_else(|error| panic!("{error}"));
        assert!(parts.images.is_some(), "chats have images");
        let encodings = count_encodings(&mut parts);
        let engine = Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"));
        world.state.slot().fill(engine);
        Self {
            world,
            encodings,
            _folder: folder,
        }
    }

    fn encodings(&self) -> usize {
        self.encodings.load(Ordering::SeqCst)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        post(self.world.addr, path, body).ok()
    }

    /// The cached tokens of a chat with a file, and all tokens.
    fn ask(&self, file: &str) -> (u64, Vec<u64>) {
        let picture = url(&format!("data:image/png;base64,{file}"));
        let mut body = user(json!([text("Look:"), picture, text("Which one?")]));
        let tokens = tokens(&self.world, &body);
        body["max_tokens"] = json!(2);
        let usage = self.post("/v1/chat/completions", &body)["usage"].take();
        assert_eq!(usage["prompt_tokens"], tokens.len());
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        (cached.as_u64().expect("a number"), tokens)
    }
}

/// One picture in several files, and a file in which one level of one pixel differs.
fn containers() -> (Vec<(String, String)>, String) {
    let file = repository().join("tests/fixtures/images/containers.json");
    let text = fs::read_to_string(file).expect("the fixture exists");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let owned = |value: &Value| value.as_str().expect("a text").to_owned();
    let same = found["same"].as_object().expect("an object");
    let same = same.iter().map(|(name, file)| (name.clone(), owned(file)));
    let same: Vec<(String, String)> = same.collect();
    (same, owned(&found["changed"]))
}

#[test]
fn the_same_pixels_are_cached_and_a_changed_level_is_not() {
    let (same, changed) = containers();
    for sight in [QWEN, PIXTRAL] {
        let seeing = Seeing::new(sight);
        for (at, (name, file)) in same.iter().enumerate() {
            let (cached, tokens) = seeing.ask(file);
            let expected = if at == 0 { 0 } else { tokens.len() as u64 - 1 };
            assert_eq!(cached, expected, "{}, {name}", sight.name);
            assert_eq!(seeing.encodings(), 1, "{}, {name}", sight.name);
        }
        let (cached, tokens) = seeing.ask(&changed);
        let pads = tokens.iter().position(|id| *id == u64::from(PAD));
        let before = pads.expect("the picture has tokens") as u64;
        // A hybrid has no state before the picture.
        let expected = if sight.is_hybrid { 0 } else { before };
        assert_eq!(cached, expected, "{}", sight.name);
        assert_eq!(seeing.encodings(), 2, "{}", sight.name);
        seeing.world.wait_until_idle();
    }
}

/// A message of the user to `/v1/responses`.
fn item(text: &str, file: &str) -> Value {
    json!({"role": "user", "content": [
        {"type": "input_text", "text": text},
        {"type": "input_image", "image_url": format!("data:image/png;base64,{file}")},
    ]})
}

/// The parts of an answer that depend on the prompt.
fn content(answer: &Value) -> (Value, Value) {
    let output = answer["output"][0]["content"].clone();
    (output, answer["usage"]["input_tokens"].clone())
}

#[test]
fn a_kept_response_with_a_picture_continues_with_the_same_bits() {
    let (same, changed) = containers();
    let file = &same[0].1;
    for sight in [QWEN, PIXTRAL] {
        let seeing = Seeing::new(sight);
        let respond = |input: Value, previous: Option<&Value>| {
            let mut body = json!({"input": input, "max_output_tokens": 6, "temperature": 0, "top_logprobs": 2,
                "include": ["message.output_text.logprobs"]});
            if let Some(previous) = previous {
                body["previous_response_id"] = previous["id"].clone();
            }
            seeing.post("/v1/responses", &body)
        };
        let first = respond(json!([item("Look: ", file)]), None);
        let second = respond(json!([item("Compare: ", &changed)]), Some(&first));
        assert_eq!(seeing.encodings(), 2, "{}", sight.name);
        let third = respond(json!("Why?"), Some(&second));
        assert_eq!(seeing.encodings(), 2, "{}", sight.name);
        // The same conversation on a server that knows nothing of it.
        let answered = |answer: &Value| {
            let text = &answer["output"][0]["content"][0]["text"];
            json!({"role": "assistant", "content": text.as_str().unwrap_or_default()})
        };
        let whole = json!([
            item("Look: ", file),
            answered(&first),
            item("Compare: ", &changed),
            answered(&second),
            {"role": "user", "content": "Why?"},
        ]);
        seeing.world.wait_until_idle();
        seeing.post("/flush_cache", &json!({}));
        let again = respond(whole, None);
        assert_eq!(content(&again), content(&third), "{}", sight.name);
        let cached = &again["usage"]["input_tokens_details"]["cached_tokens"];
        assert_eq!(*cached, 0, "{}", sight.name);
        seeing.world.wait_until_idle();
    }
}
