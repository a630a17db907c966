//! Tests of `POST /v1/embeddings` and `POST /v1/score`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::http::post;
use crate::world::World;

const WIDTH: usize = 64;

fn embed(world: &World, body: &Value) -> Value {
    post(world.addr, "/v1/embeddings", body).ok()
}

fn values(embedding: &Value) -> Vec<f32> {
    let numbers = embedding["embedding"].as_array().expect("a list");
    let numbers = numbers
        .iter()
        .map(|value| value.as_f64().expect("a number"));
    numbers.map(|value| value as f32).collect()
}

/// The values of an embedding in base64.
fn decoded(embedding: &Value) -> Vec<f32> {
    let encoded = embedding["embedding"].as_str().expect("a text");
    let bytes = STANDARD.decode(encoded).expect("base64");
    let values = bytes.chunks_exact(4);
    let values = values.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
    values.collect()
}

#[track_caller]
fn check_refused(world: &World, path: &str, body: &Value, param: &str, part: &str) {
    let refused = post(world.addr, path, body);
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.status, &error["param"]),
        (400, &json!(param)),
        "{error}"
    );
    let text = error["message"].as_str().expect("a text");
    assert!(
        text.contains(part) && text.len() < 400,
        "{text:?} has no {part:?}"
    );
}

#[test]
fn a_text_and_its_token_ids_have_the_same_embedding_in_either_encoding() {
    let world = World::new();
    let texts = json!(["The cat sat.", "Grüße"]);
    let answer = embed(&world, &json!({"model": "tiny", "input": texts}));
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("list"), &json!("tiny"))
    );
    let data = answer["data"].as_array().expect("a list");
    assert_eq!(data.len(), 2);
    for (index, one) in data.iter().enumerate() {
        assert_eq!(
            (&one["object"], &one["index"]),
            (&json!("embedding"), &json!(index))
        );
        let values = values(one);
        let norm: f32 = values.iter().map(|value| value * value).sum();
        assert!(values.len() == WIDTH && (norm - 1.0).abs() < 1e-4, "{norm}");
    }
    assert_ne!(data[0]["embedding"], data[1]["embedding"]);
    let tokens = post(world.addr, "/tokenize", &json!({"prompt": texts})).ok();
    let n_tokens: u64 = tokens["count"]
        .as_array()
        .expect("a list of counts")
        .iter()
        .flat_map(Value::as_u64)
        .sum();
    assert_eq!(answer["usage"]["prompt_tokens"], n_tokens);
    assert_eq!(answer["usage"]["total_tokens"], n_tokens);
    // Token ids: a list of lists, then a single list.
    let from_tokens = embed(
        &world,
        &json!({"input": tokens["tokens"], "dimensions": WIDTH}),
    );
    assert_eq!(from_tokens["data"], answer["data"]);
    let one = embed(
        &world,
        &json!({"input": tokens["tokens"][0], "encoding_format": "float"}),
    );
    assert_eq!(one["data"][0]["embedding"], data[0]["embedding"]);
    // OpenAI's clients request base64.
    let encoded = embed(
        &world,
        &json!({"input": texts[0], "encoding_format": "base64"}),
    );
    assert_eq!(decoded(&encoded["data"][0]), values(&data[0]));
    let mean = embed(&world, &json!({"input": texts[0], "pooling": "mean"}));
    assert_ne!(mean["data"][0]["embedding"], data[0]["embedding"]);
    world.wait_until_idle();
}

#[test]
fn dimensions_keep_the_first_values_with_norm_1() {
    let world = World::new();
    let whole = embed(&world, &json!({"input": "The cat sat."}));
    let whole = values(&whole["data"][0]);
    for dimensions in [1, 7, WIDTH - 1] {
        let mut call = json!({"input": ["The cat sat."], "dimensions": dimensions});
        let cut = embed(&world, &call);
        let cut = values(&cut["data"][0]);
        let kept = &whole[..dimensions];
        let norm: f32 = kept.iter().map(|value| value * value).sum::<f32>().sqrt();
        let is_close = |(cut, kept): (&f32, &f32)| (cut - kept / norm).abs() < 1e-5;
        assert!(
            cut.len() == dimensions && cut.iter().zip(kept).all(is_close),
            "{dimensions}: {cut:?} {kept:?}"
        );
        call["encoding_format"] = "base64".into();
        let encoded = embed(&world, &call);
        assert_eq!(decoded(&encoded["data"][0]), cut, "{dimensions}");
    }
    world.wait_until_idle();
}

#[test]
fn invalid_fields_of_embedding_requests_are_refused_by_name() {
    let world = World::with(|_, config| config.max_batch_requests = 4);
    let table = [
        (json!({}), "input", "input is missing"),
        (json!({"input": []}), "input", "empty list"),
        (json!({"input": ["a", " \n"]}), "input", "input[1] is empty"),
        (json!({"input": ""}), "input", "input[0] is empty"),
        (json!({"input": {"text": "a"}}), "input", "must be a string"),
        (json!({"input": ["a", 7]}), "input[1]", "must be a string"),
        (json!({"input": vec!["a"; 5]}), "input", "limit is 4"),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            "encoding_format",
            "float or base64",
        ),
        (
            json!({"input": "a", "pooling": "cls"}),
            "pooling",
            "last or mean",
        ),
        (
            json!({"input": "a", "dimensions": 65}),
            "dimensions",
            "is 65, limits are 1 to 64",
        ),
        (
            json!({"input": "a", "dimensions": 0}),
            "dimensions",
            "is 0, limits are 1 to 64",
        ),
    ];
    for (body, param, part) in table {
        check_refused(&world, "/v1/embeddings", &body, param, part);
    }
    let beyond = post(world.addr, "/v1/embeddings", &json!({"input": [[1, 288]]}));
    assert_eq!(beyond.status, 400, "{}", beyond.body);
    world.wait_until_idle();
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().expect("a list").iter();
    list.map(|value| value.as_f64().expect("a number"))
        .collect()
}

fn is_close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

#[test]
fn scores_are_the_probabilities_of_the_labels_after_each_item() {
    let world = World::new();
    let (query, items, labels) = ([10, 11, 12], [vec![20, 21], vec![30]], [40, 7, 200]);
    let call = |fields: Value| {
        let mut body = json!({"query": query, "items": items, "label_token_ids": labels});
        for (name, value) in fields.as_object().expect("an object") {
            body[name] = value.clone();
        }
        post(world.addr, "/v1/score", &body).ok()
    };
    let probabilities = |prompt: &[u32]| -> Vec<f64> {
        let body = json!({
            "input_ids": prompt, "return_logprob": true, "token_ids_logprob": labels,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        });
        let reply = post(world.addr, "/generate", &body).ok();
        let chosen = &reply["meta_info"]["output_token_ids_logprobs"][0];
        let chosen = chosen.as_array().expect("a list").iter();
        chosen
            .map(|entry| entry[0].as_f64().expect("a number").exp())
            .collect()
    };
    let scored = call(json!({}));
    assert_eq!(scored["object"], "scoring");
    assert_eq!(scored["usage"]["prompt_tokens"], 5 + 4);
    let soft = call(json!({"apply_softmax": true}));
    let item_first = call(json!({"item_first": true}));
    for (index, item) in items.iter().enumerate() {
        let expected = probabilities(&[&query[..], item].concat());
        let scores = numbers(&scored["scores"][index]);
        assert!(is_close(&scores, &expected), "{scores:?} {expected:?}");
        let sum: f64 = expected.iter().sum();
        let shares: Vec<f64> = expected.iter().map(|one| one / sum).collect();
        assert!(is_close(&numbers(&soft["scores"][index]), &shares));
        let expected = probabilities(&[&item[..], &query].concat());
        assert!(is_close(&numbers(&item_first["scores"][index]), &expected));
    }
    // Texts are joined before they are tokenized. A string in `items` is one item.
    let text = json!({"query": "The cat", "items": " sat", "label_token_ids": labels});
    let scored = post(world.addr, "/v1/score", &text).ok();
    let tokens = post(world.addr, "/tokenize", &json!({"prompt": "The cat sat"})).ok();
    let tokens: Vec<u32> = tokens["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|token| token.as_u64().expect("an id") as u32)
        .collect();
    assert!(is_close(
        &numbers(&scored["scores"][0]),
        &probabilities(&tokens)
    ));
    world.wait_until_idle();
}

#[test]
fn invalid_fields_of_score_requests_are_refused_by_name() {
    let world = World::with(|_, config| config.max_batch_requests = 4);
    let table = [
        (
            json!({"query": "a", "items": ["b"]}),
            "label_token_ids",
            "is missing",
        ),
        (
            json!({"query": "a", "items": ["b"], "label_token_ids": []}),
            "label_token_ids",
            "is missing",
        ),
        (
            json!({"query": "a", "items": ["b"], "label_token_ids": [288]}),
            "label_token_ids",
            "288",
        ),
        (
            json!({"query": "a", "items": ["b"], "label_token_ids": vec![1; 5000]}),
            "label_token_ids",
            "limit is 1024",
        ),
        (
            json!({"items": ["b"], "label_token_ids": [1]}),
            "query",
            "is missing",
        ),
        (
            json!({"query": ["a", "b"], "items": ["b"], "label_token_ids": [1]}),
            "query",
            "one list of token ids",
        ),
        (
            json!({"query": "a", "items": [[1]], "label_token_ids": [1]}),
            "items",
            "differ in type",
        ),
        (
            json!({"query": "a", "items": [], "label_token_ids": [1]}),
            "items",
            "empty list",
        ),
        (
            json!({"query": "a", "items": vec!["b"; 5], "label_token_ids": [1]}),
            "items",
            "limit is 4",
        ),
    ];
    for (body, param, part) in table {
        check_refused(&world, "/v1/score", &body, param, part);
    }
    world.wait_until_idle();
}

#[test]
fn a_query_counts_towards_the_body_budget_once_per_item_before_it_is_copied() {
    let world = World::with(|_, config| {
        config.max_body_bytes = 1 << 20;
        config.max_bodies_bytes = 8 << 20;
    });
    let body = json!({
        "query": "a".repeat(512 << 10), "items": vec!["b"; 1000], "label_token_ids": [1],
    });
    let refused = post(world.addr, "/v1/score", &body);
    assert_eq!(refused.status, 413, "{}", refused.body);
    world.wait_until_idle();
}
