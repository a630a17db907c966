//! Checks API keys: `Authorization: Bearer <key>`, as OpenAI's clients send it, or `x-api-key: <key>`, as Anthropic's do.

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

/// Lets requests through that show the key or the admin's, and all of them where there is no key.
pub(super) async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    if let Some(state) = request.app_data::<Data<AppState>>() {
        judge(request.headers(), state.config())?;
    }
    next.call(request).await
}

/// Lets requests through that show the admin's key, and all of them where there is none.
pub(super) async fn check_admin(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    if let Some(state) = request.app_data::<Data<AppState>>() {
        judge_admin(request.headers(), state.config())?;
    }
    next.call(request).await
}

fn judge(headers: &HeaderMap, config: &ServerConfig) -> Result<(), ApiError> {
    let Some(key) = &config.api_key else {
        return Ok(());
    };
    if !headers.contains_key(header::AUTHORIZATION) && !headers.contains_key(X_API_KEY) {
        return Err(ApiError::no_key());
    }
    if shows(headers, key) || is_admin(headers, config) {
        Ok(())
    } else {
        Err(ApiError::wrong_key())
    }
}

/// Refuses admin operations to clients that do not show the admin's key. Without such a key every client may.
pub(super) fn judge_admin(headers: &HeaderMap, config: &ServerConfig) -> Result<(), ApiError> {
    if config.admin_api_key.is_none() || is_admin(headers, config) {
        Ok(())
    } else {
        Err(ApiError::no_admin_key())
    }
}

/// As [`judge`], of a header of authorization.
#[cfg(feature = "grpc")]
pub(super) fn judge_bearer(shown: Option<&[u8]>, config: &ServerConfig) -> Result<(), ApiError> {
    match (&config.api_key, shown.and_then(bearer)) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(ApiError::no_key()),
        (Some(key), Some(shown)) => {
            let admin = config.admin_api_key.as_ref();
            if key.is(shown) || admin.is_some_and(|key| key.is(shown)) {
                Ok(())
            } else {
                Err(ApiError::wrong_key())
            }
        }
    }
}

/// As [`judge_admin`], of a header of authorization.
#[cfg(feature = "grpc")]
pub(super) fn judge_admin_bearer(
    shown: Option<&[u8]>,
    config: &ServerConfig,
) -> Result<(), ApiError> {
    let shown = shown.and_then(bearer);
    match &config.admin_api_key {
        Some(key) if !shown.is_some_and(|shown| key.is(shown)) => Err(ApiError::no_admin_key()),
        _ => Ok(()),
    }
}

/// True where the admin's key is shown. False where there is none.
pub(super) fn is_admin(headers: &HeaderMap, config: &ServerConfig) -> bool {
    let key = config.admin_api_key.as_ref();
    key.is_some_and(|key| shows(headers, key))
}

fn shows(headers: &HeaderMap, key: &ApiKey) -> bool {
    let authorization = headers.get(header::AUTHORIZATION);
    let authorization = authorization.and_then(|shown| bearer(shown.as_bytes()));
    let plain = headers.get(X_API_KEY);
    let plain = plain.map(|shown| shown.as_bytes().trim_ascii());
    let mut shown = authorization.into_iter().chain(plain);
    shown.any(|shown| key.is(shown))
}

/// The text after the scheme, whose name may be written in any case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked(7)?;
    let key = key.trim_ascii();
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_is_found_behind_its_scheme_alone() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        for other in ["", "Bearer", "Basic abc", "abc", "Bearerabc"] {
            assert_eq!(bearer(other.as_bytes()), None, "{other:?}");
        }
    }
}
