//! Writes errors in Anthropic's form, with the request's id, on all of Anthropic's routes. That includes errors that
//! occur before a handler runs.

use std::sync::Arc;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderValue;
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpResponse};
use serde::Serialize;

use crate::error::{ApiError, rewritten, with_json};
use crate::exchange::{Exchange, REQUEST_ID};
use crate::words::Dialect;

/// The id of an HTTP request (not of a tool call), which its answer carries.
#[derive(Clone)]
pub(crate) struct HttpId(Arc<str>);

impl HttpId {
    fn current() -> Self {
        let exchange = Exchange::current();
        Self(exchange.map_or_else(Arc::default, |exchange| exchange.request_id().clone()))
    }

    fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("ids are printable ASCII")
    }
}

#[derive(Serialize)]
pub(super) struct ErrorForm<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorBody,
    request_id: &'a str,
}

#[derive(Serialize)]
struct ErrorBody {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
    /// This server's own error code, which is more precise than `kind`.
    code: &'static str,
}

impl<'a> ErrorForm<'a> {
    pub(super) fn new(error: &ApiError, id: &'a HttpId) -> Self {
        let error = error.clone().in_dialect(Dialect::Anthropic);
        let error = ErrorBody {
            kind: kind(actix_web::ResponseError::status_code(&error)),
            message: error.message().to_owned(),
            code: error.code(),
        };
        Self {
            kind: "error",
            error,
            request_id: &id.0,
        }
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}

/// Middleware that gives a request and its answer the same id, and writes errors in Anthropic's form.
pub(crate) async fn adapt<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let id = HttpId::current();
    request.extensions_mut().insert(id.clone());
    let write =
        move |response: HttpResponse, error: Option<&ApiError>| written(response, error, &id);
    rewritten(request, next, write).await
}

fn written(mut response: HttpResponse, error: Option<&ApiError>, id: &HttpId) -> HttpResponse {
    response.headers_mut().insert(REQUEST_ID, id.header());
    let Some(error) = error else {
        return response;
    };
    let body = serde_json::to_vec(&ErrorForm::new(error, id));
    with_json(response, body.expect("errors have string keys only"))
}
