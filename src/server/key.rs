//! Checks API keys: `Authorization: Bearer <key>`, as OpenAI's clients send, or `x-api-key: <key>`, as Anthropic's do.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap};
use actix_web::middleware::Next;
use actix_web::web::Data;

use super::api_key::ApiKey;
use super::config::ServerConfig;
use super::error::ApiError;
use super::state::AppState;

const X_API_KEY: &str = "x-api-key";
const HTTP_FORM: &str = "Authorization: Bearer <key>, or x-api-key: <key>";
#[cfg(feature = "grpc")]
const GRPC_FORM: &str = "the metadata authorization: Bearer <key>";

/// Passes requests with the API key or the admin key, and all requests if no API key is set.
pub(super) async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    if let Some(state) = request.app_data::<Data<AppState>>() {
        verify(request.headers(), state.config())?;
    }
    next.call(request).await
}

/// Passes requests with the admin key, and all requests if no admin key is set.
pub(super) async fn check_admin(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    if let Some(state) = request.app_data::<Data<AppState>>() {
        verify_admin(request.headers(), state.config())?;
    }
    next.call(request).await
}

fn verify(headers: &HeaderMap, config: &ServerConfig) -> Result<(), ApiError> {
    let Some(key) = &config.api_key else {
        return Ok(());
    };
    if !headers.contains_key(header::AUTHORIZATION) && !headers.contains_key(X_API_KEY) {
        return Err(ApiError::no_key(HTTP_FORM));
    }
    if has_key(headers, key) || is_admin(headers, config) {
        Ok(())
    } else {
        Err(ApiError::wrong_key(HTTP_FORM))
    }
}

/// Refuses admin operations to clients without the admin key. If no admin key is set, every client may use them.
pub(super) fn verify_admin(headers: &HeaderMap, config: &ServerConfig) -> Result<(), ApiError> {
    if config.admin_api_key.is_none() || is_admin(headers, config) {
        Ok(())
    } else {
        Err(ApiError::no_admin_key())
    }
}

/// As [`verify`], for the value of an `authorization` header.
#[cfg(feature = "grpc")]
pub(super) fn verify_bearer(given: Option<&[u8]>, config: &ServerConfig) -> Result<(), ApiError> {
    match (&config.api_key, given.and_then(bearer)) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(ApiError::no_key(GRPC_FORM)),
        (Some(key), Some(given)) => {
            let admin = config.admin_api_key.as_ref();
            if key.is(given) || admin.is_some_and(|key| key.is(given)) {
                Ok(())
            } else {
                Err(ApiError::wrong_key(GRPC_FORM))
            }
        }
    }
}

/// As [`verify_admin`], for the value of an `authorization` header.
#[cfg(feature = "grpc")]
pub(super) fn verify_admin_bearer(
    given: Option<&[u8]>,
    config: &ServerConfig,
) -> Result<(), ApiError> {
    let given = given.and_then(bearer);
    match &config.admin_api_key {
        Some(key) if !given.is_some_and(|given| key.is(given)) => Err(ApiError::no_admin_key()),
        _ => Ok(()),
    }
}

/// Returns whether a request has the admin key; false if no admin key is set.
pub(super) fn is_admin(headers: &HeaderMap, config: &ServerConfig) -> bool {
    let key = config.admin_api_key.as_ref();
    key.is_some_and(|key| has_key(headers, key))
}

fn has_key(headers: &HeaderMap, key: &ApiKey) -> bool {
    let authorization = headers.get(header::AUTHORIZATION);
    let authorization = authorization.and_then(|given| bearer(given.as_bytes()));
    let plain = headers.get(X_API_KEY);
    let plain = plain.map(|given| given.as_bytes().trim_ascii());
    let mut given = authorization.into_iter().chain(plain);
    given.any(|given| key.is(given))
}

/// Returns the key after the scheme `Bearer`, which may be written in any case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked(7)?;
    let key = key.trim_ascii();
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_after_the_bearer_scheme_only() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        for other in ["", "Bearer", "Basic abc", "abc", "Bearerabc"] {
            assert_eq!(bearer(other.as_bytes()), None, "{other:?}");
        }
    }
}
