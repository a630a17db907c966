//! `POST /set_internal_state`: changes the scheduling and eviction policies, in SGLang's form.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::error::ApiError;
use super::openai::json_values::missing;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{flag, list, object, text};
use super::state::AppState;
use souffleur_actors::messages::SetPolicy;

const ARGS: &str = "server_args";

/// Sets the changeable keys of `server_args`: the scheduling policy and the eviction policy. If there is any other key,
/// nothing is set, and the answer is `updated: false`, as in SGLang.
pub(super) async fn set(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    if fields.peek(ARGS).is_none() {
        return Err(missing(ARGS.to_owned(), "an object of keys and values"));
    }
    let mut args = fields.object(ARGS)?;
    let set = SetPolicy {
        schedule_policy: args.string("schedule_policy")?,
        radix_eviction_policy: args.string("radix_eviction_policy")?,
    };
    let has_names = set.schedule_policy.is_some() || set.radix_eviction_policy.is_some();
    let updated = has_names && args.first_unread().is_none();
    if updated {
        state.loaded()?.engine.set_policy(set).await?;
    }
    Ok(HttpResponse::Ok().json(json!([{ "updated": updated }])))
}

pub(super) fn operation(_: &Facts) -> Operation {
    let args = object()
        .takes("schedule_policy", text())
        .takes("radix_eviction_policy", text());
    let fields = object().has(
        ARGS,
        args.shape()
            .about("any other key is refused and sets nothing"),
    );
    let updated = object().has("updated", flag());
    describe(Group::Control, "Change the policies, in SGLang's form")
        .takes(
            fields.shape(),
            json!({"server_args": {"schedule_policy": "fcfs"}}),
        )
        .answers(list(updated.shape()), "whether the policies were set")
        .needs_engine("there is no engine")
        .done()
}
