//! Handles `POST /abort_request`: cancels requests by their ids.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::error::ApiError;
use super::key;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{count, flag, object, text};
use super::state::AppState;

/// Cancels the request with the id `rid`, its samples and its batch members. With `abort_all` cancels every request of
/// this server, which requires the admin key if one is set. An unknown or ended id is not an error.
pub(super) async fn abort_request(
    request: HttpRequest,
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    let open_requests = state.open_requests();
    let aborted = match (fields.flag("abort_all")?, fields.string("rid")?) {
        (true, _) => {
            key::verify_admin(request.headers(), state.config())?;
            open_requests.cancel_all()
        }
        (false, Some(rid)) if !rid.is_empty() => open_requests.cancel(&rid),
        (false, _) => {
            let text = "rid is missing: send the id of a request, or set abort_all";
            return Err(ApiError::field("rid", text));
        }
    };
    Ok(HttpResponse::Ok().json(json!({ "aborted": aborted })))
}

pub(super) fn operation(_: &Facts) -> Operation {
    let fields = object()
        .takes(
            "rid",
            text().about("a request's id: it is cancelled with its samples `rid-0`, `rid-1`, …"),
        )
        .takes(
            "abort_all",
            flag()
                .or(false)
                .about("cancel every request of this server; needs the admin key, if there is one"),
        );
    let aborted = object().has("aborted", count());
    describe(Group::Control, "Cancel requests")
        .takes(fields.shape(), json!({"rid": "a"}))
        .answers(aborted.shape(), "how many were cancelled")
        .needs_engine("the memory for request bodies is used up")
        .done()
}
