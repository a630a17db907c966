//! Tests of the conversions between Ollama's calls and answers and the engine's.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::wire::{Head, Kind};
use super::writer::{Writer, check_ends};
use super::{messages, options, tools};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::call::UNLIMITED;
use crate::spelling::tests::bytewise;
use crate::sse::{Chunks, Render};
use crate::transcript::{Transcript, TranscriptEnd, Update};
use souffleur_base::ids::RequestId;
use souffleur_model::generation::GenerationConfig;
use souffleur_request::{Delta, FinishReason, OutputPiece, Timings, Usage};
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::SamplingParams;

fn sampling(given: Value) -> Result<SamplingParams, ApiError> {
    let defaults = GenerationConfig {
        temperature: Some(0.25),
        ..GenerationConfig::default()
    };
    let mut fields = Fields::of(&json!({ "options": given }));
    options::read(&mut fields, &defaults, &RequestLimits::default())
}

#[test]
fn options_have_ollamas_names_and_the_models_defaults() {
    let read = sampling(json!({
        "num_predict": 5, "top_k": 3, "top_p": 0.5, "min_p": 0.125, "seed": 7, "stop": ["a", "b"],
        "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "num_ctx": 2048, "mirostat": 1, "typical_p": 0.7, "num_gpu": 99, "penalize_newline": true,
    }));
    let expected = SamplingParams {
        max_new_tokens: 5,
        temperature: 0.25,
        top_k: 3,
        top_p: 0.5,
        min_p: 0.125,
        sampling_seed: Some(7),
        stop: ["a".to_owned(), "b".to_owned()].into(),
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: -0.5,
        ..SamplingParams::default()
    };
    assert_eq!(read, Ok(expected));
    let temperature = sampling(json!({"temperature": 0})).map(|read| read.temperature);
    assert_eq!(temperature, Ok(0.0));
    for (given, limit) in [
        (json!(null), UNLIMITED),
        (json!({}), UNLIMITED),
        (json!({"num_predict": -1}), UNLIMITED),
        (json!({"num_predict": -2}), UNLIMITED),
        (json!({"num_predict": 0}), 0),
    ] {
        assert_eq!(sampling(given).map(|read| read.max_new_tokens), Ok(limit));
    }
    let penalty = sampling(json!({"repeat_penalty": 0})).map(|read| read.repetition_penalty);
    assert_eq!(penalty, Ok(1.0));
    let seed = sampling(json!({"seed": -1})).map(|read| read.sampling_seed);
    assert_eq!(seed, Ok(None));
}

#[test]
fn errors_name_the_option_as_ollama_does() {
    for (given, expected) in [
        (
            json!({"num_predict": -3}),
            "options.num_predict is -3, must be a whole number of at least 0, or -1 or -2 for no limit",
        ),
        (
            json!({"repeat_penalty": "a"}),
            "options.repeat_penalty is \"a\", must be a number",
        ),
        (
            json!({"seed": 0.5}),
            "options.seed is 0.5, must be a 64-bit whole number",
        ),
        (json!(7), "options is 7, must be an object"),
    ] {
        let error = sampling(given).expect_err("is refused").to_string();
        assert_eq!(error, expected);
    }
}

fn read_messages(messages: Value) -> Result<Value, String> {
    let mut fields = Fields::of(&json!({ "messages": messages }));
    let read = messages::read(&mut fields).map(Value::Array);
    read.map_err(|error| error.to_string())
}

#[test]
fn calls_and_their_results_get_ids() {
    let call =
        |name: &str| json!({"function": {"index": 0, "name": name, "arguments": {"row": 4}}});
    let messages = json!([
        {"role": "USER", "content": "a", "images": []},
        {"role": "assistant", "thinking": "b", "tool_calls": [call("seat"), call("clock")]},
        {"role": "tool", "tool_name": "clock", "content": "seven"},
        {"role": "tool", "content": "free"},
        {"role": "tool", "tool_name": "other", "content": "c"},
    ]);
    let called = |id: &str, name: &str| json!({"function": {"name": name, "arguments": {"row": 4}}, "id": id});
    let expected = json!([
        {"role": "user", "content": "a"},
        {
            "role": "assistant", "content": "", "reasoning_content": "b",
            "tool_calls": [called("call_0", "seat"), called("call_1", "clock")],
        },
        {"role": "tool", "content": "seven", "tool_call_id": "call_1", "name": "clock"},
        {"role": "tool", "content": "free", "tool_call_id": "call_0", "name": "seat"},
        {"role": "tool", "content": "c", "name": "other"},
    ]);
    assert_eq!(read_messages(messages), Ok(expected));
}

#[test]
fn ids_that_clients_send_are_kept() {
    let call = json!({"id": "x", "function": {"name": "seat", "arguments": {}}});
    let messages = json!([
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "free"},
    ]);
    let read = read_messages(messages).expect("is read");
    assert_eq!(read[0]["tool_calls"][0]["id"], "x");
    assert_eq!(read[1]["tool_call_id"], "x");
    assert_eq!(read[1]["name"], "seat");
}

#[test]
fn images_and_unknown_roles_are_refused_by_their_paths() {
    for (message, expected) in [
        (
            json!({"role": "user", "content": "a", "images": "iVBO"}),
            "messages[0].images is \"iVBO\", must be a list of base64 texts",
        ),
        (
            json!({"role": "user", "content": "a", "images": ["iVBO", 5]}),
            "messages[0].images[1] is 5, must be base64 text",
        ),
        (
            json!({"role": "tool", "content": "a", "tool_name": 5}),
            "messages[0].tool_name is 5, must be a string",
        ),
        (
            json!({"role": "assistant", "content": "a", "thinking": 5}),
            "messages[0].thinking is 5, must be a string",
        ),
    ] {
        assert_eq!(read_messages(json!([message])), Err(expected.to_owned()));
    }
}

#[test]
fn images_come_before_the_text_of_their_message() {
    let messages = json!([
        {"role": "user", "content": "a", "images": []},
        {"role": "user", "content": "b", "images": ["iVBO", "data:,x"]},
    ]);
    let read = read_messages(messages).expect("is read");
    assert_eq!(read[0]["content"], "a");
    let place = |index: usize| &read[1]["content"][index]["at"];
    assert_eq!(
        (place(0), place(1)),
        (
            &json!("messages[1].images[0]"),
            &json!("messages[1].images[1]")
        )
    );
    assert_eq!(read[1]["content"][0]["data"], "iVBO");
    assert_eq!(read[1]["content"][1]["url"], "data:,x");
    assert_eq!(read[1]["content"][2], json!({"type": "text", "text": "b"}));
}

#[test]
fn tools_reach_the_template_as_they_were_sent_with_a_type() {
    let typed = json!({"type": "function", "function": {"name": "f", "parameters": {"a": 1}}});
    let untyped = json!({"function": {"name": "g"}});
    let mut fields = Fields::of(&json!({"tools": [typed, untyped]}));
    let read = tools::read(&mut fields).unwrap_or_else(|error| panic!("{error}"));
    let prompt = read.prompt.expect("there are tools");
    let prompt: Value = serde_json::from_str(prompt.get()).expect("it is JSON");
    assert_eq!(prompt[0], typed);
    let expected = json!({"type": "function", "function": {"name": "g"}});
    assert_eq!(prompt[1], expected);
    let mut fields = Fields::of(&json!({"tools": [{"type": "code", "function": {}}]}));
    let error = tools::read(&mut fields)
        .map(|_| ())
        .expect_err("is refused");
    assert!(error.to_string().starts_with("tools[0].type is \"code\""));
}

fn writer(kind: Kind, logprobs: bool) -> Writer {
    let head = Head {
        model: "tiny:latest".to_owned(),
        kind,
        began: Instant::now(),
    };
    Writer::new(head, RequestId::new("r"), logprobs.then(bytewise))
}

fn usage() -> Usage {
    Usage {
        prompt_tokens: 5,
        completion_tokens: 2,
        ..Usage::default()
    }
}

fn end(reason: FinishReason) -> Option<TranscriptEnd> {
    let queued = Instant::now();
    let at = |milliseconds| queued + Duration::from_millis(milliseconds);
    Some(TranscriptEnd {
        reason,
        e2e_latency_s: 0.5,
        prompt: Default::default(),
        embedding: None,
        accept_histogram: Default::default(),
        timings: Some(Timings {
            queued,
            admitted: Some(at(1)),
            first_token: Some(at(3)),
            ended: at(7),
        }),
    })
}

fn update(pieces: Vec<OutputPiece>, end: Option<TranscriptEnd>) -> Update {
    let delta = Delta {
        pieces,
        tokens: vec![97, 98],
        usage: usage(),
        ..Delta::default()
    };
    Update { delta, end }
}

fn lines(chunks: Chunks) -> Vec<Value> {
    let text = String::from_utf8(chunks.into_bytes()).expect("lines are text");
    assert!(text.ends_with('\n'));
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

/// Checks and removes the values that differ between runs.
fn without_times(mut reply: Value) -> Value {
    let fields = reply.as_object_mut().expect("an object");
    let created = fields.shift_remove("created_at").expect("a time");
    let created = created.as_str().expect("a text");
    assert!(created.ends_with('Z') && created.len() == 27, "{created}");
    if fields["done"] == true {
        let total = fields.shift_remove("total_duration");
        assert!(total.is_some_and(|total| total.is_u64()));
    }
    reply
}

fn pieces() -> Vec<OutputPiece> {
    let arguments = "{\"row\":4}".to_owned();
    vec![
        OutputPiece::Reasoning("t".to_owned()),
        OutputPiece::Text("hi".to_owned()),
        OutputPiece::CallStart {
            name: "seat".to_owned(),
        },
        OutputPiece::CallArguments(arguments),
        OutputPiece::CallEnd,
    ]
}

#[test]
fn the_last_object_has_every_count_and_no_other_has_any() {
    let mut writer = writer(Kind::Chat, false);
    let mut out = Chunks::default();
    writer.update(0, update(pieces(), None), &mut out);
    writer.keep_alive(&mut out);
    let stop = end(FinishReason::StopToken(2));
    writer.update(0, update(Vec::new(), stop), &mut out);
    writer.end(&mut out);
    writer.close(&mut out);
    let lines: Vec<Value> = lines(out).into_iter().map(without_times).collect();
    let id = lines[1]["message"]["tool_calls"][0]["id"].clone();
    assert!(id.as_str().is_some_and(|id| id.starts_with("call_")));
    let function = json!({"index": 0, "name": "seat", "arguments": {"row": 4}});
    let part = |message: Value| json!({"model": "tiny:latest", "message": message, "done": false});
    let expected = [
        part(json!({"role": "assistant", "content": "", "thinking": "t"})),
        part(json!({
            "role": "assistant", "content": "hi",
            "tool_calls": [{"id": id, "function": function}],
        })),
        part(json!({"role": "assistant", "content": ""})),
        json!({
            "model": "tiny:latest", "message": {"role": "assistant", "content": ""},
            "done": true, "done_reason": "stop", "load_duration": 0,
            "prompt_eval_count": 5, "prompt_eval_duration": 2_000_000,
            "eval_count": 2, "eval_duration": 4_000_000,
        }),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_whole_answer_is_done_and_has_the_text_of_its_kind() {
    let transcript = || {
        let mut transcript = Transcript::default();
        let length = end(FinishReason::Length { max_new_tokens: 2 });
        transcript.push(update(pieces(), length));
        transcript
    };
    let whole = |kind| {
        let bytes = writer(kind, false).whole(vec![transcript()]);
        without_times(serde_json::from_slice(&bytes).expect("an answer is JSON"))
    };
    let chat = whole(Kind::Chat);
    assert_eq!(chat["message"]["content"], "hi");
    assert_eq!(chat["message"]["thinking"], "t");
    let generated = whole(Kind::Generate);
    assert_eq!(generated["response"], "hi");
    assert_eq!(generated["thinking"], "t");
    for reply in [chat, generated] {
        assert_eq!(reply["done"], true);
        assert_eq!(reply["done_reason"], "length");
        assert_eq!(reply["eval_count"], 2);
    }
}

#[test]
fn an_answer_that_was_aborted_is_an_error() {
    let mut writer = writer(Kind::Generate, false);
    let mut out = Chunks::default();
    writer.update(0, update(Vec::new(), end(FinishReason::Abort)), &mut out);
    let [only] = lines(out).try_into().expect("one line");
    let text = only["error"].as_str().expect("an error is a text");
    assert!(text.starts_with("the request was cancelled"), "{text}");
    let mut transcript = Transcript::default();
    assert_eq!(check_ends(&[Transcript::default()]), Ok(()));
    transcript.push(update(Vec::new(), end(FinishReason::Abort)));
    assert_eq!(check_ends(&[transcript]), Err(ApiError::aborted()));
}

#[test]
fn a_call_without_a_prompt_is_answered_with_zeros() {
    let head = Head {
        model: "tiny".to_owned(),
        kind: Kind::Generate,
        began: Instant::now(),
    };
    for (unloads, reason) in [(false, "load"), (true, "unload")] {
        let reply = serde_json::to_value(head.of_empty_call(unloads)).expect("plain data");
        let expected = json!({
            "model": "tiny", "response": "", "done": true, "done_reason": reason,
            "load_duration": 0, "prompt_eval_count": 0, "prompt_eval_duration": 0,
            "eval_count": 0, "eval_duration": 0,
        });
        assert_eq!(without_times(reply), expected);
    }
}

#[test]
fn log_probabilities_are_those_of_the_line() {
    let position = |token| souffleur_state::sampling::TokenLogprobs {
        token,
        logprob: Some(-0.5),
        top: vec![(120, -0.25)],
        chosen: Vec::new(),
    };
    let mut part = update(vec![OutputPiece::Text("ab".to_owned())], None);
    part.delta.output_logprobs = vec![position(97), position(98)];
    let mut writer = writer(Kind::Chat, true);
    let mut out = Chunks::default();
    writer.update(0, part, &mut out);
    let [line] = lines(out).try_into().expect("one line");
    let expected = json!({
        "token": "a", "logprob": -0.5, "bytes": [97],
        "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
    });
    assert_eq!(line["logprobs"][0], expected);
    assert_eq!(line["logprobs"][1]["token"], "b");
}
