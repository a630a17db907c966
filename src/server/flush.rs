//! `POST /flush_cache`: empties the prefix cache, except for pinned prefixes.

use actix_web::HttpResponse;
use actix_web::web::Data;
use utoipa::openapi::path::Operation;

use super::error::ApiError;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{count, object};
use super::state::AppState;

/// Flushes every cached prefix, except pinned ones, and answers with the freed counts; 400 while a request runs or
/// waits. SGLang also accepts GET, which any web page could send; this server accepts POST only.
pub(super) async fn flush_cache(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let flushed = state.loaded()?.engine.flush_cache().await?;
    Ok(HttpResponse::Ok().json(flushed))
}

pub(super) fn operation(_: &Facts) -> Operation {
    let flushed = object()
        .has("flushed_tokens", count())
        .has("flushed_pages", count())
        .has("kept_tokens", count().about("tokens of pinned prefixes"));
    describe(Group::Control, "Empty the prefix cache")
        .answers(flushed.shape(), "it is empty, except pinned prefixes")
        .fails(400, "`busy`: a request runs or waits")
        .fails(415, "there is a body, which is not declared as JSON")
        .needs_engine("there is no engine")
        .done()
}
