//! Tests of images in requests to a model that takes text only: refusals in each API, and notes in their places.

use serde_json::{Value, json};
use souffleur::server::ImageFallback;

use crate::http::post;
use crate::world::World;

const PIXEL: &str = "R0lGODlhAQABAIAAAP8AAAAAACwAAAAAAQABAAACAkQBADs=";
const NOTE: &str = "[image omitted: this model takes text only]";

fn chat(url: &str) -> Value {
    let parts = json!([
        {"type": "text", "text": "before"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "text", "text": "after"},
    ]);
    json!({"model": "scripted", "max_tokens": 1, "messages": [{"role": "user", "content": parts}]})
}

/// A call of each API that takes images, with one image, and the field that its refusal names.
fn calls() -> Vec<(&'static str, Value, &'static str)> {
    let data = format!("data:image/gif;base64,{PIXEL}");
    let source = json!({"type": "base64", "media_type": "image/gif", "data": PIXEL});
    let block = json!([{"type": "text", "text": "before"}, {"type": "image", "source": source}]);
    let result = json!([
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]},
        {"type": "text", "text": "after"},
    ]);
    let item = json!({"role": "user", "content": [
        {"type": "input_text", "text": "before"}, {"type": "input_image", "image_url": data},
    ]});
    let call = json!({"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "a", "output": [
        {"type": "input_image", "image_url": data},
    ]});
    let asks = |content: &Value| json!({"model": "scripted", "max_tokens": 1, "messages": [{"role": "user", "content": content}]});
    let ollama = json!({"role": "user", "content": "after", "images": [PIXEL]});
    vec![
        (
            "/v1/chat/completions",
            chat(&data),
            "messages[0].content[1].type",
        ),
        ("/tokenize", chat(&data), "messages[0].content[1].type"),
        ("/v1/messages", asks(&block), "messages[0].content[1].type"),
        (
            "/v1/messages/count_tokens",
            asks(&result),
            "messages[0].content[0].content[0].type",
        ),
        (
            "/v1/responses",
            json!({"max_output_tokens": 1, "input": [item]}),
            "input[0].content[1].type",
        ),
        (
            "/v1/responses/input_tokens",
            json!({"input": [item]}),
            "input[0].content[1].type",
        ),
        (
            "/v1/responses",
            json!({"max_output_tokens": 1, "input": [call, output]}),
            "input[1].output[0].type",
        ),
        (
            "/api/chat",
            json!({"model": "scripted", "messages": [ollama], "stream": false, "options": {"num_predict": 1}}),
            "messages[0].images",
        ),
        (
            "/api/generate",
            json!({"model": "scripted", "prompt": "after", "images": [data], "stream": false, "options": {"num_predict": 1}}),
            "images is not supported",
        ),
    ]
}

#[test]
fn a_model_without_a_tower_refuses_images_by_their_place() {
    let world = World::scripted(&[("", "yes")]);
    for (path, body, field) in calls() {
        let refused = post(world.addr, path, &body);
        let text = refused.json().to_string();
        assert_eq!(refused.status, 400, "{path}: {text}");
        assert!(text.contains(field), "{path}: {text}");
        assert!(text.contains("scripted takes no images"), "{path}: {text}");
    }
    world.wait_until_idle();
}

#[test]
fn notes_take_the_places_of_images() {
    let world = World::scripted_with(&[("", "yes")], |_, server| {
        server.image_fallback = ImageFallback::Note;
    });
    for (path, body, _) in calls() {
        let answer = post(world.addr, path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.json());
    }
    let template = post(
        world.addr,
        "/apply-template",
        &chat("https://images.example/a.png"),
    );
    let prompt = template.ok()["prompt"].to_string();
    let expected = format!("before\\n{NOTE}\\nafter");
    assert!(prompt.contains(&expected), "{prompt}");
    world.wait_until_idle();
}

#[test]
fn malformed_images_are_refused_by_their_fields() {
    let world = World::scripted(&[]);
    let user = |part: Value| json!({"model": "scripted", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]});
    let item = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (path, body, part) in [
        (
            "/v1/chat/completions",
            user(json!({"type": "image_url"})),
            "messages[0].content[0].image_url is missing",
        ),
        (
            "/v1/chat/completions",
            user(json!({"type": "image_url", "image_url": {"url": 5}})),
            "messages[0].content[0].image_url.url is 5",
        ),
        (
            "/v1/messages",
            user(json!({"type": "image"})),
            "messages[0].content[0].source is missing",
        ),
        (
            "/v1/messages",
            user(json!({"type": "image", "source": {"type": "file", "file_id": "a"}})),
            "messages[0].content[0].source.type is \"file\", must be base64 or url",
        ),
        (
            "/v1/messages",
            user(json!({"type": "image", "source": {"type": "base64", "data": 5}})),
            "messages[0].content[0].source.data is 5",
        ),
        (
            "/v1/responses",
            item(json!({"type": "input_image", "file_id": "a"})),
            "input[0].content[0].file_id is not supported",
        ),
        (
            "/v1/responses",
            item(json!({"type": "input_image"})),
            "input[0].content[0].image_url is missing",
        ),
    ] {
        let refused = post(world.addr, path, &body);
        let error = &refused.json()["error"]["message"];
        let text = error.as_str().expect("a text");
        assert!(
            refused.status == 400 && text.contains(part),
            "{text:?} has no {part:?}"
        );
    }
    world.wait_until_idle();
}

#[test]
fn plain_completions_refuse_the_fields_of_images() {
    let world = World::scripted(&[("", "yes")]);
    let body = |field: &str, value: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body[field] = value;
        post(world.addr, "/v1/completions", &body)
    };
    for field in [
        "image",
        "image_data",
        "image_url",
        "images",
        "multi_modal_data",
        "multimodal_data",
    ] {
        let refused = body(field, json!([PIXEL]));
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(field)));
        assert_eq!(body(field, Value::Null).status, 200, "{field}");
    }
    world.wait_until_idle();
}
