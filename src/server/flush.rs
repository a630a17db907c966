//! `POST /flush_cache`.

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::error::ApiError;
use super::state::AppState;

/// Forgets every cached prefix, but for pinned ones, and answers with what that freed; 400 while a request runs or waits.
/// SGLang takes a GET too, which any web page could send: here it is POST alone.
pub(super) async fn flush_cache(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let flushed = state.loaded()?.engine.flush_cache().await?;
    Ok(HttpResponse::Ok().json(flushed))
}
