//! Tests of `input_embeds` of `POST /generate` and of the WebSocket.

use std::path::Path;

use serde_json::{Value, json};

use crate::embeddings::embeddings;
use crate::http::post;
use crate::websocket::Client;
use crate::world::{World, block_on};

const WIDTH: usize = 64;

/// The embeddings of tokens as JSON, one list for each.
fn embeddings_json(tokens: &[u32]) -> Value {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3");
    let vectors = embeddings(&model, tokens);
    let rows = (0..vectors.len()).map(|at| json!(vectors.values(at..at + 1)));
    rows.collect()
}

fn greedy(max_new_tokens: u32) -> Value {
    json!({"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": true})
}

#[test]
fn embeddings_of_tokens_get_the_same_output_as_the_tokens() {
    let world = World::new();
    let prompts: [&[u32]; 2] = [&[10, 11, 12, 13, 200], &[42]];
    let ids = json!({"input_ids": prompts, "sampling_params": greedy(9), "return_logprob": true});
    let expected = post(world.addr, "/generate", &ids).ok();
    let embeds = json!({
        "input_embeds": [embeddings_json(prompts[0]), embeddings_json(prompts[1])],
        "sampling_params": greedy(9), "return_logprob": true,
    });
    for _ in 0..2 {
        let got = post(world.addr, "/generate", &embeds).ok();
        for (got, expected) in [(&got[0], &expected[0]), (&got[1], &expected[1])] {
            assert_eq!(got["output_ids"], expected["output_ids"]);
            assert_eq!(got["text"], expected["text"]);
            let (meta, of_tokens) = (&got["meta_info"], &expected["meta_info"]);
            for name in ["output_token_logprobs", "prompt_tokens"] {
                assert_eq!(meta[name], of_tokens[name], "{name}");
            }
            assert_eq!(meta["cached_tokens"], 0);
        }
    }
    // A single prompt gets one answer instead of a list.
    let one = json!({"input_embeds": embeddings_json(prompts[0]), "sampling_params": greedy(9)});
    let got = post(world.addr, "/generate", &one).ok();
    assert_eq!(got["output_ids"], expected[0]["output_ids"]);
    block_on(async {
        let client = Client::connect_to(world.addr, "/v1/ws/generate", None).await;
        let mut client = client.expect("a connection");
        let mut call = one.clone();
        call["op"] = "generate".into();
        client.send(call).await;
        let mut tokens = Vec::new();
        loop {
            let frame = client.json().await;
            tokens.extend(
                frame["output_ids"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
            if frame["done"] == true {
                break;
            }
        }
        assert_eq!(json!(tokens), expected[0]["output_ids"]);
    });
    world.wait_until_idle();
}

#[track_caller]
fn check_refused(world: &World, fields: Value, param: &str, part: &str) {
    let refused = post(world.addr, "/generate", &fields);
    let error = &refused.json()["error"];
    let named = error["param"].as_str().unwrap_or_default();
    assert!(refused.status == 400 && named.starts_with(param), "{error}");
    let text = error["message"].as_str().expect("a text");
    assert!(
        text.contains(part) && text.len() < 400,
        "{text:?} has no {part:?}"
    );
}

#[test]
fn errors_of_invalid_embeddings_name_their_index() {
    let world = World::with(|engine, _| engine.context_length = Some(64));
    let embedding = || vec![0.5; WIDTH];
    let table = [
        (
            json!([[0.5, 1.0]]),
            "input_embeds[0] has 2 values, must have 64, the model's hidden size",
        ),
        (
            json!([embedding(), vec![1.0; WIDTH + 3]]),
            "input_embeds[1] has 67 values",
        ),
        (
            json!([[embedding()], [embedding(), [1.0]]]),
            "input_embeds[1][1] has 1 values",
        ),
        (json!([[]]), "input_embeds[0] has 0 values"),
        (json!([[[]]]), "input_embeds[0][0] has 0 values"),
        (json!(embedding()), "input_embeds is not valid: invalid"),
        (json!("vectors"), "must be a list of vectors"),
        (json!({"a": 1}), "must be a list of vectors"),
        (json!([embedding(), 7]), "input_embeds"),
        (json!([[vec!["a"; WIDTH]]]), "input_embeds[0][0][0]"),
        (json!([vec![1e300; WIDTH]]), "input_embeds[0] holds inf"),
        (json!(vec![embedding(); 65]), "more than 64 vectors"),
    ];
    for (embeds, part) in table {
        check_refused(
            &world,
            json!({"input_embeds": embeds}),
            "input_embeds",
            part,
        );
    }
    let both = json!({"input_embeds": [embedding()], "text": "a"});
    check_refused(&world, both, "input_embeds", "send one of them");
    let scored =
        json!({"input_embeds": [embedding()], "return_logprob": true, "logprob_start_len": 0});
    check_refused(&world, scored, "logprob_start_len", "no log probabilities");
    // An empty `input_embeds` counts as absent.
    let none = json!({"input_embeds": [], "text": "a", "sampling_params": greedy(2)});
    post(world.addr, "/generate", &none).ok();
    world.wait_until_idle();
}
