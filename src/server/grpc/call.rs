//! Reading a request of gRPC as a call of `/generate`: its limits hold, and its errors name the same fields.

use serde::Serialize;
use serde_json::{Map, Number, Value, json};

use crate::server::call::CallLimits;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::native::NativeCall;
use crate::server::state::AppState;

/// Reads a call of one request.
///
/// # Errors
/// As `/generate`; besides, more than one sample.
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
        vectors: None,
    };
    NativeCall::parse(fields, limits)
}

/// Refuses what is asked for and not here.
pub(super) fn refuse(asked: &[(&str, bool)]) -> Result<(), ApiError> {
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::unsupported(field)),
        None => Ok(()),
    }
}

/// An object with these fields, of which null ones count as absent.
pub(super) fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    let fields = fields.into_iter();
    fields
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// A list, where an empty one counts as absent.
pub(super) fn unless_empty<T: Serialize>(list: Vec<T>) -> Value {
    match list.is_empty() {
        true => Value::Null,
        false => json!(list),
    }
}

/// JSON has no number for what is not finite, and would take it for an absent one.
pub(super) fn finite(name: &str, value: f32) -> Result<Number, ApiError> {
    let number = Number::from_f64(value.into());
    number.ok_or_else(|| ApiError::field(name, format!("{name} is {value}, must be a number")))
}
