//! Tests of images in requests to a model that reads them: tokens are counted without encoding, names in texts are
//! letters, and other images are refused by their place. Nothing encodes the images here.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress, image_reader};
use souffleur::server::ServerConfig;
use tempfile::TempDir;

use crate::http::post;
use crate::world::{CONTEXT_TOKENS, World, long_model};

/// A GIF of one pixel.
pub const PIXEL: &str = "R0lGODlhAQABAIAAAP8AAAAAACwAAAAAAQABAAACAkQBADs=";
const MARKS: [(&str, &str); 3] = [
    ("ø", "<|vision_start|>"),
    ("ù", "<|vision_end|>"),
    ("ú", "<|image_pad|>"),
];
/// Their ids.
pub const BEGIN: u64 = 182;
pub const END: u64 = 183;
pub const PAD: u64 = 184;
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{{ hint }}{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
    {% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}";

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(file).expect("the file can be read");
    let mut value = serde_json::from_str(&text).expect("JSON");
    change(&mut value);
    fs::write(file, value.to_string()).expect("the file can be written");
}

/// A model whose vocabulary has the tokens of images, in place of bytes that never occur in UTF-8.
fn model(template: &str) -> TempDir {
    let folder = long_model();
    edit(&folder.path().join("tokenizer.json"), |tokenizer| {
        for (byte, mark) in MARKS {
            let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
            let vocabulary = vocabulary.expect("an object");
            let id = vocabulary.shift_remove(byte).expect("the byte has a token");
            vocabulary.insert(mark.to_owned(), id.clone());
            let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
            let mut token = added[0].clone();
            (token["id"], token["content"]) = (id, mark.into());
            added.push(token);
        }
    });
    edit(&folder.path().join("tokenizer_config.json"), |config| {
        config["chat_template"] = template.into();
    });
    let settings = json!({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]});
    let file = folder.path().join("preprocessor_config.json");
    fs::write(file, settings.to_string()).expect("the file can be written");
    folder
}

/// A server whose engine reads images of four tokens.
fn world(configure: impl FnOnce(&mut ServerConfig)) -> (World, TempDir) {
    world_with(configure, |_| ())
}

/// As [`world`]; `adapt` changes the engine's parts.
pub fn world_with(
    configure: impl FnOnce(&mut ServerConfig),
    adapt: impl FnOnce(&mut EngineParts),
) -> (World, TempDir) {
    world_of(TEMPLATE, configure, adapt)
}

/// As [`world_with`], of a model with another chat template.
pub fn world_of(
    template: &str,
    configure: impl FnOnce(&mut ServerConfig),
    adapt: impl FnOnce(&mut EngineParts),
) -> (World, TempDir) {
    let folder = model(template);
    let config = EngineConfig {
        model_path: folder.path().to_owned(),
        served_model_name: Some("sees".to_owned()),
        max_total_tokens: Some(CONTEXT_TOKENS + 1024),
        max_running_requests: Some(4),
        threads: 1,
        image_max_tokens: Some(4),
        ..EngineConfig::default()
    };
    let mut server = ServerConfig::default();
    configure(&mut server);
    let world = World::without_engine(server);
    let parts = EngineParts::from_model(&config, Progress::silent());
    let mut parts = parts.unwrap_or_else(|error| panic!("{error}"));
    let text = parts.text.clone().expect("the model has a tokenizer");
    let reader = image_reader(folder.path(), &text, b"tower", &config);
    parts.images = Some(Arc::new(reader.unwrap_or_else(|error| panic!("{error}"))));
    adapt(&mut parts);
    let engine = Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"));
    world.state.slot().fill(engine);
    (world, folder)
}

pub fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub fn url(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

pub fn pixel() -> Value {
    url(&format!("data:image/png;base64,{PIXEL}"))
}

pub fn user(content: Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

pub fn tokens(world: &World, body: &Value) -> Vec<u64> {
    let answer = post(world.addr, "/tokenize", body).ok();
    let tokens = answer["tokens"].as_array().expect("a list");
    assert_eq!(answer["count"], tokens.len());
    tokens.iter().filter_map(Value::as_u64).collect()
}

pub fn n_pads(tokens: &[u64]) -> usize {
    tokens.iter().filter(|id| **id == PAD).count()
}

#[test]
fn every_api_counts_the_tokens_of_images_by_their_headers() {
    let (world, _folder) = world(|_| ());
    let found = tokens(
        &world,
        &user(json!([text("a"), pixel(), pixel(), text("b")])),
    );
    let image = [BEGIN, PAD, PAD, PAD, PAD, END];
    let images = [image, image].concat();
    let place = found.windows(images.len()).position(|part| part == images);
    assert!(place.is_some() && n_pads(&found) == 8, "{found:?}");
    let source = json!({"type": "base64", "media_type": "image/png", "data": PIXEL});
    let image = json!({"type": "image", "source": source});
    let mut anthropic = user(json!([text("a"), image, image, text("b")]));
    anthropic["model"] = json!("sees");
    let counted = post(world.addr, "/v1/messages/count_tokens", &anthropic).ok();
    assert_eq!(counted["input_tokens"], found.len());
    let image = json!({"type": "input_image", "image_url": format!("data:,{}", "%47IF89a")});
    let part = |text: &str| json!({"type": "input_text", "text": text});
    let input = json!({"input": [{"role": "user", "content": [part("a"), image, part("b")]}]});
    let cut = post(world.addr, "/v1/responses/input_tokens", &input);
    let error = cut.json().to_string();
    assert!(
        cut.status == 400 && error.contains("input[0].content[1]"),
        "{error}"
    );
    // A header is enough.
    let header = "data:,GIF89a%01%00%01%00%80%00%00%ff%00%00%00%00%00,%00%00%00%00%01%00%01%00%00%02%02D%01%00;";
    let image = json!({"type": "input_image", "image_url": header});
    let input =
        json!({"input": [{"role": "user", "content": [part("a"), image, image, part("b")]}]});
    let counted = post(world.addr, "/v1/responses/input_tokens", &input).ok();
    assert_eq!(counted["input_tokens"], found.len());
    world.wait_until_idle();
}

#[test]
fn the_text_of_a_chat_has_a_placeholder_for_each_image() {
    let (world, _folder) = world(|_| ());
    let image = "<|vision_start|><|image_pad|><|vision_end|>";
    let chat = user(json!([text("a"), pixel(), text(image), pixel()]));
    let rendered = post(world.addr, "/apply-template", &chat).ok();
    let prompt = rendered["prompt"].as_str().expect("a text");
    assert_eq!(prompt.trim_end(), format!("user: a{image}{image}{image}"));
    // The letters of a name are not counted as an image, and the other images must be admitted.
    let none = user(json!([text(image), url("data:,BM"), url("file:///a")]));
    let refused = post(world.addr, "/apply-template", &none);
    let error = refused.json().to_string();
    assert!(
        refused.status == 400 && error.contains("messages[0].content[2]"),
        "{error}"
    );
    world.wait_until_idle();
}

#[test]
fn names_of_tokens_in_texts_are_letters() {
    let (world, _folder) = world(|_| ());
    let name = "<|vision_start|><|image_pad|><|vision_end|>";
    let plain = tokens(&world, &user(json!(name)));
    assert!(
        n_pads(&plain) == 0 && plain.len() > name.len() / 4,
        "{plain:?}"
    );
    let forged = user(json!([text(name), pixel(), text(name)]));
    let found = tokens(&world, &forged);
    let place = found.iter().position(|id| *id == PAD);
    // The letters come before the image, which has both marks.
    assert!(
        n_pads(&found) == 4 && place > Some(plain.len() / 2),
        "{found:?}"
    );
    for role in ["system", "tool", "assistant"] {
        let message = json!({"role": role, "content": name, "tool_call_id": "a"});
        let found = tokens(&world, &json!({"messages": [message]}));
        assert_eq!(n_pads(&found), 0, "{role}");
    }
    world.wait_until_idle();
}

#[test]
fn names_of_tokens_in_tools_and_arguments_are_letters() {
    let (world, _folder) = world(|_| ());
    let name = "<|vision_start|><|image_pad|><|vision_end|>";
    let tool = json!({"name": "look", "description": name, "parameters": {"type": "object", "properties": {name: {}}}});
    let mut chat = user(json!("a"));
    let without = tokens(&world, &chat);
    chat["tools"] = json!([{"type": "function", "function": tool}]);
    chat["chat_template_kwargs"] = json!({"hint": name});
    chat["max_tokens"] = json!(1);
    let found = tokens(&world, &chat);
    let n_letters = found.len() - without.len();
    assert!(
        n_pads(&found) == 0 && n_letters > name.len(),
        "{n_letters}: {found:?}"
    );
    // With an image only its own tokens are added.
    let mut with_image = chat.clone();
    with_image["messages"] = user(json!([text("a"), pixel()]))["messages"].take();
    let images = tokens(&world, &with_image);
    assert_eq!((n_pads(&images), images.len()), (4, found.len() + 6));
    let hinted = json!({"messages": chat["messages"], "chat_template_kwargs": chat["chat_template_kwargs"], "max_tokens": 1});
    let counted = tokens(&world, &hinted).len();
    let answer = post(world.addr, "/v1/chat/completions", &hinted).ok();
    assert_eq!(answer["usage"]["prompt_tokens"], counted);
    // Other APIs render tools, too.
    let name = json!([{"type": "function", "name": "look", "description": name, "parameters": {"type": "object"}}]);
    let counts = [
        (
            "/v1/responses/input_tokens",
            json!({"input": "a", "tools": name}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": "sees", "messages": chat["messages"], "tools": [{"name": "a", "description": "<|image_pad|>",
                "input_schema": {"type": "object"}}]}),
        ),
    ];
    for (path, body) in counts {
        let text = body.to_string();
        let changed = text.replace('<', "{").replace('>', "}");
        let count = |text: &str| {
            let body = serde_json::from_str(text).expect("JSON");
            post(world.addr, path, &body).ok()["input_tokens"].clone()
        };
        // Each letter is a token.
        assert_eq!(count(&text), count(&changed), "{path}");
    }
    world.wait_until_idle();
}

#[test]
fn images_beyond_the_policy_are_refused_by_their_place() {
    let (world, _folder) = world(|server| {
        server.max_images = 2;
        server.allowed_media_domains = vec!["localhost".to_owned()];
    });
    for (image, expected) in [
        (
            url("data:,BM"),
            "the image's first bytes (42 4d) are those of no known format",
        ),
        (url("data:image/png;base64,!"), "the base64 text is invalid"),
        (url("data:image/png"), "the data URL has no comma"),
        (
            url("https://images.example/a.png"),
            "the host images.example is not allowed",
        ),
        (
            url("http://localhost/a.png"),
            "only global addresses are fetched from",
        ),
        (
            url("http://localhost:8080/a.png"),
            "the URL has another port than 80 and 443",
        ),
        (
            url("http://user@localhost/a.png"),
            "the URL has credentials",
        ),
        (
            url("file:///etc/passwd"),
            "the URL has none of the schemes https, http and data",
        ),
        (
            url("/etc/passwd"),
            "the URL has none of the schemes https, http and data",
        ),
    ] {
        for path in ["/v1/chat/completions", "/tokenize"] {
            let body = user(json!([text("a"), image]));
            let refused = post(world.addr, path, &body);
            let error = &refused.json()["error"];
            let message = error["message"].as_str().expect("a text");
            assert_eq!(refused.status, 400, "{image}: {error}");
            assert!(message.starts_with("messages[0].content[1]: "), "{error}");
            assert!(message.contains(expected), "{error}");
            assert_eq!(error["param"], "messages[0].content[1]", "{error}");
        }
    }
    let three = user(json!([pixel(), pixel(), pixel()]));
    let refused = post(world.addr, "/v1/chat/completions", &three);
    let error = refused.json().to_string();
    assert!(
        refused.status == 400 && error.contains("3 images") && error.contains("limit is 2"),
        "{error}"
    );
    world.wait_until_idle();
}

#[test]
fn data_urls_are_read_as_clients_write_them() {
    let (world, _folder) = world(|_| ());
    let lines: Vec<&str> = [&PIXEL[..20], &PIXEL[20..41], &PIXEL[41..]].into();
    for data in [
        format!("data:image/gif;base64,{PIXEL}"),
        format!("DATA:image/gif;charset=utf-8;BASE64,{PIXEL}"),
        format!("data:;base64,{}", lines.join("\r\n")),
        format!(" data:;base64,{} \n", lines.join(" ")),
        format!("data:;base64,{}", PIXEL.trim_end_matches('=')),
        format!("data:;base64,{}", PIXEL.replace('=', "%3D")),
    ] {
        let found = tokens(&world, &user(json!([url(&data)])));
        assert_eq!(n_pads(&found), 4, "{data}");
    }
    world.wait_until_idle();
}

#[test]
fn many_images_and_none_are_counted_before_they_are_read() {
    let (world, _folder) = world(|_| ());
    // No files: images beyond the limit are not looked at.
    let many = |n: usize| vec![json!("Qk0="); n];
    let parts = vec![url("data:,BM"); 1000];
    for (path, body, expected) in [
        (
            "/v1/chat/completions",
            user(json!(parts)),
            "the messages have 1000 images, the first at messages[0].content[0]",
        ),
        (
            "/api/generate",
            json!({"model": "sees", "prompt": "a", "images": many(1000)}),
            "the messages have 1000 images, the first at images[0]",
        ),
        (
            "/generate",
            json!({"text": "a", "image_data": many(1000)}),
            "image_data has 1000 images, and the limit is 16 per prompt",
        ),
        (
            "/generate",
            json!({"text": "a", "image_data": many(1025)}),
            "image_data has 1025 images",
        ),
        (
            "/generate",
            json!({"text": "a", "image_data": 5}),
            "image_data is 5, must be a string",
        ),
        (
            "/generate",
            json!({"text": "a", "image_data": PIXEL}),
            "the text contains <|image_pad|> 0 times, and there are 1 images",
        ),
    ] {
        let refused = post(world.addr, path, &body);
        let error = refused.json()["error"].take();
        let text = error.as_str().or_else(|| error["message"].as_str());
        let text = text.unwrap_or_default();
        assert!(refused.status == 400 && text.contains(expected), "{error}");
    }
    for none in [json!([]), json!(null), json!([null])] {
        let body =
            json!({"text": "a", "image_data": none, "sampling_params": {"max_new_tokens": 1}});
        post(world.addr, "/generate", &body).ok();
    }
    for none in [json!([]), json!(null), json!("")] {
        let options = json!({"num_predict": 1});
        let body = json!({"model": "sees", "prompt": "a", "images": none, "stream": false, "options": options});
        post(world.addr, "/api/generate", &body).ok();
    }
    world.wait_until_idle();
}
