//! The JSON object that a request brings, read within limits of size and time.

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Data};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::state::AppState;

/// The fields of a request's body.
pub(super) struct JsonBody(pub(super) Fields);

impl FromRequest for JsonBody {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let payload = payload.take();
        let state = request.app_data::<Data<AppState>>().cloned();
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        Box::pin(async move {
            let defaults = super::ServerConfig::default();
            let config = state.as_ref().map_or(&defaults, |state| state.config());
            let limit_bytes = config.max_body_bytes;
            if length.is_some_and(|length| length > limit_bytes as u64) {
                return Err(ApiError::body_too_large(limit_bytes));
            }
            let deadline = Duration::from_secs(config.body_timeout_s.into());
            let body = actix_web::rt::time::timeout(deadline, read(payload, limit_bytes)).await;
            let body = body.map_err(|_| ApiError::body_timeout(config.body_timeout_s))??;
            Ok(Self(Fields::new(parse(&body)?)))
        })
    }
}

async fn read(mut payload: Payload, limit_bytes: usize) -> Result<Bytes, ApiError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| ApiError::invalid(format!("body: {error}")))?;
        if body.len() + chunk.len() > limit_bytes {
            return Err(ApiError::body_too_large(limit_bytes));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Parses a JSON object.
///
/// # Errors
/// Says where the text stops being JSON, or what it is instead of an object.
pub(super) fn parse(text: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::invalid(
            "body is not a JSON object: send {\"field\": value, ...}",
        )),
        Err(error) => Err(ApiError::invalid(format!(
            "body is not valid JSON: {error}"
        ))),
    }
}
