//! Tests that answers are the same with and without speculation: texts, log probabilities, ends and usage, with and
//! without streaming, for chats, tool calls, schemas, stop strings, samples and penalties.
//!
//! `SOUFFLEUR_DRAFT_CALLS=200 cargo test --test server speculation` sends 200 calls instead of 40.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use souffleur::config::EngineConfig;
use souffleur::state::speculation::DraftSource;

use crate::drafting::{Tally, eager};
use crate::http::{get, post, stream};
use crate::repository::repository;
use crate::schemas::schemas;
use crate::scripted::checkpoint;
use crate::structured::closing_bias;
use crate::world::World;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";

/// Fields that differ from call to call, and those that only speculation has.
const OWN_FIELDS: [&str; 5] = [
    "id",
    "created",
    "e2e_latency",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
];
/// Fields of streams whose pieces are put together.
const PIECES: [&str; 4] = ["content", "reasoning_content", "text", "arguments"];

struct Call {
    path: &'static str,
    body: Value,
}

impl Call {
    fn new(path: &'static str, body: Value) -> Self {
        Self { path, body }
    }
}

fn n_calls() -> usize {
    let number = std::env::var("SOUFFLEUR_DRAFT_CALLS").ok();
    number.map_or(40, |number| number.parse().expect("a number"))
}

/// The bundled model, or the checkpoint that has tokens of tool calls.
fn engine(calls_tools: bool) -> EngineConfig {
    EngineConfig {
        model_path: if calls_tools {
            checkpoint()
        } else {
            repository().join("models/souffleur-tiny")
        },
        served_model_name: Some("tiny".to_owned()),
        max_total_tokens: Some(8192),
        max_running_requests: Some(32),
        threads: 1,
        ..EngineConfig::default()
    }
}

/// A server with speculation, whose steps have all proposed drafts.
fn speculating(calls_tools: bool) -> (World, Arc<Tally>) {
    eager(engine(calls_tools))
}

/// A text with repetitions, so that there are drafts.
fn tale(number: usize) -> String {
    let name = ["Tom", "Lily", "Ben", "Mia"][number % 4];
    let line = format!("{name} saw a big red ball. {name} liked the big red ball. ");
    line.repeat(2 + number % 3)
}

fn chat(number: usize, more: Value) -> Value {
    let content = format!("{}Tell it again.", tale(number));
    with(
        json!({"model": "tiny", "messages": [{"role": "user", "content": content}], "seed": number,
            "max_completion_tokens": 24}),
        more,
    )
}

fn native(number: usize, sampling: Value) -> Value {
    let sampling = with(
        json!({"max_new_tokens": 24, "sampling_seed": number, "temperature": 0.8}),
        sampling,
    );
    json!({"text": tale(number), "sampling_params": sampling, "return_logprob": true, "top_logprobs_num": 2,
        "logprob_start_len": 0})
}

/// A prompt of token ids, whose tokens repeat.
fn of_ids(number: usize) -> Value {
    let mut body = native(number, json!({"temperature": 0, "ignore_eos": true}));
    let ids: Vec<usize> = (0..40).map(|i| 300 + (i + number) % 9 * 5).collect();
    body["input_ids"] = json!(ids);
    let fields = body.as_object_mut().expect("an object");
    fields.remove("text");
    fields.remove("logprob_start_len");
    body
}

fn with(mut body: Value, more: Value) -> Value {
    if let Value::Object(more) = more {
        for (name, value) in more {
            body[name] = value;
        }
    }
    body
}

/// A call to the bundled model; the number decides its kind, its text and its seed.
fn call(number: usize) -> Call {
    let stop = [" ball", " the", "."][number % 3];
    let mut call = match number % 10 {
        0 => Call::new(CHAT, chat(number, json!({"temperature": 0}))),
        1 => Call::new(
            CHAT,
            chat(
                number,
                json!({"n": 2, "logprobs": true, "top_logprobs": 3, "temperature": 0.9}),
            ),
        ),
        2 => Call::new(
            COMPLETIONS,
            json!({"model": "tiny", "prompt": tale(number), "max_tokens": 30, "temperature": 0, "logprobs": 2,
                "stop": [stop]}),
        ),
        3 => Call::new(
            GENERATE,
            native(
                number,
                json!({"min_new_tokens": 10, "repetition_penalty": 1.2, "stop_token_ids": [300 + number]}),
            ),
        ),
        4 => Call::new(
            GENERATE,
            native(number, json!({"n": 3, "temperature": 0.5})),
        ),
        5 => Call::new(
            CHAT,
            chat(
                number,
                json!({"frequency_penalty": 0.4, "presence_penalty": 0.3, "min_tokens": 12, "stop": [stop, "!"],
                    "logit_bias": {"300": 2, "301": -5}}),
            ),
        ),
        6 => Call::new(
            CHAT,
            chat(
                number,
                json!({"prediction": {"type": "content", "content": tale(number)}, "temperature": 0}),
            ),
        ),
        7 => Call::new(
            GENERATE,
            native(number, json!({"regex": "[a-z]{3,8}( [a-z]{2,8}){4,9}"})),
        ),
        8 => Call::new(
            COMPLETIONS,
            json!({"model": "tiny", "prompt": [tale(number), tale(number + 1)], "max_tokens": 20, "seed": number,
                "temperature": 1, "min_tokens": 8}),
        ),
        _ => Call::new(GENERATE, of_ids(number)),
    };
    if number % 3 == 1 {
        call.body["stream"] = true.into();
        if call.path != GENERATE {
            call.body["stream_options"] = json!({"include_usage": true});
        }
    }
    call
}

/// A call with tools or with a schema to the checkpoint with tokens of tool calls, whose weights are random.
fn constrained(number: usize, bias: &Value, schema: &Value) -> Call {
    let weather = json!({"name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}}, "required": ["city", "days"]}});
    let tools =
        json!({"tools": [{"type": "function", "function": weather}], "tool_choice": "required"});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}});
    let more = match number % 5 {
        4 => tools,
        _ => format,
    };
    let mut body = chat(number, more);
    body["logit_bias"] = bias.clone();
    body["max_completion_tokens"] = 60.into();
    body["temperature"] = (number % 2).into();
    body["chat_template_kwargs"] = json!({"enable_thinking": false});
    if number % 3 == 2 {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    Call::new(CHAT, body)
}

/// A schema with long names. The checkpoint has no token of two of their letters, so the grammar allows only the tokens
/// that its literals have.
fn long_names() -> Value {
    json!({"type": "object", "properties": {"zqxjkvwzqxjkvw": {"enum": [1, 2]}, "wvkjxqzwvkjxqz": {"type": "null"}},
        "required": ["zqxjkvwzqxjkvw", "wvkjxqzwvkjxqz"], "additionalProperties": false})
}

/// Puts the pieces of a stream together.
fn join(into: &mut Value, more: &Value, name: &str) {
    match (into, more) {
        (_, Value::Null) => {}
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                join(into.entry(name.clone()).or_insert(Value::Null), value, name);
            }
        }
        (Value::Array(into), Value::Array(more)) => {
            for value in more {
                let index = value.get("index");
                let same = |other: &Value| index.is_some() && other.get("index") == index;
                match into.iter().position(same) {
                    Some(place) => join(&mut into[place], value, ""),
                    None => into.push(value.clone()),
                }
            }
        }
        (Value::String(into), Value::String(more)) if PIECES.contains(&name) => {
            into.push_str(more);
        }
        (into, more) => *into = more.clone(),
    }
}

/// The answer to a call; of a stream, its pieces put together, one answer for each sample.
fn answer(world: &World, call: &Call) -> Value {
    if call.body["stream"] != true {
        return post(world.addr, call.path, &call.body).ok();
    }
    let events = stream(world.addr, call.path, &call.body).rest();
    if call.path == GENERATE {
        // Each event has all of the output so far of its sample.
        let mut last = Map::new();
        for event in events {
            let index = event["index"].as_u64().unwrap_or(0);
            last.insert(index.to_string(), event);
        }
        return Value::Object(last);
    }
    let mut whole = Value::Null;
    events.iter().for_each(|event| join(&mut whole, event, ""));
    whole
}

/// Removes ids, times and the fields that only speculation has.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                !OWN_FIELDS.contains(&name.as_str()) && !name.starts_with("spec_")
            });
            fields.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Sends the calls in order to a server with speculation and to one without, and compares the answers. Returns the
/// counts of the drafts.
fn compare(calls_tools: bool, calls: &[Call]) -> Arc<Tally> {
    let plain = World::with(|config, _| *config = engine(calls_tools));
    let (speculating, tally) = speculating(calls_tools);
    let shown = || accepted_on_page(&speculating);
    let shown_before = shown();
    for (number, call) in calls.iter().enumerate() {
        let [mut expected, mut got] = [&plain, &speculating].map(|world| answer(world, call));
        let what = format!("call {number}, {} {}", call.path, call.body);
        assert!(
            !expected.to_string().contains("spec_verify_ct"),
            "{what}: {expected}"
        );
        let has_counts = got.to_string().contains("spec_verify_ct");
        assert!(has_counts || call.path != GENERATE, "{what}: {got}");
        for answer in [&mut expected, &mut got] {
            strip(answer);
        }
        assert_eq!(got, expected, "{what}");
        follow(&plain, &speculating, call, &expected);
    }
    plain.wait_until_idle();
    speculating.wait_until_idle();
    let [drafted, accepted] = tally.totals();
    assert!(
        drafted > accepted && accepted > 0,
        "{accepted} of {drafted} drafts were accepted"
    );
    assert!(shown() > shown_before, "the metrics count no drafts");
    tally
}

/// The accepted drafts of all engines of this process on the page of metrics.
fn accepted_on_page(world: &World) -> u64 {
    let page = get(world.addr, "/metrics").body;
    let lines = page.lines();
    let lines = lines.filter(|line| line.starts_with("souffleur_spec_accepted_tokens_total{"));
    let values = lines.map(|line| {
        let value = line
            .rsplit(' ')
            .next()
            .and_then(|value| value.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("{line} has no number"))
    });
    values.sum()
}

/// Sends prompt and answer again, if both are known as ids, and compares how many tokens come from the cache.
fn follow(plain: &World, speculating: &World, call: &Call, answer: &Value) {
    let (Some(prompt), Some(output)) = (
        call.body["input_ids"].as_array(),
        answer["output_ids"].as_array(),
    ) else {
        return;
    };
    let ids: Vec<&Value> = prompt.iter().chain(output).collect();
    let body =
        json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}});
    let [expected, got] = [plain, speculating].map(|world| {
        world.wait_until_idle();
        let reply = post(world.addr, GENERATE, &body).ok();
        reply["meta_info"]["cached_tokens"]
            .as_u64()
            .expect("a count")
    });
    assert_eq!(got, expected, "cached tokens of the next turn");
    assert!(
        expected >= prompt.len() as u64,
        "{expected} tokens are cached"
    );
}

#[test]
fn answers_with_speculation_equal_those_without() {
    let calls: Vec<Call> = (0..n_calls() * 3 / 4).map(call).collect();
    let tally = compare(false, &calls);
    let [drafted, accepted] = tally.of(DraftSource::OwnText);
    assert!(accepted > 0, "none of {drafted} drafts of texts");
}

#[test]
fn schemas_and_tool_calls_with_speculation_equal_those_without() {
    let (bias, schemas) = (closing_bias(), schemas());
    let numbers = 0..n_calls() / 4;
    // The default run has schemas of all kinds.
    let stride = (schemas.len() / numbers.len().max(1)).max(1);
    let mut calls: Vec<Call> = numbers
        .map(|number| number * stride + number % 5)
        .map(|number| constrained(number, &bias, &schemas[number % schemas.len()]))
        .collect();
    calls.extend((0..3).map(|number| constrained(number, &bias, &long_names())));
    let tally = compare(true, &calls);
    let [drafted, accepted] = tally.of(DraftSource::Grammar);
    assert!(accepted > 0, "none of {drafted} drafts of grammars");
}

/// The usage of an answer, streamed or not, and its choices.
fn predicted(world: &World, prediction: Option<&str>, more: Value) -> (Value, Value) {
    let mut body = with(chat(4, json!({"temperature": 0, "logprobs": true})), more);
    if let Some(text) = prediction {
        body["prediction"] = json!({"type": "content", "content": text});
    }
    let mut whole = answer(world, &Call::new(CHAT, body));
    (whole["usage"].take(), whole["choices"].take())
}

/// The accepted and the rejected tokens of a prediction.
#[track_caller]
fn prediction_tokens(usage: &Value) -> (u64, u64) {
    let [accepted, rejected] = ["accepted", "rejected"].map(|name| {
        let count = &usage["completion_tokens_details"][format!("{name}_prediction_tokens")];
        count.as_u64().unwrap_or_else(|| panic!("{usage}"))
    });
    // The first token comes from the prompt's step.
    let completion = usage["completion_tokens"].as_u64().expect("a count");
    assert!(accepted < completion, "{usage}");
    (accepted, rejected)
}

#[test]
fn a_prediction_changes_nothing_but_the_usage() {
    let (world, _) = speculating(false);
    let (usage, expected) = predicted(&world, None, json!({}));
    let details = &usage["completion_tokens_details"];
    assert_eq!(details.get("accepted_prediction_tokens"), None, "{usage}");
    let text = expected[0]["message"]["content"].as_str();
    let right = text.expect("a text").to_owned();
    let middle = right.floor_char_boundary(right.len() / 2);
    let half_right = format!("{} 0123456789 9876543210", &right[..middle]);
    let wrong = "0123456789 9876543210 ".repeat(3);
    let beyond_a_prompt = format!("{right}{}", wrong.repeat(2000));
    // For each prediction whether some of its tokens are accepted, and whether some are rejected.
    let cases = [
        (&right, json!({}), Some((true, false))),
        (&half_right, json!({}), Some((true, true))),
        (&wrong, json!({}), None),
        (&beyond_a_prompt, json!({}), Some((true, false))),
        (
            &right,
            json!({"speculative_num_draft_tokens": 0}),
            Some((false, false)),
        ),
    ];
    for (prediction, more, outcome) in cases {
        let (got, choices) = predicted(&world, Some(prediction), more.clone());
        assert_eq!(choices, expected, "{} bytes", prediction.len());
        let streams = json!({"stream": true, "stream_options": {"include_usage": true}});
        let (streamed, pieces) = predicted(&world, Some(prediction), with(more, streams));
        let content = pieces[0]["delta"]["content"].as_str();
        assert_eq!(content, Some(right.as_str()), "{pieces}");
        for counted in [got, streamed] {
            assert_eq!(counted["completion_tokens"], usage["completion_tokens"]);
            let (accepted, rejected) = prediction_tokens(&counted);
            match outcome {
                Some(outcome) => assert_eq!((accepted > 0, rejected > 0), outcome, "{counted}"),
                None => assert_eq!(accepted, 0, "{counted}"),
            }
        }
    }
    let info = get(world.addr, "/server_info").ok();
    let length = &info["internal_states"][0]["avg_spec_accept_length"];
    assert!(length.is_number(), "{length}");
    world.wait_until_idle();
}
