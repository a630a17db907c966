//! Tests of `POST /tokenize` and `POST /detokenize`, with and without `/v1`, and of `POST /apply-template`.

use serde_json::{Value, json};
use souffleur::server::ServerConfig;

use crate::http::{open, post, read_response};
use crate::world::World;

#[track_caller]
fn check_refused(world: &World, path: &str, body: &Value, param: Value, part: &str) {
    let refused = post(world.addr, path, body);
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["param"]), (400, &param), "{error}");
    let text = error["message"].as_str().expect("a text");
    assert!(text.contains(part), "{text:?} has no {part:?}");
}

#[test]
fn a_text_becomes_tokens_and_the_tokens_the_text() {
    const TEXT: &str = "Grüße, 観客 🎭! <tool_call>";
    let world = World::scripted(&[]);
    let context = world.engine().model().context_length;
    for prefix in ["", "/v1"] {
        let (encode, decode) = (format!("{prefix}/tokenize"), format!("{prefix}/detokenize"));
        let body = json!({"model": "m", "prompt": TEXT, "return_token_strs": true});
        let answer = post(world.addr, &encode, &body).ok();
        let tokens = answer["tokens"].as_array().expect("a list");
        assert_eq!(answer["count"], tokens.len());
        assert_eq!(answer["max_model_len"], context);
        assert_eq!(
            answer["token_strs"].as_array().map(Vec::len),
            Some(tokens.len())
        );
        let body = json!({"tokens": tokens, "skip_special_tokens": false});
        let text = post(world.addr, &decode, &body).ok();
        assert_eq!(
            (&text["text"], &text["prompt"]),
            (&json!(TEXT), &json!(TEXT))
        );
    }
    world.wait_until_idle();
}

#[test]
fn lists_of_prompts_get_lists_of_tokens() {
    let world = World::scripted(&[]);
    let prompts = json!(["one two", "", "three"]);
    let answer = post(world.addr, "/tokenize", &json!({"prompt": prompts})).ok();
    let lists = answer["tokens"].as_array().expect("a list");
    let counts: Vec<usize> = lists
        .iter()
        .map(|list| list.as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(answer["count"], json!(counts));
    assert!(answer.get("token_strs").is_none());
    let text = post(world.addr, "/detokenize", &json!({"tokens": lists})).ok();
    assert_eq!(text, json!({"text": prompts}));
}

#[test]
fn a_chat_has_the_tokens_of_its_prompt() {
    let world = World::scripted(&[("", "Well.")]);
    let tool = json!({"type": "function", "function": {"name": "clock"}});
    let mut chat = json!({
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}],
        "tools": [tool], "chat_template_kwargs": {"enable_thinking": false},
    });
    let answer = post(world.addr, "/tokenize", &chat).ok();
    chat["max_tokens"] = 1.into();
    let whole = post(world.addr, "/v1/chat/completions", &chat).ok();
    assert_eq!(answer["count"], whole["usage"]["prompt_tokens"]);
    let shown = json!({"tokens": answer["tokens"], "skip_special_tokens": false});
    let text = post(world.addr, "/detokenize", &shown).ok();
    let text = text["text"].as_str().expect("a text");
    assert!(text.starts_with("<|im_start|>system\nBe brief."), "{text}");
    assert!(text.ends_with("</think>\n\n"), "{text}");
    chat["add_generation_prompt"] = false.into();
    let shorter = post(world.addr, "/tokenize", &chat).ok();
    assert!(shorter["count"].as_u64() < answer["count"].as_u64());
    // Special tokens are left out of a text unless the request includes them.
    let plain = post(
        world.addr,
        "/detokenize",
        &json!({"tokens": answer["tokens"]}),
    )
    .ok();
    assert!(
        !plain["text"]
            .as_str()
            .expect("a text")
            .contains("<|im_start|>")
    );
    world.wait_until_idle();
}

/// The tokens of llama.cpp's form, whose answer has no other field.
#[track_caller]
fn tokens_of_content(world: &World, body: &Value) -> Vec<Value> {
    let answer = post(world.addr, "/tokenize", body).ok();
    let tokens = answer["tokens"].as_array().expect("a list").clone();
    assert_eq!(answer, json!({"tokens": tokens}));
    tokens
}

/// The bytes of a token's piece: a text, or the bytes of a part of a character.
#[track_caller]
fn piece_bytes(token: &Value) -> Vec<u8> {
    match &token["piece"] {
        Value::String(text) => text.clone().into_bytes(),
        Value::Array(bytes) => {
            let bytes = bytes.iter().map(|byte| byte.as_u64().expect("a byte"));
            bytes.map(|byte| byte as u8).collect()
        }
        other => panic!("{other} is no piece"),
    }
}

#[test]
fn a_content_gets_llama_cpps_form() {
    const TEXT: &str = "<|im_start|>Grüße 🎭";
    let world = World::scripted(&[]);
    let plain = json!({"prompt": TEXT, "add_special_tokens": false});
    let plain = post(world.addr, "/tokenize", &plain).ok();
    let tokens = tokens_of_content(&world, &json!({"content": TEXT}));
    assert_eq!(plain["tokens"], json!(tokens));
    let whole = post(world.addr, "/tokenize", &json!({"prompt": TEXT})).ok();
    let added = tokens_of_content(&world, &json!({"content": TEXT, "add_special": true}));
    assert_eq!(whole["tokens"], json!(added));
    let shown = tokens_of_content(&world, &json!({"content": TEXT, "with_pieces": true}));
    let ids: Vec<&Value> = shown.iter().map(|token| &token["id"]).collect();
    assert_eq!(json!(ids), json!(tokens));
    assert_eq!(shown[0]["piece"], "<|im_start|>");
    assert!(shown.iter().any(|token| token["piece"].is_array()));
    let spelled: Vec<u8> = shown.iter().flat_map(piece_bytes).collect();
    assert_eq!(spelled, TEXT.as_bytes());
    assert!(tokens_of_content(&world, &json!({"content": ""})).is_empty());
    world.wait_until_idle();
}

#[test]
fn a_content_may_have_names_of_special_tokens_as_letters() {
    const TEXT: &str = "<|im_start|>user";
    let world = World::scripted(&[]);
    let tokens = tokens_of_content(&world, &json!({"content": TEXT}));
    let letters = json!({"content": TEXT, "parse_special": false, "add_special": true});
    let letters = tokens_of_content(&world, &letters);
    assert!(!letters.contains(&tokens[0]), "{letters:?}");
    let skips = json!({"tokens": letters, "skip_special_tokens": true});
    assert_eq!(
        post(world.addr, "/detokenize", &skips).ok()["content"],
        TEXT
    );
    // llama.cpp's clients expect special tokens in a text.
    let kept = post(world.addr, "/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(
        (&kept["content"], &kept["text"]),
        (&json!(TEXT), &json!("user"))
    );
    let skips = json!({"tokens": tokens, "skip_special_tokens": true});
    assert_eq!(
        post(world.addr, "/detokenize", &skips).ok()["content"],
        "user"
    );
    world.wait_until_idle();
}

#[test]
fn a_template_is_applied_as_the_chat_applies_it() {
    let world = World::scripted(&[("", "Well.")]);
    let tool = json!({"type": "function", "function": {"name": "clock"}});
    let mut chat = json!({
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}],
        "tools": [tool], "chat_template_kwargs": {"enable_thinking": false}, "max_tokens": 1,
    });
    let answer = post(world.addr, "/apply-template", &chat).ok();
    let prompt = answer["prompt"].as_str().expect("a text");
    assert_eq!(answer, json!({"prompt": prompt}));
    assert!(
        prompt.starts_with("<|im_start|>system\nBe brief."),
        "{prompt}"
    );
    assert!(
        prompt.contains("clock") && prompt.ends_with("</think>\n\n"),
        "{prompt}"
    );
    let tokens = tokens_of_content(&world, &json!({"content": prompt}));
    let of_chat = post(world.addr, "/tokenize", &chat).ok();
    assert_eq!(of_chat["tokens"], json!(tokens));
    let whole = post(world.addr, "/v1/chat/completions", &chat).ok();
    assert_eq!(whole["usage"]["prompt_tokens"], tokens.len());
    chat["add_generation_prompt"] = false.into();
    let answer = post(world.addr, "/apply-template", &chat).ok();
    let shorter = answer["prompt"].as_str().expect("a text");
    assert!(
        shorter.len() < prompt.len() && prompt.starts_with(shorter),
        "{shorter}"
    );
    world.wait_until_idle();
}

#[test]
fn a_template_is_refused_as_the_chat_refuses_it() {
    let world = World::scripted(&[]);
    let messages = json!([{"role": "user", "content": "x"}]);
    for body in [
        json!({}),
        json!({"messages": []}),
        json!({"messages": [{"role": "user"}]}),
        json!({"messages": messages, "tools": 5}),
        json!({"messages": messages, "chat_template_kwargs": []}),
        json!({"messages": messages, "add_generation_prompt": 5}),
        json!({"messages": messages, "chat_template": "x"}),
        json!({"messages": messages, "max_tokens": -1}),
    ] {
        let refused = ["/apply-template", "/v1/chat/completions"].map(|path| {
            let answer = post(world.addr, path, &body);
            (answer.status, answer.json())
        });
        assert_eq!(refused[0].0, 400, "{body}");
        assert_eq!(refused[0], refused[1], "{body}");
    }
    world.wait_until_idle();
}

#[test]
fn keys_of_images_are_shown_as_images() {
    let world = World::scripted(&[]);
    let mut tokens = tokens_of_content(&world, &json!({"content": "Look:"}));
    // The keys of two adjacent images.
    let key = 1_u32 << 30 | 5;
    let first = key | 1 << 29 | 0x3f2a << 13;
    tokens.extend([first, key, key, first, key].map(|key| json!(key)));
    let text = post(world.addr, "/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(text["text"], "Look:[image 3f2a…][image 3f2a…]");
    world.wait_until_idle();
}

#[test]
fn invalid_calls_are_refused_by_their_field() {
    let world = World::scripted_with(&[], |_, server| server.max_batch_requests = 2);
    let messages = json!([{"role": "user", "content": "x"}]);
    for (body, param, part) in [
        (json!({}), json!("prompt"), "prompt is missing"),
        (json!({"prompt": 5}), json!("prompt"), "prompt is 5"),
        (json!({"prompt": [5]}), json!("prompt[0]"), "prompt[0] is 5"),
        (
            json!({"prompt": ["a", "b", "c"]}),
            json!("prompt"),
            "limit is 2",
        ),
        (
            json!({"prompt": "x", "messages": messages}),
            json!("prompt"),
            "send one of them",
        ),
        (
            json!({"messages": []}),
            json!("messages"),
            "messages is empty",
        ),
        (
            json!({"prompt": "x", "add_special_tokens": 5}),
            json!("add_special_tokens"),
            "is 5",
        ),
        (
            json!({"prompt": "word ".repeat(70_000)}),
            Value::Null,
            "you requested 140002 tokens",
        ),
    ] {
        check_refused(&world, "/tokenize", &body, param, part);
    }
    for (body, param, part) in [
        (json!({}), json!("tokens"), "tokens is missing"),
        (json!({"tokens": "x"}), json!("tokens"), "tokens is \"x\""),
        (
            json!({"tokens": [-1]}),
            json!("tokens[0]"),
            "tokens[0] is -1",
        ),
        (
            json!({"tokens": [1_000_000]}),
            Value::Null,
            "tokens contains token id 1000000",
        ),
        (
            json!({"tokens": vec![0; (1 << 20) + 1]}),
            json!("tokens"),
            "limit is 1048576",
        ),
    ] {
        check_refused(&world, "/detokenize", &body, param, part);
    }
    world.wait_until_idle();
    let loading = World::without_engine(ServerConfig::default());
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        let body = json!({"prompt": "x", "tokens": [1]});
        assert_eq!(post(loading.addr, path, &body).status, 503, "{path}");
    }
}

#[test]
fn invalid_contents_are_refused_by_their_field() {
    let world = World::scripted(&[]);
    let messages = json!([{"role": "user", "content": "x"}]);
    for (body, param, part) in [
        (json!({"content": 5}), json!("content"), "content is 5"),
        (
            json!({"content": ["x", 5]}),
            json!("content"),
            "must be a string",
        ),
        (
            json!({"content": "x", "prompt": "x"}),
            json!("content"),
            "send one of them",
        ),
        (
            json!({"content": "x", "messages": messages}),
            json!("content"),
            "send one of them",
        ),
        (
            json!({"content": "x", "parse_special": 5}),
            json!("parse_special"),
            "is 5",
        ),
        (
            json!({"content": "x", "add_special_tokens": true}),
            json!("add_special_tokens"),
            "not supported",
        ),
        (
            json!({"content": "word ".repeat(70_000)}),
            Value::Null,
            "you requested 140",
        ),
        (
            json!({"content": "word ".repeat(70_000), "parse_special": false}),
            Value::Null,
            "you requested 140",
        ),
    ] {
        check_refused(&world, "/tokenize", &body, param, part);
    }
    world.wait_until_idle();
}

#[test]
fn large_texts_wait_for_each_other_and_delay_no_other_request() {
    let world = World::new();
    let body = json!({"prompt": "some words of a long text. ".repeat(100_000)});
    // The memory budget of answers admits these eight requests at once. Their texts are encoded one at a time.
    let large: Vec<_> = (0..7)
        .map(|_| open(world.addr, "/tokenize", &body))
        .collect();
    let disconnected = open(world.addr, "/tokenize", &body);
    drop(disconnected);
    for _ in 0..3 {
        let call = json!({"prompt": "The sea", "max_tokens": 4});
        post(world.addr, "/v1/completions", &call).ok();
    }
    for stream in large {
        let refused = read_response(stream);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(
            refused.body.contains("you requested at least "),
            "{}",
            refused.body
        );
    }
    let small = post(world.addr, "/tokenize", &json!({"prompt": "The sea"})).ok();
    assert!(small["count"].as_u64() > Some(0));
    world.wait_until_idle();
}
