//! Tests of structured output over HTTP, with random weights and a bias towards closing tokens.

use serde_json::{Map, Value, json};
use souffleur::model::text::{TextModel, TokenPiece};

use crate::http::{post, stream};
use crate::scripted::checkpoint;
use crate::world::World;

const CLOSERS: [&str; 3] = ["\"", "}", "]"];
/// A bias that makes a token about as likely as all other tokens together.
const LIKELY: f32 = 6.0;
const SAMPLES: usize = 3;

fn world() -> World {
    World::with(|engine, _| {
        engine.model_path = checkpoint();
        engine.served_model_name = Some("agents".to_owned());
    })
}

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "city": {"type": "string", "minLength": 2},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 366}, "maxItems": 4}},
        "required": ["city", "unit", "days"], "additionalProperties": false})
}

pub fn closing_bias() -> Value {
    let text = TextModel::load(&checkpoint()).expect("the checkpoint is whole");
    let pieces = text.pieces().expect("bytes of tokens");
    let closes = |piece: &TokenPiece| {
        let matches = |closer: &&str| *piece == TokenPiece::Bytes(closer.as_bytes().to_vec());
        CLOSERS.iter().any(matches)
    };
    let ids = pieces.iter().enumerate().filter(|(_, piece)| closes(piece));
    Value::Object(Map::from_iter(
        ids.map(|(id, _)| (id.to_string(), json!(LIKELY))),
    ))
}

#[track_caller]
fn assert_valid(text: &str) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    assert!(jsonschema::is_valid(&schema(), &value), "{text}");
}

fn assert_distinct(texts: &[String]) {
    let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert_eq!(distinct.len(), texts.len(), "{texts:?}");
}

#[test]
fn samples_of_a_native_call_are_valid_and_streamed_alike() {
    let world = world();
    let mut call = json!({"text": "The weather:", "sampling_params": {
        "json_schema": schema().to_string(), "n": SAMPLES, "max_new_tokens": 400, "sampling_seed": 5,
        "logit_bias": closing_bias()}});
    let whole = post(world.addr, "/generate", &call).ok();
    let texts: Vec<String> = (0..SAMPLES)
        .map(|index| {
            let sample = &whole[index];
            let meta = &sample["meta_info"];
            assert_eq!(meta["finish_reason"]["type"], "stop", "{sample}");
            sample["text"].as_str().expect("a text").to_owned()
        })
        .collect();
    texts.iter().for_each(|text| assert_valid(text));
    assert_distinct(&texts);
    call["stream"] = true.into();
    let mut streamed = vec![String::new(); SAMPLES];
    for event in stream(world.addr, "/generate", &call).rest() {
        let index = event["index"].as_u64().expect("an index") as usize;
        let so_far = event["text"].as_str().expect("a text");
        assert!(so_far.starts_with(&streamed[index]), "{event}");
        so_far.clone_into(&mut streamed[index]);
    }
    assert_eq!(streamed, texts);
    world.wait_until_idle();
}

#[test]
fn samples_of_a_chat_are_valid_and_streamed_alike() {
    let world = world();
    let mut call = json!({"model": "agents", "messages": [{"role": "user", "content": "The weather?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "strict": true, "schema": schema()}},
        "chat_template_kwargs": {"enable_thinking": false},
        "n": SAMPLES, "seed": 5, "temperature": 1, "max_completion_tokens": 400, "logit_bias": closing_bias()});
    let whole = post(world.addr, "/v1/chat/completions", &call).ok();
    let texts: Vec<String> = (0..SAMPLES)
        .map(|index| {
            let choice = &whole["choices"][index];
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            let text = choice["message"]["content"].as_str();
            text.expect("a text").to_owned()
        })
        .collect();
    texts.iter().for_each(|text| assert_valid(text));
    assert_distinct(&texts);
    call["stream"] = true.into();
    let mut streamed = vec![String::new(); SAMPLES];
    for event in stream(world.addr, "/v1/chat/completions", &call).rest() {
        for choice in event["choices"].as_array().expect("choices") {
            let index = choice["index"].as_u64().expect("an index") as usize;
            let piece = choice["delta"]["content"].as_str().unwrap_or_default();
            streamed[index].push_str(piece);
        }
    }
    assert_eq!(streamed, texts);
    world.wait_until_idle();
}
