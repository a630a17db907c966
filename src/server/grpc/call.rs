//! Converts a gRPC request to a call of `/generate`, with the same limits and the same field names in errors.

use serde::Serialize;
use serde_json::{Map, Number, Value, json};

use crate::call::CallLimits;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::native::NativeCall;
use crate::state::AppState;
use souffleur_base::error::{PromptTokens, RequestError};
use souffleur_state::request_limits::RequestLimits;

/// Limits on a message, checked before it is converted to JSON, which takes many times the message's memory.
#[derive(Clone, Copy)]
pub(super) struct MessageLimits<'a> {
    pub(super) context_length: usize,
    pub(super) request: &'a RequestLimits,
}

impl<'a> MessageLimits<'a> {
    /// Fails if no engine is loaded, or while the server drains.
    pub(super) fn of(state: &'a AppState) -> Result<Self, ApiError> {
        let engine = &state.serving()?.engine;
        Ok(Self {
            context_length: engine.model().context_length,
            request: engine.request_limits(),
        })
    }

    pub(super) fn check_prompt(&self, prompt_tokens: usize) -> Result<(), ApiError> {
        let limit_tokens = self.context_length;
        if prompt_tokens > limit_tokens {
            Err(ApiError::from(RequestError::PromptTooLong {
                prompt_tokens: PromptTokens::Exactly(prompt_tokens),
                limit_tokens,
            }))
        } else {
            Ok(())
        }
    }

    pub(super) fn check_lists(
        &self,
        stop: usize,
        stop_token_ids: usize,
        logit_bias: usize,
    ) -> Result<(), ApiError> {
        let most = self.request;
        let lists = [
            ("stop", stop, most.max_stop_strings),
            ("stop_token_ids", stop_token_ids, most.max_stop_token_ids),
            ("logit_bias", logit_bias, most.max_logit_bias),
        ];
        match lists.into_iter().find(|(_, len, limit)| len > limit) {
            Some((name, len, limit)) => {
                let text = format!("{name} has {len} entries, limit is {limit}: send fewer");
                Err(ApiError::field(name, text))
            }
            None => Ok(()),
        }
    }
}

/// Parses a call of one request. Fails as `/generate` does, and for more than one sample.
pub(super) fn read(state: &AppState, body: Map<String, Value>) -> Result<NativeCall, ApiError> {
    let engine = &state.serving()?.engine;
    let body = serde_json::to_vec(&body).expect("the keys are strings");
    let mut charge = state.bodies().open();
    charge.grow(body.len())?;
    let fields = Fields::read(body.into(), charge, state.config().max_body_values)?;
    let limits = CallLimits {
        max_requests: 1,
        websocket: None,
        request: engine.request_limits(),
        embeds: None,
    };
    NativeCall::parse(fields, limits)
}

/// The fields that the requests of both services have.
pub(super) struct SharedFields<I> {
    pub(super) input_ids: Vec<I>,
    pub(super) stream: bool,
    /// If it is empty, the server generates an id.
    pub(super) rid: String,
    pub(super) sampling: Option<Map<String, Value>>,
}

impl<I: Serialize> SharedFields<I> {
    /// The body of an equivalent call of `/generate`.
    pub(super) fn into_body(self) -> Map<String, Value> {
        let rid = Some(self.rid).filter(|rid| !rid.is_empty());
        object([
            ("input_ids", json!(self.input_ids)),
            ("stream", json!(self.stream)),
            ("rid", json!(rid)),
            ("sampling_params", json!(self.sampling)),
        ])
    }
}

/// Refuses a request for any of these features, none of which this server has. The error names the first one.
pub(super) fn refuse(asked: &[(&str, bool)]) -> Result<(), ApiError> {
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::unsupported(field)),
        None => Ok(()),
    }
}

/// An object with these fields. Null fields count as absent.
pub(super) fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    let fields = fields.into_iter();
    fields
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

pub(super) fn unless_empty<T: Serialize>(list: Vec<T>) -> Value {
    if list.is_empty() {
        Value::Null
    } else {
        json!(list)
    }
}

/// An object with these numbers; absent numbers are null. Fails for infinities and NaN, which JSON cannot represent.
pub(super) fn numbers<const N: usize>(
    given: [(&str, Option<f32>); N],
) -> Result<Map<String, Value>, ApiError> {
    let fields = given.into_iter().map(|(name, value)| {
        let number = value.map(|value| finite(name, value)).transpose()?;
        Ok((name.to_owned(), json!(number)))
    });
    fields.collect()
}

/// Converts a number. Fails for infinities and NaN, which serde_json would write as null.
pub(super) fn finite(name: &str, value: f32) -> Result<Number, ApiError> {
    let number = Number::from_f64(value.into());
    number
        .ok_or_else(|| ApiError::field(name, format!("{name} is {value}, must be a finite number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_their_limits_are_refused_with_both_lengths() {
        let request = RequestLimits {
            max_stop_strings: 1,
            max_stop_token_ids: 2,
            max_logit_bias: 3,
            ..RequestLimits::default()
        };
        let limits = MessageLimits {
            context_length: 100,
            request: &request,
        };
        assert!(limits.check_prompt(100).is_ok());
        let error = limits.check_prompt(101).expect_err("it is too long");
        let expected = "This model's maximum context length is 100 tokens";
        assert!(error.message().starts_with(expected), "{error}");
        assert!(limits.check_lists(1, 2, 3).is_ok());
        for (lens, expected) in [
            ([2, 2, 3], "stop has 2 entries, limit is 1: send fewer"),
            (
                [1, 3, 3],
                "stop_token_ids has 3 entries, limit is 2: send fewer",
            ),
            (
                [1, 2, 4],
                "logit_bias has 4 entries, limit is 3: send fewer",
            ),
        ] {
            let [stop, ids, bias] = lens;
            let error = limits.check_lists(stop, ids, bias);
            assert_eq!(error.expect_err("it is too long").message(), expected);
        }
    }
}
