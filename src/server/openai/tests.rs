//! Tests of the fields that OpenAI's endpoints share, and helpers of other tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::constraint;
use crate::foreign;
use crate::spelling::tests::bytewise;
use crate::transcript::{TranscriptEnd, Update};
use souffleur_request::{ChatPrompt, Delta, GenerateRequest, PredictionUsage, Prompt, Usage};
use souffleur_state::sampling::TokenLogprobs;

pub(super) fn fields(value: Value) -> Fields {
    Fields::of(&value)
}

pub(super) fn limits() -> CallLimits<'static> {
    static LIMITS: std::sync::LazyLock<RequestLimits> = std::sync::LazyLock::new(Default::default);
    CallLimits {
        max_requests: 8,
        websocket: None,
        request: &LIMITS,
        embeds: None,
    }
}

pub(super) fn head() -> wire::Head {
    wire::Head {
        id: "r".to_owned(),
        object: "o",
        created: 1,
        model: "m".to_owned(),
    }
}

pub(super) fn spelling() -> crate::spelling::Spelling {
    bytewise()
}

pub(super) fn update(text: &str, end: Option<FinishReason>) -> Update {
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let pos = |token: &u32| TokenLogprobs {
        token: *token,
        logprob: Some(-0.5),
        top: vec![(120, -0.25)],
        chosen: Vec::new(),
    };
    let usage = Usage {
        prompt_tokens: 5,
        completion_tokens: tokens.len() as u32,
        reasoning_tokens: 0,
        cached_tokens: 4,
        loaded_tokens: 0,
        num_retractions: 0,
        drafts: None,
        prediction: None,
    };
    let output_logprobs = tokens.iter().map(pos).collect();
    let text = text.to_owned();
    let delta = Delta {
        text,
        pieces: Vec::new(),
        tokens,
        output_logprobs,
        input_logprobs: Vec::new(),
        usage,
    };
    Update {
        delta,
        end: end.map(|reason| TranscriptEnd {
            reason,
            e2e_latency_s: 0.5,
            prompt: Default::default(),
            embedding: None,
            timings: None,
            accept_histogram: Default::default(),
        }),
    }
}

pub(super) fn events(chunks: crate::sse::Chunks) -> Vec<Value> {
    let text = String::from_utf8(chunks.into_bytes()).expect("events are text");
    let events = text.split_terminator("\n\n").map(|event| {
        let event = event.strip_prefix("data: ").expect("events are data");
        serde_json::from_str(event).expect("data is JSON")
    });
    events.collect()
}

fn common(value: Value) -> Result<Common, ApiError> {
    Common::read(
        &mut fields(value),
        "cmpl-",
        constraint::of_openai_call,
        limits(),
    )
}

#[test]
fn sampling_fields_are_read_under_openais_names() {
    let read = common(json!({
        "temperature": 0.5, "seed": -1, "min_tokens": 2, "stop": ["a"], "top_k": 4, "n": 3,
        "user": "someone", "max_tokens": 7, "include_stop_str_in_output": true,
    }));
    let sampling = read.unwrap_or_else(|error| panic!("{error}")).sampling;
    let expected = SamplingParams {
        temperature: 0.5,
        sampling_seed: Some(u64::MAX),
        min_new_tokens: 2,
        stop: ["a".to_owned()].into(),
        top_k: 4,
        n: 3,
        no_stop_trim: true,
        ..SamplingParams::default()
    };
    assert_eq!(sampling, expected);
}

#[test]
fn length_errors_use_openais_names() {
    let mut common = common(json!({"min_tokens": 9})).unwrap_or_else(|error| panic!("{error}"));
    let text = "min_tokens is 9, must be at most max_tokens (5): lower one or raise the other";
    let expected = ApiError::field("min_tokens", text);
    assert_eq!(common.limit_length(5), Err(expected));
    assert_eq!(common.limit_length(9), Ok(()));
}

#[test]
fn seeds_have_64_bits() {
    let seed = |value: Value| {
        let common = common(json!({ "seed": value })).unwrap_or_else(|error| panic!("{error}"));
        common.sampling.sampling_seed
    };
    assert_eq!(seed(json!(u64::MAX)), Some(u64::MAX));
    assert_eq!(seed(json!(i64::MIN)), Some(1 << 63));
    assert_eq!(seed(json!(5.0)), Some(5));
    assert_eq!(seed(Value::Null), None);
}

#[test]
fn unsupported_fields_are_refused() {
    let refused = |value: Value| {
        let listed = foreign::refuse(&mut fields(value.clone()), &[]);
        let read = listed.and_then(|()| common(value).map(drop));
        read.err().map(|error| error.to_string())
    };
    let text = |name: &str| {
        Some(format!(
            "{name} is not supported yet: leave it out or send null"
        ))
    };
    assert_eq!(refused(json!({"lora_path": "x"})), text("lora_path"));
    for name in ["guided_decoding", "allowed_token_ids", "stop_regex"] {
        assert_eq!(refused(json!({ name: {"x": 1} })), text(name));
        assert_eq!(refused(json!({ name: null })), None);
    }
    for name in [
        "guided_json",
        "structured_outputs",
        "regex",
        "allowed_token_ids",
    ] {
        assert_eq!(refused(json!({"extra_body": { name: [5] }})), text(name));
        assert_eq!(refused(json!({ name: null, "extra_body": {"x": 1} })), None);
    }
    let seed = "seed is \"x\", must be a 64-bit whole number".to_owned();
    assert_eq!(refused(json!({"seed": "x"})), Some(seed));
    let model = "model is 5, must be a string".to_owned();
    assert_eq!(refused(json!({"model": 5})), Some(model));
}

#[test]
fn usage_counts_a_prompt_once() {
    let usage = |cached_tokens| Usage {
        prompt_tokens: 10,
        completion_tokens: 2,
        reasoning_tokens: 1,
        cached_tokens,
        loaded_tokens: 0,
        num_retractions: 0,
        drafts: None,
        prediction: None,
    };
    let report = wire::UsageReport::of([usage(0), usage(9), usage(1), usage(9)], 2);
    let expected = json!({
        "prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 4},
    });
    assert_eq!(serde_json::to_value(report).expect("plain data"), expected);
}

#[test]
fn usage_counts_the_tokens_of_a_prediction() {
    let usage = |accepted, rejected| Usage {
        prediction: Some(PredictionUsage { accepted, rejected }),
        ..Usage::default()
    };
    let report = wire::UsageReport::of([usage(5, 2), usage(1, 0)], 2);
    let report = serde_json::to_value(report).expect("plain data");
    let expected = json!({
        "reasoning_tokens": 0, "accepted_prediction_tokens": 6, "rejected_prediction_tokens": 2,
    });
    assert_eq!(report["completion_tokens_details"], expected);
}

#[test]
fn samples_of_a_chat_are_separate_requests() {
    let request = GenerateRequest {
        rid: RequestId::new("c"),
        sampling: SamplingParams {
            n: 2,
            ..SamplingParams::default()
        },
        ..GenerateRequest::new(Prompt::Chat(Arc::new(ChatPrompt {
            messages: json!([]),
            tools: None,
            template_kwargs: Default::default(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: Vec::new(),
        })))
    };
    let rids: Vec<String> = crate::call::samples_of(request)
        .map(|sample| sample.rid.to_string())
        .collect();
    assert_eq!(rids, ["c-0", "c-1"]);
}

#[test]
fn the_models_defaults_fill_only_absent_fields() {
    let defaults = GenerationConfig {
        temperature: Some(0.5),
        top_k: Some(40),
        ..GenerationConfig::default()
    };
    let mut fields = fields(json!({"prompt": "a", "temperature": 1.5, "top_k": null}));
    apply_model_defaults(&mut fields, &defaults);
    let sampling = Common::read(&mut fields, "cmpl-", constraint::of_openai_call, limits())
        .expect("valid")
        .sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.top_p),
        (1.5, 40, 1.0)
    );
}
