//! `POST /abort_request`.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;

use super::body::JsonBody;
use super::error::ApiError;
use super::state::AppState;

/// Cancels the request named `rid` with its samples and batch members, or with `abort_all` every request that came
/// in through this server. Names that are unknown, or ended already, are no error.
pub(super) async fn abort_request(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    let mut fields = body.0;
    let rids = match (fields.flag("abort_all")?, fields.string("rid")?) {
        (true, _) => state.all_under_way(),
        (false, Some(rid)) if !rid.is_empty() => state.named(&rid),
        (false, _) => {
            let text = "rid is missing: name a request or set abort_all";
            return Err(ApiError::field("rid", text));
        }
    };
    rids.iter().for_each(|rid| engine.cancel(rid));
    Ok(HttpResponse::Ok().json(json!({ "aborted": rids.len() })))
}
