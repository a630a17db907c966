//! Reading a request of gRPC as a call of `/generate`: its limits hold, and its errors name the same fields.

use serde_json::{Map, Number, Value, json};

use super::proto::{GenerateRequest, SamplingParams};
use crate::server::call::CallLimits;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::native::NativeCall;
use crate::server::state::AppState;

/// Reads a call of one request.
///
/// # Errors
/// As `/generate`; besides, more than one sample and what only SGLang has.
pub(super) fn read(state: &AppState, request: GenerateRequest) -> Result<NativeCall, ApiError> {
    refuse(&request)?;
    let engine = &state.serving()?.engine;
    let body = body(request)?;
    let body = serde_json::to_vec(&body).expect("the keys are strings");
    let mut charge = state.bodies().open();
    charge.grow(body.len())?;
    let fields = Fields::read(body.into(), charge, state.config().max_body_values)?;
    let limits = CallLimits {
        max_requests: 1,
        websocket: None,
        request: engine.request_limits(),
        vectors: None,
    };
    NativeCall::parse(fields, limits)
}

fn refuse(request: &GenerateRequest) -> Result<(), ApiError> {
    let asked = [
        ("return_logprob", request.return_logprob == Some(true)),
        (
            "lora_path",
            request
                .lora_path
                .as_deref()
                .is_some_and(|path| !path.is_empty()),
        ),
        (
            "disaggregated_params",
            request.disaggregated_params.is_some(),
        ),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::unsupported(field)),
        None => Ok(()),
    }
}

fn body(request: GenerateRequest) -> Result<Map<String, Value>, ApiError> {
    let mut body = Map::new();
    body.insert("input_ids".to_owned(), json!(request.input_ids));
    body.insert("stream".to_owned(), json!(request.stream));
    // An empty name is none, as proto3 has it.
    let rid = request.rid.filter(|rid| !rid.is_empty());
    body.insert("rid".to_owned(), json!(rid));
    let sampling = request.sampling_params.map(sampling).transpose()?;
    body.insert("sampling_params".to_owned(), json!(sampling));
    Ok(body)
}

fn sampling(params: SamplingParams) -> Result<Map<String, Value>, ApiError> {
    let mut fields = Map::new();
    for (name, value) in [
        ("temperature", params.temperature),
        ("top_p", params.top_p),
        ("min_p", params.min_p),
        ("frequency_penalty", params.frequency_penalty),
        ("presence_penalty", params.presence_penalty),
        ("repetition_penalty", params.repetition_penalty),
    ] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), Value::Number(finite(name, value)?));
        }
    }
    for (name, value) in [
        ("top_k", json!(params.top_k)),
        ("max_new_tokens", json!(params.max_new_tokens)),
        ("min_new_tokens", json!(params.min_new_tokens)),
        ("n", json!(params.n)),
        ("ignore_eos", json!(params.ignore_eos)),
        ("json_schema", json!(params.json_schema)),
        ("regex", json!(params.regex)),
    ] {
        fields.insert(name.to_owned(), value);
    }
    if !params.stop.is_empty() {
        fields.insert("stop".to_owned(), json!(params.stop));
    }
    if !params.stop_token_ids.is_empty() {
        let ids = json!(params.stop_token_ids);
        fields.insert("stop_token_ids".to_owned(), ids);
    }
    Ok(fields)
}

/// JSON has no number for what is not finite, and would take it for an absent one.
fn finite(name: &str, value: f32) -> Result<Number, ApiError> {
    let number = Number::from_f64(value.into());
    number.ok_or_else(|| ApiError::field(name, format!("{name} is {value}, must be a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_left_to_the_engine_and_zero_is_zero() {
        let params = SamplingParams {
            temperature: Some(0.0),
            max_new_tokens: Some(5),
            ..SamplingParams::default()
        };
        let fields = sampling(params).expect("they are finite");
        let given: Vec<_> = fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .collect();
        assert_eq!(
            given,
            [
                (&"temperature".to_owned(), &json!(0.0)),
                (&"max_new_tokens".to_owned(), &json!(5))
            ]
        );
    }

    #[test]
    fn what_is_no_number_is_refused_by_name() {
        for value in [f32::NAN, f32::INFINITY] {
            let params = SamplingParams {
                top_p: Some(value),
                ..SamplingParams::default()
            };
            let error = sampling(params).expect_err("it is not finite");
            assert!(error.message().starts_with("top_p is "), "{error:?}");
        }
    }

    #[test]
    fn what_only_sglang_has_is_refused() {
        let request = GenerateRequest {
            return_logprob: Some(true),
            ..GenerateRequest::default()
        };
        let error = refuse(&request).expect_err("there are none");
        assert!(error.message().contains("return_logprob"), "{error:?}");
        assert_eq!(refuse(&GenerateRequest::default()), Ok(()));
    }
}
