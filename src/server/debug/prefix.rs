//! `GET /debug/prefix/{rid}`: reports why a request's prompt was not cached.

use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use utoipa::openapi::path::Operation;

use crate::error::ApiError;
use crate::key;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{count, enum_of, object, text};
use crate::state::AppState;
use souffleur_base::ids::RequestId;
use souffleur_state::cache::prefix_history::Cause;

/// Reports where the request's prompt stopped matching the prefix cache, and why. Only an admin gets the excerpts of
/// prompts, because they may show other clients' prompts.
pub(crate) async fn prefix(
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

pub(crate) fn operation(_: &Facts) -> Operation {
    let report = object()
        .has("rid", text())
        .has("cause", enum_of(Cause::ALL.map(Cause::as_str)))
        .has(
            "position",
            count().about("the first token that did not come from the cache"),
        );
    describe(Group::Server, "Why a prompt was not cached")
        .about("With the admin key the report has more fields, including excerpts of prompts.")
        .at("rid", "the id of a recently admitted request")
        .answers(report.shape(), "the report")
        .fails(404, "there is no diagnosis of the request")
        .needs_engine("there is no engine")
        .done()
}
