//! `POST /flush_cache`: empties the prefix cache, except for pinned prefixes.

use actix_web::HttpResponse;
use actix_web::web::Data;
use utoipa::openapi::path::Operation;

use super::error::ApiError;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{count, object};
use super::state::AppState;

/// Flushes every cached prefix that is not pinned, and answers with the numbers of freed tokens and pages. Fails with
/// 400 while a request runs or waits. SGLang also accepts GET, but any web page can send GET, so this server does not.
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
        .answers(flushed.shape(), "only pinned prefixes are still cached")
        .fails(400, "`busy`: a request runs or waits")
        .fails(415, "the request has a body that is not declared as JSON")
        .needs_engine("there is no engine")
        .done()
}
