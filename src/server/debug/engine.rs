//! `GET /debug/engine`: the generation, restarts and losses of the engine, without a message to any actor.

use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;

use super::{death, death_shape};
use crate::error::ApiError;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{Shape, count, flag, list, number, object, text};
use crate::state::AppState;
use souffleur_actors::status::MemberStatus;
use souffleur_engine::EngineHandle;
use souffleur_metrics::recovery_counts;

pub(crate) async fn engine(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    Ok(HttpResponse::Ok().json(facts(engine)))
}

/// All that is known about the engine without its actors.
pub(super) fn facts(engine: &EngineHandle) -> Value {
    let (status, counts, now) = (engine.unit_status(), recovery_counts(), Instant::now());
    let mut facts = json!({
        "generation": status.generation,
        "is_up": status.is_up,
        "is_paused": status.is_paused,
        "failure": engine.failure_reason().as_deref(),
        "last_death": status.died.as_ref().map(|died| death(died, now)),
        "last_outage_s": status.last_outage.map(|outage| outage.as_secs_f64()),
        "restarts": {
            "control": status.restarts.control,
            "tokenizer": status.restarts.tokenizer,
            "executor": status.restarts.executor,
            "left": status.allowance.left(now),
            "limit": status.allowance.limit,
            "period_s": status.allowance.period.as_secs_f64(),
        },
        "requests": {
            "inside": engine.requests_inside(),
            "prompt_tokens_inside": engine.prompt_tokens_inside(),
            "resumed": counts.resumed,
            "lost": counts.lost,
            "stale_results": counts.stale_results,
        },
    });
    if engine.replicas() > 1 {
        let replicas = status.replicas.iter();
        let replicas = replicas.map(|MemberStatus { generation, is_up }| {
            json!({ "generation": generation, "is_up": is_up })
        });
        facts["replicas"] = replicas.collect();
    }
    facts
}

fn shape() -> Shape {
    let restarts = object()
        .has("control", count())
        .has("tokenizer", count())
        .has("executor", count())
        .has(
            "left",
            count().about("the restarts that are at least allowed now before the engine ends"),
        )
        .has("limit", count())
        .has("period_s", number().at_least(0));
    let requests = object()
        .has(
            "inside",
            count().about("requests in flight, queued ones too"),
        )
        .has("prompt_tokens_inside", count())
        .has(
            "resumed",
            count().about("`souffleur_requests_resumed_total`"),
        )
        .has("lost", count().about("`souffleur_requests_lost_total`"))
        .has(
            "stale_results",
            count().about("messages with results of an older generation"),
        );
    let replica = object().has("generation", count()).has("is_up", flag());
    object()
        .has("generation", count())
        .has(
            "is_up",
            flag().about("false while actors are started again"),
        )
        .has("is_paused", flag())
        .has(
            "failure",
            text().or_null().about("why the engine has failed for good"),
        )
        .has("last_death", death_shape())
        .has(
            "last_outage_s",
            number()
                .or_null()
                .about("the time of the last restart, from the death to the start"),
        )
        .has("restarts", restarts.shape())
        .has("requests", requests.shape())
        .may_have("replicas", list(replica.shape()))
        .shape()
}

pub(crate) fn operation(_: &Facts) -> Operation {
    describe(Group::Server, "The engine's generation and restarts")
        .about("Sends no message, so it answers while an actor hangs.")
        .answers(shape(), "the engine")
        .needs_engine("there is no engine")
        .done()
}
