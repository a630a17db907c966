use serde_json::{Value, json};

use super::call::UNLIMITED;
use super::*;
use crate::request::FinishReason;
use crate::server::openai::tests::{events, fields, head, limits, news, spelling};
use crate::server::sse::{Chunks, Render};

fn parse(value: Value) -> Result<Call, ApiError> {
    let mut fields = fields(value);
    if fields.text("no_messages").is_none() {
        fields.put("messages", json!([{"role": "user", "content": "hi"}]));
    }
    Call::parse(fields, limits()).map(|(call, _)| call)
}

fn call(value: Value) -> Call {
    parse(value).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refuses(value: Value, expected: &str) {
    assert_eq!(
        parse(value).err().map(|error| error.to_string()).as_deref(),
        Some(expected)
    );
}

#[test]
fn the_length_is_unlimited_unless_either_name_limits_it() {
    let length = |value: Value| call(value).common.sampling.max_new_tokens;
    assert_eq!(length(json!({})), UNLIMITED);
    assert_eq!(length(json!({"max_tokens": 5})), 5);
    assert_eq!(
        length(json!({"max_tokens": 5, "max_completion_tokens": 6})),
        6
    );
}

#[test]
fn tools_are_refused_and_their_absence_is_not() {
    let none = json!({"tools": [], "tool_choice": "none", "functions": null});
    assert!(parse(none).is_ok());
    refuses(
        json!({"tools": [{}]}),
        "tools is not supported yet: leave it out or send null",
    );
    let choice = "tool_choice is not supported yet: leave it out or send null";
    refuses(json!({"tool_choice": "required"}), choice);
}

#[test]
fn tools_of_which_none_is_chosen_ask_for_nothing() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let read = call(json!({"tools": tools, "tool_choice": "none"}));
    assert_eq!(read.prompt.tools, None);
    assert!(parse(json!({"functions": tools, "function_call": "none"})).is_ok());
    let text = "tools is not supported yet: leave it out or send null";
    refuses(json!({"tools": tools, "tool_choice": "auto"}), text);
    refuses(json!({"tools": tools, "tool_choice": "required"}), text);
}

#[test]
fn text_is_the_only_modality() {
    assert!(parse(json!({"modalities": ["text"]})).is_ok());
    assert!(parse(json!({"modalities": []})).is_ok());
    let text = "modalities is not supported yet: leave it out or send null";
    for modalities in [json!(["audio"]), json!(["text", "audio"]), json!("text")] {
        refuses(json!({ "modalities": modalities }), text);
    }
}

#[test]
fn templates_of_the_client_and_echoes_are_refused() {
    let template = "chat_template is not supported yet: leave it out or send null";
    refuses(json!({"chat_template": "{{ x }}"}), template);
    let echo = "echo is not supported yet: leave it out or send null";
    refuses(json!({"echo": true}), echo);
    assert!(parse(json!({"echo": false, "chat_template": null})).is_ok());
}

#[test]
fn alternatives_need_log_probabilities() {
    assert_eq!(
        call(json!({"logprobs": true, "top_logprobs": 2})).logprobs,
        Some(2)
    );
    assert_eq!(call(json!({"logprobs": true})).logprobs, Some(0));
    assert_eq!(call(json!({"top_logprobs": 0})).logprobs, None);
    let text = "top_logprobs is 2, must be used with logprobs: true";
    refuses(json!({"top_logprobs": 2}), text);
}

#[test]
fn a_message_has_content_reason_and_log_probabilities() {
    let call = call(json!({"logprobs": true, "return_token_ids": true}));
    let mut writer = Writer::new(&call, head(), spelling());
    let mut transcript = Transcript::default();
    transcript.push(news("a", Some(FinishReason::Length { max_new_tokens: 1 })));
    let choice = writer.message(0, transcript);
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
fn a_stream_has_role_content_reason_and_usage_in_this_order() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let call = call(json!({"stream": true, "stream_options": options}));
    let mut writer = Writer::new(&call, head(), spelling());
    let mut out = Chunks::default();
    writer.start(&mut out);
    writer.news(0, news("a", None), &mut out);
    writer.news(0, news("b", Some(FinishReason::StopToken(7))), &mut out);
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
