//! Questions about single requests, for whoever runs the server.

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};

use super::error::ApiError;
use super::state::AppState;
use crate::ids::RequestId;

/// Answers `GET /debug/prefix/{rid}`: where the request's prompt left the cache, and why.
pub(super) async fn prefix(
    state: Data<AppState>,
    rid: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let rid = RequestId::new(rid.into_inner());
    let report = state.loaded()?.engine.prefix_report(rid.clone()).await?;
    match report {
        Some(report) => Ok(HttpResponse::Ok().json(report)),
        None => Err(ApiError::no_prefix_report(&rid)),
    }
}
