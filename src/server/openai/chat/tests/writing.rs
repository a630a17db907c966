//! Tests of whole and streamed chat completions.

use serde_json::{Value, json};

use super::call;
use crate::config::ReasoningField;
use crate::openai::answer::WriteChoices;
use crate::openai::chat::call::Call;
use crate::openai::chat::writer::Writer;
use crate::openai::tests::{events, head, spelling, update};
use crate::sse::{Chunks, Render};
use crate::transcript::{Transcript, Update};
use souffleur_request::{Delta, FinishReason, OutputPiece};

fn writer(call: &Call) -> Writer {
    Writer::new(call, head(), spelling(), ReasoningField::ReasoningContent)
}

fn text(text: &str) -> OutputPiece {
    OutputPiece::Text(text.to_owned())
}

fn reasoning(text: &str) -> OutputPiece {
    OutputPiece::Reasoning(text.to_owned())
}

fn start(name: &str) -> OutputPiece {
    OutputPiece::CallStart {
        name: name.to_owned(),
    }
}

fn arguments(text: &str) -> OutputPiece {
    OutputPiece::CallArguments(text.to_owned())
}

/// An update with these pieces, and with one token for each byte of `spelled`.
fn update_with(spelled: &str, pieces: Vec<OutputPiece>, end: Option<FinishReason>) -> Update {
    let Update { delta, end } = update(spelled, end);
    let delta = Delta {
        text: String::new(),
        pieces,
        ..delta
    };
    Update { delta, end }
}

fn stream(call: &Call, updates: Vec<Update>) -> Vec<Value> {
    let (mut writer, mut out) = (writer(call), Chunks::default());
    for update in updates {
        writer.update(0, update, &mut out);
    }
    let events = events(out).into_iter();
    events.map(|mut event| event["choices"][0].take()).collect()
}

fn deltas(choices: &[Value]) -> Vec<Value> {
    choices
        .iter()
        .map(|choice| choice["delta"].clone())
        .collect()
}

fn whole(call: &Call, updates: Vec<Update>) -> Value {
    let mut transcript = Transcript::default();
    for update in updates {
        transcript.push(update);
    }
    let choice = writer(call).whole_choice(0, transcript);
    serde_json::to_value(choice).expect("plain data")
}

const END: Option<FinishReason> = Some(FinishReason::StopToken(7));

#[test]
fn a_message_has_content_finish_reason_and_log_probabilities() {
    let call = call(json!({"logprobs": true, "return_token_ids": true}));
    let mut writer = writer(&call);
    let mut transcript = Transcript::default();
    transcript.push(update(
        "a",
        Some(FinishReason::Length { max_new_tokens: 1 }),
    ));
    let choice = writer.whole_choice(0, transcript);
    let expected = json!({
        "index": 0,
        "message": {"role": "assistant", "content": "a", "refusal": null},
        "logprobs": {"content": [{
            "token": "a", "logprob": -0.5, "bytes": [97],
            "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
        }]},
        "finish_reason": "length", "matched_stop": null, "token_ids": [97],
    });
    assert_eq!(serde_json::to_value(choice).expect("plain data"), expected);
}

#[test]
fn a_stream_has_role_content_finish_reason_and_usage_in_this_order() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let call = call(json!({"stream": true, "stream_options": options}));
    let mut writer = writer(&call);
    let mut out = Chunks::default();
    writer.start(&mut out);
    writer.update(0, update("a", None), &mut out);
    writer.update(0, update("b", Some(FinishReason::StopToken(7))), &mut out);
    writer.end(&mut out);
    let events = events(out);
    let delta = |index: usize| &events[index]["choices"][0]["delta"];
    assert_eq!(events.len(), 5);
    assert_eq!(delta(0), &json!({"role": "assistant", "content": ""}));
    assert_eq!(delta(1), &json!({"content": "a"}));
    assert_eq!(delta(2), &json!({"content": "b"}));
    assert_eq!(events[2]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(events[2]["usage"]["completion_tokens"], 1);
    assert_eq!(delta(3), &json!({}));
    assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[4]["usage"]["total_tokens"], 6);
}

#[test]
fn ids_and_names_of_calls_are_sent_once_and_calls_in_sequence() {
    let call = call(json!({"rid": "r", "stream": true}));
    let pieces = vec![
        text("Ok."),
        start("seat"),
        arguments("{\"row\""),
        arguments(": 4}"),
        OutputPiece::CallEnd,
        start("light"),
        arguments("{}"),
        OutputPiece::CallEnd,
    ];
    let choices = stream(&call, vec![update_with("abc", pieces, END)]);
    let first = deltas(&choices)[1]["tool_calls"][0]["id"].clone();
    let second = deltas(&choices)[4]["tool_calls"][0]["id"].clone();
    for id in [&first, &second] {
        let digits = id.as_str().and_then(|id| id.strip_prefix("call_"));
        let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(
            digits.is_some_and(|digits| digits.len() == 24 && is_hex(digits)),
            "{id}"
        );
    }
    assert_ne!(first, second);
    let begin = |index: u32, id: &Value, name: &str| {
        let function = json!({"name": name, "arguments": ""});
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    };
    let more = |index: u32, text: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]});
    let expected = [
        json!({"content": "Ok."}),
        begin(0, &first, "seat"),
        more(0, "{\"row\""),
        more(0, ": 4}"),
        begin(1, &second, "light"),
        more(1, "{}"),
        json!({}),
    ];
    assert_eq!(deltas(&choices), expected);
    let reasons: Vec<&Value> = choices
        .iter()
        .map(|choice| &choice["finish_reason"])
        .collect();
    assert!(reasons[..6].iter().all(|reason| reason.is_null()));
    assert_eq!(choices[6]["finish_reason"], "tool_calls");
    assert_eq!(choices[6]["matched_stop"], Value::Null);
}

#[test]
fn a_whole_answer_equals_its_stream() {
    let call = call(json!({"rid": "r"}));
    let updates = || {
        vec![
            update_with("ab", vec![reasoning("Row 4.")], None),
            update_with("c", vec![start("seat"), arguments("{\"row\": ")], None),
            update_with("d", vec![arguments("4}"), OutputPiece::CallEnd], END),
        ]
    };
    let choice = whole(&call, updates());
    let streamed = deltas(&stream(&call, updates()));
    let id = &streamed[1]["tool_calls"][0]["id"];
    assert_eq!(streamed[0], json!({"reasoning_content": "Row 4."}));
    let function = json!({"name": "seat", "arguments": "{\"row\": 4}"});
    let expected = json!({
        "index": 0,
        "message": {
            "role": "assistant", "content": null, "refusal": null, "reasoning_content": "Row 4.",
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        },
        "logprobs": null, "finish_reason": "tool_calls", "matched_stop": null,
    });
    assert_eq!(choice, expected);
}

#[test]
fn tool_calls_are_the_finish_reason_only_if_complete() {
    let call = call(json!({}));
    let length = Some(FinishReason::Length { max_new_tokens: 9 });
    let complete = || vec![start("f"), arguments("{}"), OutputPiece::CallEnd];
    let reason =
        |pieces, end| whole(&call, vec![update_with("a", pieces, end)])["finish_reason"].clone();
    assert_eq!(reason(complete(), END), "tool_calls");
    assert_eq!(reason(complete(), length.clone()), "length");
    assert_eq!(reason(complete(), Some(FinishReason::Abort)), "abort");
    assert_eq!(reason(vec![start("f"), arguments("{")], length), "length");
    assert_eq!(reason(vec![start("f"), arguments("{")], END), "stop");
    let cut = whole(
        &call,
        vec![update_with("a", vec![start("f"), arguments("{")], END)],
    );
    assert_eq!(cut["message"]["tool_calls"], Value::Null);
    assert_eq!(cut["matched_stop"], 7);
}

#[test]
fn a_call_without_an_end_is_left_out_and_ends_a_stream_with_stop() {
    let call = call(json!({"rid": "r"}));
    let pieces = || {
        vec![
            start("half"),
            arguments("{\"a\": [1"),
            start("f"),
            arguments("{}"),
            OutputPiece::CallEnd,
        ]
    };
    let answer = whole(&call, vec![update_with("a", pieces(), END)]);
    let calls = answer["message"]["tool_calls"].as_array().expect("a list");
    let names: Vec<&Value> = calls.iter().map(|call| &call["function"]["name"]).collect();
    assert_eq!(names, ["f"]);
    assert_eq!(answer["finish_reason"], "tool_calls");
    let choices = stream(&call, vec![update_with("a", pieces(), END)]);
    let last = choices.last().expect("choices");
    assert_eq!(last["finish_reason"], "stop");
    let sent = deltas(&choices);
    assert_eq!(sent[2]["tool_calls"][0]["id"], calls[0]["id"]);
}

#[test]
fn an_empty_answer_has_empty_content_and_reasoning_alone_has_null() {
    let message =
        |pieces| whole(&call(json!({})), vec![update_with("a", pieces, END)])["message"].clone();
    assert_eq!(
        message(vec![]),
        json!({"role": "assistant", "content": "", "refusal": null})
    );
    let thought = message(vec![reasoning("hm")]);
    assert_eq!(thought["content"], Value::Null);
    assert_eq!(thought["reasoning_content"], "hm");
}

#[test]
fn reasoning_is_held_back_hidden_or_renamed_on_request() {
    let updates = || {
        vec![
            update_with("a", vec![reasoning("o")], None),
            update_with("b", vec![reasoning("ne"), text("x")], None),
            update_with("c", vec![text("y")], END),
        ]
    };
    let streamed = |fields: Value| deltas(&stream(&call(fields), updates()));
    let shown = json!([
        {"reasoning_content": "o"}, {"reasoning_content": "ne"}, {"content": "x"}, {"content": "y"}, {},
    ]);
    assert_eq!(json!(streamed(json!({}))), shown);
    let held = json!([{"reasoning_content": "one"}, {"content": "x"}, {"content": "y"}, {}]);
    assert_eq!(json!(streamed(json!({"stream_reasoning": false}))), held);
    let hidden = json!([{"content": "x"}, {"content": "y"}, {}]);
    assert_eq!(json!(streamed(json!({"include_reasoning": false}))), hidden);
    let cut = vec![update_with("a", vec![reasoning("one")], END)];
    let cut = deltas(&stream(&call(json!({"stream_reasoning": false})), cut));
    assert_eq!(json!(cut), json!([{"reasoning_content": "one"}, {}]));
    let message = whole(&call(json!({"include_reasoning": false})), updates())["message"].take();
    assert_eq!(
        message,
        json!({"role": "assistant", "content": "xy", "refusal": null})
    );

    let call = call(json!({}));
    let field = ReasoningField::Reasoning;
    let mut writer = Writer::new(&call, head(), spelling(), field);
    let mut out = Chunks::default();
    writer.update(0, update_with("a", vec![reasoning("o")], None), &mut out);
    assert_eq!(
        events(out)[0]["choices"][0]["delta"],
        json!({"reasoning": "o"})
    );
}

#[test]
fn each_token_is_sent_once_in_the_first_chunk_of_its_step() {
    let call = call(json!({"logprobs": true, "return_token_ids": true, "stream_reasoning": false}));
    let updates = vec![
        update_with("ab", vec![reasoning("o")], None),
        update_with("c", vec![text("x"), start("f"), arguments("{}")], None),
        update_with("d", vec![OutputPiece::CallEnd], None),
        update_with("e", vec![], END),
    ];
    let choices = stream(&call, updates);
    let ids: Vec<Value> = choices
        .iter()
        .map(|choice| choice["token_ids"].clone())
        .collect();
    let expected = json!([[97, 98], [99], null, null, null, [100], [101], null]);
    assert_eq!(json!(ids), expected);
    let sent: Vec<usize> = choices
        .iter()
        .map(|choice| choice["logprobs"]["content"].as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(sent, [2, 1, 0, 0, 0, 1, 1, 0]);
    assert_eq!(choices[0]["delta"], json!({}));
    assert_eq!(choices[1]["delta"], json!({"reasoning_content": "o"}));
    assert_eq!(choices[5]["delta"], json!({}));
}

#[test]
fn samples_have_roles_in_order_and_separate_calls() {
    let call = call(json!({"rid": "r", "n": 2, "stream": true}));
    let (mut writer, mut out) = (writer(&call), Chunks::default());
    writer.start(&mut out);
    for index in [1, 0] {
        let pieces = vec![start("f"), arguments("{}"), OutputPiece::CallEnd];
        writer.update(index, update_with("a", pieces, END), &mut out);
    }
    let events = events(out);
    let choice = |event: usize| &events[event]["choices"][0];
    assert_eq!([&choice(0)["index"], &choice(1)["index"]], [0, 1]);
    assert_eq!(choice(1)["delta"]["role"], "assistant");
    let id = |event: usize| choice(event)["delta"]["tool_calls"][0]["id"].as_str();
    assert!(id(2).is_some() && id(2) != id(5), "{events:?}");
    assert_eq!([&choice(2)["index"], &choice(5)["index"]], [1, 0]);
}
