//! Tests of chat completions: parsing calls and writing answers.

mod reasoning;
mod tools;
mod writing;

use serde_json::{Value, json};

use super::call::UNLIMITED;
use super::*;
use crate::openai::tests::{fields, limits};

fn parse(value: Value) -> Result<Call, ApiError> {
    let mut fields = fields(value);
    if fields.peek("messages").is_none() {
        fields.put("messages", json!([{"role": "user", "content": "hi"}]));
    }
    Call::parse(fields, limits()).map(|(call, _)| call)
}

fn call(value: Value) -> Call {
    parse(value).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refuses_field(value: Value, param: &str, message: &str) {
    assert_eq!(parse(value).err(), Some(ApiError::field(param, message)));
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
    let llama_cpp = |value: i64| length(json!({"max_completion_tokens": 6, "n_predict": value}));
    assert_eq!([llama_cpp(0), llama_cpp(7), llama_cpp(-1)], [0, 7, 6]);
}

#[test]
fn lists_that_llama_vim_sends_are_ignored() {
    let lists = json!({"samplers": ["min_p", "temperature"], "response_fields": [""]});
    assert!(parse(lists).is_ok());
    let text = "samplers is 7, must be a list of names";
    refuses_field(json!({"samplers": 7}), "samplers", text);
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
fn client_templates_and_echoes_are_refused() {
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
    let text = "top_logprobs is 2, which needs logprobs: true";
    refuses(json!({"top_logprobs": 2}), text);
}

#[test]
fn unsupported_features_are_refused_and_hints_ignored() {
    for name in [
        "audio",
        "web_search_options",
        "custom_logit_processor",
        "thinking_token_budget",
    ] {
        let text = format!("{name} is not supported yet: leave it out or send null");
        refuses(json!({ name: {"x": 1} }), &text);
    }
    let hints = json!({
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "verbosity": "low",
        "prompt_cache_key": "k", "safety_identifier": "s", "prediction": {"type": "content", "content": "x"},
    });
    assert!(parse(hints).is_ok());
}

#[test]
fn a_last_message_can_be_continued() {
    let with_chat = |fields: Value| {
        let mut body = fields;
        body["messages"] = json!([
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"},
        ]);
        body
    };
    let ends = |value: Value| {
        let prompt = call(value).prompt;
        (prompt.add_generation_prompt, prompt.continue_final_message)
    };
    assert_eq!(ends(with_chat(json!({}))), (true, false));
    assert_eq!(
        ends(with_chat(json!({"continue_final_message": true}))),
        (false, true)
    );
    assert_eq!(
        ends(with_chat(json!({"add_generation_prompt": false}))),
        (false, false)
    );
    refuses_field(
        with_chat(json!({"continue_final_message": true, "add_generation_prompt": true})),
        "add_generation_prompt",
        "add_generation_prompt and continue_final_message contradict each other: send one of them",
    );
    refuses_field(
        json!({"continue_final_message": true}),
        "continue_final_message",
        "continue_final_message needs an assistant's message at the end of messages",
    );
}

#[test]
fn every_sample_has_the_constraint() {
    let format = json!({"type": "json_object"});
    let requests = call(json!({"response_format": format, "n": 2})).into_requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.constraint.is_some()));
    assert!(call(json!({})).into_requests()[0].constraint.is_none());
}

#[test]
fn a_prediction_belongs_to_every_sample() {
    let call = call(json!({
        "n": 2, "speculative_num_draft_tokens": 4, "prediction": {"type": "content", "content": "x"},
    }));
    let requests = call.into_requests();
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert_eq!(request.prediction.as_deref(), Some("x"));
        assert_eq!(request.sampling.speculative_num_draft_tokens, Some(4));
    }
    let text = "prediction.type is missing: send a string";
    refuses_field(json!({"prediction": {}}), "prediction.type", text);
}
