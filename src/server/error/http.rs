//! Errors of a request's key, origin, host and headers, and of the arrival and size of its body.

use actix_web::http::StatusCode;

use super::{Accepts, ApiError};
use souffleur_base::field::Cut;

impl ApiError {
    /// `form` says where the key is expected.
    pub(crate) fn no_key(form: &str) -> Self {
        let message = format!("the API key is missing: send {form}");
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    pub(crate) fn no_admin_key() -> Self {
        let message = "this route needs the admin key: send Authorization: Bearer <admin key>";
        Self::new(StatusCode::UNAUTHORIZED, "admin_key_required", message)
    }

    pub(crate) fn wrong_key(form: &str) -> Self {
        let message = format!("the API key is wrong: send {form}");
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    pub(crate) fn foreign_origin(origin: &[u8]) -> Self {
        let origin = excerpt(origin);
        let message = format!("origin {origin} is not allowed: add it to --allowed-origins");
        Self::new(StatusCode::FORBIDDEN, "origin_not_allowed", message)
    }

    pub(crate) fn cross_site(site: &[u8]) -> Self {
        let site = excerpt(site);
        let message = format!(
            "requests from pages of other sites are refused (sec-fetch-site: {site}): add the site's origin to \
             --allowed-origins, or open this URL directly in the browser"
        );
        Self::new(StatusCode::FORBIDDEN, "origin_not_allowed", message)
    }

    pub(crate) fn foreign_host(host: &[u8]) -> Self {
        let host = excerpt(host);
        let message = format!(
            "host {host} is not known as a name of this server: add it to --allowed-hosts, or set --api-key"
        );
        Self::new(StatusCode::FORBIDDEN, "host_not_allowed", message)
    }

    pub(crate) fn body_timeout(seconds: u32) -> Self {
        let message =
            format!("the body did not arrive within {seconds} s: send less at once, or faster");
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    pub(crate) fn body_too_large(limit_bytes: usize) -> Self {
        let message = format!("body is larger than {limit_bytes} bytes: send less at once");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    pub(crate) fn not_json(content_type: Option<&[u8]>) -> Self {
        let shown = content_type.map_or_else(|| "missing".to_owned(), excerpt);
        let message =
            format!("content-type is {shown}: send JSON, with content-type application/json");
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            message,
        )
    }

    pub(crate) fn encoded(encoding: &[u8]) -> Self {
        let encoding = excerpt(encoding.trim_ascii());
        let message = format!(
            "content-encoding is {encoding}: compressed bodies are not supported, send the body without compression"
        );
        Self {
            accepts: Some(Accepts::PlainBodies),
            ..Self::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_content_encoding",
                message,
            )
        }
    }

    pub(crate) fn websocket_version() -> Self {
        let message = "Sec-WebSocket-Version must be 13: use a client of RFC 6455";
        Self::new(
            StatusCode::UPGRADE_REQUIRED,
            "websocket_version_not_supported",
            message,
        )
    }

    /// 413: parsing the body takes more memory than one request may use.
    pub(crate) fn body_beyond_budget(most_bytes: usize, limit_bytes: usize) -> Self {
        let message = format!(
            "the request needs too much memory: one request may use about {most_bytes} of the {limit_bytes} bytes \
             reserved for request bodies: send less at once"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }
}

/// The beginning of a client's header value, quoted and escaped.
fn excerpt(bytes: &[u8]) -> String {
    Cut(&String::from_utf8_lossy(bytes)).to_string()
}
