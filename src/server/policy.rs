//! `POST /set_policy`: changes the scheduling policy and the eviction policy.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::error::ApiError;
use super::fields::Fields;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{object, text};
use super::state::AppState;
use souffleur_actors::messages::SetPolicy;
use souffleur_base::field::check_bytes;

const MAX_NAME_BYTES: usize = 64;

/// Swaps the scheduling policy, the eviction policy or both while the engine runs, and answers with both.
pub(super) async fn set_policy(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    let set = SetPolicy {
        schedule_policy: name(&mut fields, "schedule_policy")?,
        radix_eviction_policy: name(&mut fields, "radix_eviction_policy")?,
    };
    if set.schedule_policy.is_none() && set.radix_eviction_policy.is_none() {
        let text = "schedule_policy is missing, and so is radix_eviction_policy: send one of them, or both";
        return Err(ApiError::field("schedule_policy", text));
    }
    let policies = state.loaded()?.engine.set_policy(set).await?;
    Ok(HttpResponse::Ok().json(policies))
}

fn name(fields: &mut Fields, field: &str) -> Result<Option<String>, ApiError> {
    let name = fields.string(field)?;
    if let Some(name) = &name {
        check_bytes(field, name, MAX_NAME_BYTES)?;
    }
    Ok(name)
}

pub(super) fn operation(_: &Facts) -> Operation {
    let name = || text().up_to(MAX_NAME_BYTES);
    let fields = object()
        .takes("schedule_policy", name().about("as `--schedule-policy`"))
        .takes(
            "radix_eviction_policy",
            name().about("as `--radix-eviction-policy`"),
        );
    let policies = object()
        .has("schedule_policy", text())
        .has("radix_eviction_policy", text());
    describe(
        Group::Control,
        "Change the policies of scheduling and eviction",
    )
    .about("One of them, or both.")
    .takes(fields.shape(), json!({"schedule_policy": "lpm"}))
    .answers(policies.shape(), "the policies from now on")
    .needs_engine("there is no engine")
    .done()
}
