//! Tests of the errors for prompts that are too long: the texts that each API's clients expect, and the token count.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::http::{post, stream};
use crate::websocket::Client;
use crate::world::{CONTEXT_TOKENS, World, block_on};

/// Maximum tokens of a prompt.
const LIMIT: usize = CONTEXT_TOKENS - 2;

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// The number of tokens of a text that is sent as a plain prompt.
fn tokens(world: &World, text: &str) -> usize {
    let engine = world.engine();
    let encoded = engine.text().expect("a tokenizer").encode(text);
    encoded.expect("token ids").len()
}

#[track_caller]
fn refusal(world: &World, path: &str, body: &Value) -> (Value, String) {
    let answer = post(world.addr, path, body);
    assert_eq!(answer.status, 400, "{path}: {}", answer.body);
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
    let message = error["message"].as_str().expect("a text").to_owned();
    (error, message)
}

#[test]
fn errors_for_plain_prompts_state_the_token_count() {
    let world = World::scripted(&[]);
    let text = "word, and another word ".repeat(40_000);
    let n = tokens(&world, &text);
    assert!(n > LIMIT);
    let openai = format!(
        "This model's maximum context length is {LIMIT} tokens. However, you requested {n} tokens in the prompt. \
         Please reduce the length of the messages."
    );
    let body = json!({"prompt": text});
    assert_eq!(refusal(&world, "/v1/completions", &body).1, openai);
    let in_a_list = json!({"prompt": ["a", text]});
    assert_eq!(refusal(&world, "/v1/completions", &in_a_list).1, openai);
    let sglang = format!(
        "the input ({n} tokens) is longer than the model's context length ({LIMIT} tokens): shorten the prompt, or \
         restart the server with a larger --context-length or --max-total-tokens"
    );
    for stream in [false, true] {
        let body = json!({"text": text, "stream": stream});
        assert_eq!(refusal(&world, "/generate", &body).1, sglang);
    }
    let ids = vec![5; LIMIT + 7];
    let (_, message) = refusal(&world, "/v1/completions", &json!({"prompt": ids}));
    assert!(
        message.contains(&format!("you requested {} tokens", LIMIT + 7)),
        "{message}"
    );
    world.wait_until_idle();
}

#[test]
fn errors_for_chats_have_the_text_of_their_api() {
    let world = World::scripted(&[]);
    let text = "word ".repeat(70_000);
    let (openai, message) = refusal(
        &world,
        "/v1/chat/completions",
        &json!({"messages": user(&text)}),
    );
    assert_eq!(openai["type"], "invalid_request_error");
    let start =
        format!("This model's maximum context length is {LIMIT} tokens. However, you requested 14");
    assert!(message.starts_with(&start), "{message}");
    let body = json!({"model": "m", "max_tokens": 5, "messages": user(&text)});
    let (_, message) = refusal(&world, "/v1/messages", &body);
    let counted: Vec<&str> = message.split(' ').collect();
    let [
        "prompt",
        "is",
        "too",
        "long:",
        tokens,
        "tokens",
        ">",
        limit,
        "maximum",
    ] = counted[..]
    else {
        panic!("{message}")
    };
    assert_eq!(limit, LIMIT.to_string());
    let tokens: usize = tokens.parse().expect("a number");
    assert!((140_000..140_200).contains(&tokens), "{message}");
    let (_, message) = refusal(&world, "/v1/messages/count_tokens", &body);
    assert!(message.starts_with("prompt is too long: "), "{message}");
    let body = json!({"input": text});
    let expected = "Your input exceeds the context window of this model. This model's maximum context length is ";
    for path in ["/v1/responses", "/v1/responses/input_tokens"] {
        let (_, message) = refusal(&world, path, &body);
        assert!(message.starts_with(expected), "{message}");
    }
    world.wait_until_idle();
}

#[test]
fn a_streamed_response_begins_and_then_fails() {
    let world = World::scripted(&[]);
    let body = json!({"input": "word ".repeat(70_000), "stream": true});
    let mut events = stream(world.addr, "/v1/responses", &body);
    let received: Vec<Value> = std::iter::from_fn(|| {
        let event = events.next_event()?;
        let (_, data) = event.split_once("\ndata: ").expect("events have names");
        Some(serde_json::from_str(data).expect("data is JSON"))
    })
    .collect();
    let names: Vec<&str> = received
        .iter()
        .map(|event| event["type"].as_str().expect("a name"))
        .collect();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.failed"
        ]
    );
    let response = &received[2]["response"];
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"]["code"], "context_length_exceeded");
    let message = response["error"]["message"].as_str().expect("a text");
    assert!(message.contains("exceeds the context window"), "{message}");
    // Other errors set the HTTP status, and no event is sent.
    let wrong = json!({"input": "hello", "temperature": -1, "stream": true});
    assert_eq!(post(world.addr, "/v1/responses", &wrong).status, 400);
    world.wait_until_idle();
}

#[test]
fn the_websocket_has_the_error_text_of_the_generate_endpoint() {
    let world = World::scripted(&[]);
    block_on(async {
        let connecting = Client::connect_to(world.addr, "/v1/ws/generate", None);
        let mut client = connecting.await.expect("a connection");
        let text = "word ".repeat(70_000);
        client
            .send(json!({"op": "generate", "rid": "a", "text": text}))
            .await;
        let Message::Text(answer) = client.any().await else {
            panic!("the answer is not text")
        };
        let answer: Value = serde_json::from_str(&answer).expect("frames are JSON");
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(
            message.starts_with("the input (140002 tokens)"),
            "{message}"
        );
    });
    world.wait_until_idle();
}
