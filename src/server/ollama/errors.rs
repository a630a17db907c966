//! Writes errors in Ollama's form, a text, on all of Ollama's routes.

use actix_web::HttpResponse;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use serde::Serialize;

use crate::error::{ApiError, rewritten, with_json};
use crate::words::Dialect;

#[derive(Serialize)]
pub(super) struct ErrorForm {
    error: String,
}

impl ErrorForm {
    pub(super) fn new(error: &ApiError) -> Self {
        let error = error.clone().in_dialect(Dialect::Ollama);
        Self {
            error: error.message().to_owned(),
        }
    }
}

/// Middleware that writes errors in Ollama's form.
pub(crate) async fn adapt<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    rewritten(request, next, written).await
}

/// As [`adapt`], for a path without a route: operations of Ollama's that this server lacks get errors in Ollama's form.
pub(crate) async fn adapt_unknown<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    if request.path().starts_with("/api/") {
        return adapt(request, next).await;
    }
    let response = next.call(request).await?;
    Ok(response.map_into_boxed_body())
}

fn written(response: HttpResponse, error: Option<&ApiError>) -> HttpResponse {
    let Some(error) = error else {
        return response;
    };
    let body = serde_json::to_vec(&ErrorForm::new(error));
    with_json(response, body.expect("errors have string keys only"))
}
