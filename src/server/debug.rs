//! Questions about single requests, for whoever runs the server.

use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse};

use super::error::ApiError;
use super::key;
use super::state::AppState;
use crate::ids::RequestId;

/// Answers `GET /debug/prefix/{rid}`: where the request's prompt left the cache, and why. Excerpts of prompts,
/// other people's among them, are shown to an admin only.
pub(super) async fn prefix(
    request: HttpRequest,
    state: Data<AppState>,
    rid: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let rid = RequestId::new(rid.into_inner());
    let report = state.loaded()?.engine.prefix_report(rid.clone()).await?;
    match report {
        Some(report) if key::is_admin(request.headers(), state.config()) => {
            Ok(HttpResponse::Ok().json(report))
        }
        Some(report) => Ok(HttpResponse::Ok().json(report.outline())),
        None => Err(ApiError::no_prefix_report(&rid)),
    }
}
