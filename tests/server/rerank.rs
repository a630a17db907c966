//! Tests of `POST /v1/rerank`, `/v2/rerank` and `/rerank`.

use std::path::Path;

use serde_json::{Value, json};

use crate::http::{get, post};
use crate::world::{NO_TOKEN, World, YES_TOKEN};

const QUERY: &str = "Where do the actors live?";
const DOCUMENTS: [&str; 4] = [
    "The actors live in Prag.",
    "A feed of the line",
    "",
    "Grüße <Document>: yes",
];
const DEFAULT_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// The prompt from the model card of Qwen3-Reranker, split at the document.
fn template(instruction: &str, query: &str) -> [String; 2] {
    let system = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
                  Note that the answer can only be \"yes\" or \"no\".";
    let start = format!(
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n\
         <Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    );
    let end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    [start, end.to_owned()]
}

/// The probability of yes against no after each document, from `/v1/score`.
fn scores(world: &World, instruction: &str, documents: &[&str]) -> Vec<f64> {
    let [start, end] = template(instruction, QUERY);
    let items = documents.iter().map(|document| format!("{document}{end}"));
    let call = json!({
        "query": start, "items": items.collect::<Vec<_>>(), "label_token_ids": [NO_TOKEN, YES_TOKEN],
        "apply_softmax": true,
    });
    let scored = post(world.addr, "/v1/score", &call).ok();
    let scores = scored["scores"].as_array().expect("a list").iter();
    scores
        .map(|scores| scores[1].as_f64().expect("a number"))
        .collect()
}

/// Document indices with scores, best first.
fn ranked(scores: &[f64]) -> Vec<(u64, f64)> {
    let mut ranked: Vec<(u64, f64)> = (0..).zip(scores.iter().copied()).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked
}

/// Document indices with scores, from an answer.
fn results(results: &Value, score: &str) -> Vec<(u64, f64)> {
    let results = results.as_array().expect("a list").iter();
    let results = results.map(|result| {
        let index = result["index"].as_u64().expect("an index");
        (index, result[score].as_f64().expect("a number"))
    });
    results.collect()
}

fn call(fields: Value) -> Value {
    let mut body = json!({"query": QUERY, "documents": DOCUMENTS});
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn rerank(world: &World, fields: Value) -> Value {
    post(world.addr, "/v1/rerank", &call(fields)).ok()
}

#[test]
fn results_equal_those_of_the_score_endpoint_for_the_models_prompts() {
    let world = World::new();
    let answer = rerank(&world, json!({"model": "any"}));
    let expected = ranked(&scores(&world, DEFAULT_INSTRUCTION, &DOCUMENTS));
    assert_eq!(results(&answer["results"], "relevance_score"), expected);
    assert!(
        expected[0].1 > expected[3].1
            && expected
                .iter()
                .all(|(_, score)| (0.0..=1.0).contains(score)),
        "{expected:?}"
    );
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("list"), &json!("tiny"))
    );
    let id = answer["id"].as_str().expect("an id");
    assert!(id.starts_with("rerank-"), "{id}");
    for result in answer["results"].as_array().expect("a list") {
        let index = result["index"].as_u64().expect("an index") as usize;
        assert_eq!(result["document"], json!({"text": DOCUMENTS[index]}));
    }
    world.wait_until_idle();
}

#[test]
fn equal_scores_keep_the_order_of_the_documents() {
    let world = World::new();
    let answer = rerank(
        &world,
        json!({"documents": ["feed", "line", "feed", "line"]}),
    );
    let results = results(&answer["results"], "relevance_score");
    let order: Vec<u64> = results.iter().map(|(index, _)| *index).collect();
    assert!(
        [[0, 2, 1, 3], [1, 3, 0, 2]].contains(&order[..].try_into().expect("four results")),
        "{order:?}"
    );
    assert_eq!(results[0].1, results[1].1);
    world.wait_until_idle();
}

#[test]
fn all_prompts_but_the_first_find_instruction_and_query_in_the_cache() {
    let world = World::new();
    let [start, end] = template(DEFAULT_INSTRUCTION, QUERY);
    let count = |text: &str| {
        let tokens = post(world.addr, "/tokenize", &json!({"prompt": text})).ok();
        tokens["count"].as_u64().expect("a count")
    };
    // The space before a document may belong to the document's first token.
    let shared = count(start.trim_end());
    let answer = rerank(&world, json!({}));
    let usage = &answer["usage"];
    let prompts = DOCUMENTS.map(|document| count(&format!("{start}{document}{end}")));
    let tokens: u64 = prompts.iter().sum();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["total_tokens"]),
        (&json!(tokens), &json!(tokens))
    );
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    let cached = cached.expect("a count");
    let others = DOCUMENTS.len() as u64 - 1;
    assert!(
        (others * shared..tokens).contains(&cached),
        "{cached} of {others} * {shared}"
    );
    world.wait_until_idle();
}

#[test]
fn top_n_limits_the_results_and_0_is_no_limit() {
    let world = World::new();
    let all = rerank(&world, json!({}))["results"].clone();
    for (top_n, expected) in [
        (json!(null), 4),
        (json!(0), 4),
        (json!(1), 1),
        (json!(3), 3),
        (json!(100), 4),
    ] {
        let answer = rerank(&world, json!({"top_n": top_n}));
        let expected = &all.as_array().expect("a list")[..expected];
        assert_eq!(answer["results"], json!(expected), "{top_n}");
    }
    world.wait_until_idle();
}

#[test]
fn calls_in_the_form_of_other_servers_are_answered_in_that_form() {
    let world = World::new();
    let plain = rerank(&world, json!({}))["results"].clone();
    // Jina and Cohere's first version: objects with a text.
    let objects = DOCUMENTS.map(|text| json!({"text": text, "title": 5}));
    assert_eq!(
        rerank(&world, json!({"documents": objects}))["results"],
        plain
    );
    // Cohere's second version has no documents in results.
    let body = call(json!({"return_documents": false, "max_tokens_per_doc": null}));
    for path in ["/v2/rerank", "/rerank", "/v1/rerank"] {
        let answer = post(world.addr, path, &body).ok();
        let bare = results(&answer["results"], "relevance_score");
        assert_eq!(bare, results(&plain, "relevance_score"), "{path}");
        assert_eq!(answer["results"][0].get("document"), None, "{path}");
    }
    // vLLM accepts a single document.
    let one = rerank(&world, json!({"documents": DOCUMENTS[1]}));
    let expected = scores(&world, DEFAULT_INSTRUCTION, &DOCUMENTS[1..2]);
    assert_eq!(
        results(&one["results"], "relevance_score"),
        [(0, expected[0])]
    );
    // The instruction, under the names of vLLM and SGLang.
    let task = "Find the lines";
    let expected = ranked(&scores(&world, task, &DOCUMENTS));
    assert_ne!(expected, results(&plain, "relevance_score"));
    for fields in [
        json!({"instruction": task}),
        json!({"instruct": task}),
        json!({"instruction": "", "chat_template_kwargs": {"instruction": task}}),
        json!({"instruction": "other", "chat_template_kwargs": {"instruct": task}}),
    ] {
        let answer = rerank(&world, fields.clone());
        assert_eq!(
            results(&answer["results"], "relevance_score"),
            expected,
            "{fields}"
        );
    }
    world.wait_until_idle();
}

#[test]
fn texts_are_ranked_in_a_bare_list() {
    let world = World::new();
    let expected = ranked(&scores(&world, DEFAULT_INSTRUCTION, &DOCUMENTS));
    let call = |return_text: Value| {
        let mut body =
            json!({"query": QUERY, "texts": DOCUMENTS, "raw_scores": false, "truncate": false});
        body["return_text"] = return_text;
        post(world.addr, "/rerank", &body).ok()
    };
    let plain = call(json!(null));
    assert_eq!(results(&plain, "score"), expected);
    assert_eq!(plain[0].as_object().expect("an object").len(), 2, "{plain}");
    let with_text = call(json!(true));
    assert_eq!(results(&with_text, "score"), expected);
    for (rank, (index, _)) in with_text.as_array().expect("a list").iter().zip(&expected) {
        assert_eq!(rank["text"], DOCUMENTS[*index as usize]);
    }
    world.wait_until_idle();
}

#[test]
fn invalid_calls_are_refused_by_name() {
    let world = World::with(|_, config| config.max_batch_requests = 4);
    let table = [
        (json!({"query": null}), "query", "is missing"),
        (json!({"query": ["a"]}), "query", "must be a string"),
        (json!({"documents": null}), "documents", "is missing"),
        (json!({"documents": []}), "documents", "empty list"),
        (
            json!({"documents": {"text": "a"}}),
            "documents",
            "a list of strings",
        ),
        (
            json!({"documents": vec!["a"; 5]}),
            "documents",
            "limit is 4",
        ),
        (
            json!({"documents": ["a", 7]}),
            "documents[1]",
            "must be a string",
        ),
        (
            json!({"documents": [{"title": "a"}]}),
            "documents[0].text",
            "is missing",
        ),
        (
            json!({"documents": [{"text": ["a"]}]}),
            "documents[0].text",
            "must be a string",
        ),
        (json!({"texts": ["a"]}), "texts", "send one of them"),
        (json!({"top_n": -1}), "top_n", "from 0"),
        (json!({"instruction": 5}), "instruction", "must be a string"),
        (
            json!({"max_tokens_per_doc": 8}),
            "max_tokens_per_doc",
            "not supported",
        ),
        (
            json!({"rank_fields": ["title"]}),
            "rank_fields",
            "not supported",
        ),
        (json!({"raw_scores": true}), "raw_scores", "not supported"),
        (
            json!({"use_activation": false}),
            "use_activation",
            "not supported",
        ),
    ];
    for (fields, param, part) in table {
        let refused = post(world.addr, "/v1/rerank", &call(fields));
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
    world.wait_until_idle();
}

#[test]
fn a_vocabulary_without_yes_and_no_is_refused() {
    let world = World::with(|engine, _| {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        engine.model_path = models.join("qwen3");
        engine.max_total_tokens = Some(1024);
    });
    let refused = post(world.addr, "/v1/rerank", &call(json!({})));
    assert_eq!(refused.status, 400, "{}", refused.body);
    let message = refused.json()["error"]["message"].to_string();
    assert!(
        message.contains("has no token") && message.contains("Qwen3-Reranker"),
        "{message}"
    );
    world.wait_until_idle();
}

#[test]
fn query_and_instruction_count_towards_the_body_budget_once_per_document_before_they_are_copied() {
    let world = World::with(|_, config| {
        config.max_body_bytes = 1 << 20;
        config.max_bodies_bytes = 8 << 20;
    });
    for name in ["query", "instruction"] {
        let mut fields = json!({"documents": vec!["b"; 1000]});
        fields[name] = "a".repeat(512 << 10).into();
        let refused = post(world.addr, "/v1/rerank", &call(fields));
        assert_eq!(refused.status, 413, "{}", refused.body);
    }
    world.wait_until_idle();
}

#[test]
fn the_openapi_document_describes_all_paths_of_the_endpoint_alike() {
    let world = World::new();
    let document = get(world.addr, "/openapi.json").ok();
    let body = |path: &str| document["paths"][path]["post"]["requestBody"].clone();
    for path in ["/rerank", "/v2/rerank"] {
        assert_eq!(body(path), body("/v1/rerank"), "{path}");
    }
    let schema = &body("/v1/rerank")["content"]["application/json"]["schema"];
    let fields = schema["properties"].as_object().expect("fields");
    for name in [
        "query",
        "documents",
        "texts",
        "top_n",
        "return_documents",
        "instruction",
    ] {
        assert!(fields.contains_key(name), "{name}");
    }
}
