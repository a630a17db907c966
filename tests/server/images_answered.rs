//! Tests of images from the request to the answer, with a model that has a tower: usage, the cache, other containers of
//! the same pixels, results of tools, and conversations that go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{get, post};
use crate::images_counted::{
    BEGIN, END, PAD, PIXEL, n_pads, pixel, text, tokens, url, user, world_with,
};
use crate::mean_tower::see;
use crate::world::World;

/// The pixel as PNG, with a comment; and another one, of 254 in place of 255.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADXRFWHRDb21tZW50AG90aGVyCbc9ggAAAAxJREFUeNpj+M/AAAADAQEA9wNBQwAAAABJRU5ErkJggg==";
const DARKER: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADXRFWHRDb21tZW50AG90aGVyCbc9ggAAAAxJREFUeNpj+MfAAAAC/gD/FtvXsgAAAABJRU5ErkJggg==";

struct Seeing {
    world: World,
    encoded: Arc<AtomicUsize>,
    _folder: TempDir,
}

impl Seeing {
    fn new() -> Self {
        let mut encoded = None;
        let (world, folder) = world_with(|_| (), |parts| encoded = Some(see(parts)));
        Self {
            world,
            encoded: encoded.expect("the engine has parts"),
            _folder: folder,
        }
    }

    fn encoded(&self) -> usize {
        self.encoded.load(Ordering::SeqCst)
    }

    /// The usage of a chat with this content, which generates little.
    fn ask(&self, content: Value) -> Value {
        let mut body = user(content);
        body["max_tokens"] = json!(3);
        let answer = post(self.world.addr, "/v1/chat/completions", &body).ok();
        let counted = tokens(&self.world, &body).len();
        assert_eq!(answer["usage"]["prompt_tokens"], counted, "{answer}");
        answer["usage"].clone()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        post(self.world.addr, path, body).ok()
    }
}

fn cached(usage: &Value) -> u64 {
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().expect("a number")
}

#[test]
fn a_picture_is_encoded_once_whatever_its_file_is() {
    let seeing = Seeing::new();
    let first = seeing.ask(json!([pixel(), text("Which one?")]));
    assert_eq!((seeing.encoded(), cached(&first)), (1, 0));
    let before = tokens(&seeing.world, &user(json!([pixel()]))).len() as u64 - 1;
    // Another question, another container.
    let second = seeing.ask(json!([pixel(), text("Why?")]));
    assert!(cached(&second) >= before, "{second}");
    let png = url(&format!("data:image/gif;base64,{PNG}"));
    let third = seeing.ask(json!([png, text("Which color?")]));
    assert!(cached(&third) >= before, "{third}");
    assert_eq!(seeing.encoded(), 1);
    // One level of one sample: none of the image's six tokens is cached.
    let darker = url(&format!("data:image/png;base64,{DARKER}"));
    let fourth = seeing.ask(json!([darker, text("Which one?")]));
    assert!(cached(&fourth) <= before + 1 - 6, "{fourth}");
    assert_eq!(seeing.encoded(), 2);
    seeing.world.wait_until_idle();
}

#[test]
fn every_api_answers_about_images() {
    let seeing = Seeing::new();
    let source = json!({"type": "base64", "media_type": "image/png", "data": PIXEL});
    let image = json!({"type": "image", "source": source});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [text("a screenshot"), image]});
    let messages = json!({"model": "sees", "max_tokens": 3, "messages": [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "shoot", "input": {}}]},
        {"role": "user", "content": [result, text("Which colors?")]},
    ]});
    let answer = seeing.post("/v1/messages", &messages);
    let counted = seeing.post("/v1/messages/count_tokens", &messages);
    let usage = &answer["usage"];
    let fields = [
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ];
    let prompt: u64 = fields.iter().filter_map(|name| usage[*name].as_u64()).sum();
    assert_eq!(counted["input_tokens"], prompt, "{usage}");
    let item = |text: &str| {
        json!({"role": "user", "content": [
            {"type": "input_text", "text": text},
            {"type": "input_image", "image_url": format!("data:image/png;base64,{PIXEL}")},
        ]})
    };
    let ask = json!({"max_output_tokens": 3, "input": [item("Which one?")]});
    let answer = seeing.post("/v1/responses", &ask);
    assert_eq!(seeing.encoded(), 1, "all of these are one picture");
    // The picture comes from the stored response.
    let next =
        json!({"max_output_tokens": 3, "input": "And why?", "previous_response_id": answer["id"]});
    let next = seeing.post("/v1/responses", &next);
    let (before, after) = (&answer["usage"], &next["usage"]);
    assert!(
        after["input_tokens"].as_u64() > before["input_tokens"].as_u64(),
        "{next}"
    );
    let native = json!({"text": "user: <|vision_start|><|image_pad|><|vision_end|>What?", "image_data": PIXEL,
        "sampling_params": {"max_new_tokens": 3}});
    let answer = seeing.post("/generate", &native);
    let n_pads = n_pads(&tokens(&seeing.world, &user(json!([pixel()]))));
    let prompt = answer["meta_info"]["prompt_tokens"].as_u64();
    assert!(prompt > Some(n_pads as u64 + 2), "{answer}");
    assert_eq!(seeing.encoded(), 1);
    seeing.world.wait_until_idle();
}

#[test]
fn ollamas_prompts_and_chats_have_images_before_the_text() {
    let seeing = Seeing::new();
    let options = json!({"num_predict": 2});
    let prompt = json!({"model": "sees", "prompt": "Why?", "images": [PIXEL], "stream": false, "options": options});
    let chat = json!({"model": "sees", "stream": false, "options": options,
        "messages": [{"role": "user", "content": "Why?", "images": [PIXEL]}]});
    let counted = tokens(&seeing.world, &user(json!([pixel(), text("Why?")]))).len();
    for (path, body) in [("/api/generate", &prompt), ("/api/chat", &chat)] {
        let answer = seeing.post(path, body);
        assert_eq!(answer["prompt_eval_count"], counted, "{path}: {answer}");
        assert_eq!(seeing.encoded(), 1, "{path}");
    }
    let shown = seeing.post("/api/show", &json!({"model": "sees"}));
    let capabilities = shown["capabilities"].to_string();
    assert!(capabilities.contains("\"vision\""), "{capabilities}");
    let about = |path: &str| get(seeing.world.addr, path).ok();
    assert_eq!(about("/props")["modalities"]["vision"], true);
    assert_eq!(about("/model_info")["has_image_understanding"], true);
    for (field, value, expected) in [
        (
            "images",
            json!(["!"]),
            "images[0]: the base64 text is invalid",
        ),
        (
            "images",
            json!([PIXEL, "Qk0="]),
            "images[1]: the image's first bytes (42 4d)",
        ),
        (
            "images",
            json!("iVBO"),
            "images is \"iVBO\", must be a list of base64 texts",
        ),
        (
            "raw",
            json!(true),
            "images have a place only in a chat template",
        ),
    ] {
        let mut body = prompt.clone();
        body[field] = value;
        let refused = post(seeing.world.addr, "/api/generate", &body);
        let error = refused.json();
        let text = error["error"].as_str().expect("an error is a text");
        assert!(refused.status == 400 && text.contains(expected), "{error}");
    }
    let mut wrong = chat.clone();
    wrong["messages"][0]["images"] = json!([PIXEL, "Qk0="]);
    let refused = post(seeing.world.addr, "/api/chat", &wrong);
    let error = refused.json();
    let text = error["error"].as_str().expect("an error is a text");
    let expected = "messages[0].images[1]: the image's first bytes (42 4d)";
    assert!(refused.status == 400 && text.contains(expected), "{error}");
    seeing.world.wait_until_idle();
}

#[test]
fn images_have_their_ids_and_no_log_probabilities() {
    let seeing = Seeing::new();
    let body = json!({"text": "a<|vision_start|><|image_pad|><|vision_end|>bc", "image_data": PIXEL,
        "return_logprob": true, "logprob_start_len": 0, "return_text_in_logprobs": true, "top_logprobs_num": 1,
        "sampling_params": {"max_new_tokens": 1}});
    let answer = seeing.post("/generate", &body);
    let meta = &answer["meta_info"];
    let triples = meta["input_token_logprobs"].as_array().expect("a list");
    assert_eq!(meta["prompt_tokens"], triples.len());
    let ids: Vec<u64> = triples.iter().filter_map(|it| it[1].as_u64()).collect();
    let image = [BEGIN, PAD, PAD, PAD, PAD, END];
    let place = ids.windows(image.len()).position(|part| part == image);
    let place = place.expect("the image has its ids");
    let (image, after) = triples[place..].split_at(image.len());
    assert!(image.iter().all(|it| it[0].is_null()), "{image:?}");
    assert_eq!(image[1][2], "<|image_pad|>");
    assert!(meta["input_top_logprobs"][place + 1].is_null(), "{meta}");
    assert!(!after.is_empty() && after.iter().all(|it| it[0].is_number()));
    seeing.world.wait_until_idle();
}
