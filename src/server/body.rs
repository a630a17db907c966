//! Reads a request's body as a JSON object, within limits of size, time and memory.

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Data};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;

use super::budget::{BodyBudget, BodyCharge};
use super::error::ApiError;
use super::fields::Fields;
use super::state::AppState;

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
            let budget = state.as_ref().map(|state| state.bodies().clone());
            let budget = budget.unwrap_or_else(|| BodyBudget::new(config.max_bodies_bytes));
            let deadline = Duration::from_secs(config.body_timeout_s.into());
            let read = read(payload, limit_bytes, budget.open());
            let body = actix_web::rt::time::timeout(deadline, read).await;
            let (body, charge) =
                body.map_err(|_| ApiError::body_timeout(config.body_timeout_s))??;
            Fields::read(body, charge, config.max_body_values).map(Self)
        })
    }
}

/// Reads a body and charges its bytes as they arrive, not by the declared `Content-Length`.
async fn read(
    mut payload: Payload,
    limit_bytes: usize,
    mut charge: BodyCharge,
) -> Result<(Bytes, BodyCharge), ApiError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk
            .map_err(|error| ApiError::invalid(format!("failed to read the body: {error}")))?;
        if body.len() + chunk.len() > limit_bytes {
            return Err(ApiError::body_too_large(limit_bytes));
        }
        charge.grow(chunk.len())?;
        body.extend_from_slice(&chunk);
    }
    Ok((body.freeze(), charge))
}
