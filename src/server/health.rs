//! Routes about the server and its engine: health, models, information, metrics.

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;

use super::error::ApiError;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{
    Shape, count, enum_of, flag, free_object, list, object, text, token_id,
};
use super::state::AppState;
use super::whole;
use souffleur_base::error::RequestError;
use souffleur_engine::EngineHandle;

const PIPELINE_STAGES: usize = 1;
/// The version of the weights, which do not change while a server runs.
const WEIGHT_VERSION: &str = "default";
const ENDED_REASON: &str = "it has stopped or failed, and will not be rebuilt: restart the server";

/// Answers `GET /health`: 200 even during a rebuild, since a supervisor would restart a process that fails the check.
pub(super) async fn health(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    if engine.is_over() {
        return Err(ended(engine));
    }
    let status = if engine.is_alive() {
        "ok"
    } else {
        "rebuilding"
    };
    Ok(HttpResponse::Ok().json(json!({ "status": status })))
}

/// Answers `GET /ready`: 200 while the engine accepts new requests.
pub(super) async fn ready(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    check_ready(&state)?;
    Ok(HttpResponse::Ok().json(json!({ "status": "ready" })))
}

/// Checks that the engine accepts new requests, for `/ready` and gRPC's health checks. Unlike `/health`, it fails
/// during a rebuild. The error says why: the engine is loading, rebuilding or has ended, or the server shuts down.
pub(super) fn check_ready(state: &AppState) -> Result<(), ApiError> {
    let engine = &state.serving()?.engine;
    if engine.is_ready() {
        return Ok(());
    }
    if engine.is_over() {
        return Err(ended(engine));
    }
    let reason = if engine.is_alive() {
        "it is shutting down and accepts no more requests"
    } else {
        "it is being rebuilt after a failure: try again later"
    };
    Err(RequestError::EngineDown(reason.to_owned()).into())
}

/// Says that the engine has ended, and why.
fn ended(engine: &EngineHandle) -> ApiError {
    let reason = match engine.failure_reason() {
        Some(reason) => format!("{ENDED_REASON} ({reason})"),
        None => ENDED_REASON.to_owned(),
    };
    RequestError::EngineDown(reason).into()
}

/// Answers `GET /health_generate`: 200 once the engine has generated a token. Waiting clients share one probe.
pub(super) async fn health_generate(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.serving()?.engine;
    let timeout_s = state.config().health_generate_timeout_s;
    state.probe().outcome(engine, timeout_s).await?;
    Ok(HttpResponse::Ok().json(json!({ "status": "ok" })))
}

pub(super) async fn models(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let cards = [model_card(&state)?];
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": cards })))
}

pub(super) async fn model(
    state: Data<AppState>,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let served = &state.loaded()?.engine.model().served_model_name;
    if *id == *served {
        Ok(HttpResponse::Ok().json(model_card(&state)?))
    } else {
        Err(ApiError::no_such_model(&id, served))
    }
}

fn model_card(state: &AppState) -> Result<serde_json::Value, ApiError> {
    let model = state.loaded()?.engine.model();
    Ok(json!({
        "id": model.served_model_name,
        "object": "model",
        "created": state.started_unix_s(),
        "owned_by": "souffleur",
        "root": model.served_model_name,
        "parent": null,
        "max_model_len": model.context_length,
        // llama.vscode reads the context from /props, if the model has this.
        "meta": { "n_ctx_train": model.context_length, "n_vocab": model.vocab_size },
    }))
}

pub(super) async fn model_info(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(model_facts(&state.loaded()?.engine)))
}

pub(super) fn model_facts(engine: &EngineHandle) -> Value {
    let model = engine.model();
    json!({
        "model_path": model.model_path,
        "tokenizer_path": model.model_path,
        "served_model_name": model.served_model_name,
        "is_generation": true,
        "has_image_understanding": engine.images().is_some(),
        "has_audio_understanding": false,
        "weight_version": WEIGHT_VERSION,
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "eos_token_ids": model.eos_token_ids,
    })
}

pub(super) async fn server_info(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(server_facts(&state).await?))
}

pub(super) async fn server_facts(state: &AppState) -> Result<Value, ApiError> {
    let engine = &state.loaded()?.engine;
    let (model, stats) = (engine.model(), engine.stats().await?);
    let build = state.build();
    let mut facts = json!({
        "version": build.version,
        "commit": build.commit,
        "commit_date": build.commit_date,
        "features": build.features,
        "model_path": model.model_path,
        "served_model_name": model.served_model_name,
        "status": if state.is_draining() { "draining" } else { "ready" },
        "context_length": model.context_length,
        "page_size": model.page_size,
        "tp_size": engine.ranks(),
        "pp_size": PIPELINE_STAGES,
        "dp_size": engine.replicas(),
        "disaggregation_mode": "null",
        "is_embedding": false,
        "weight_version": WEIGHT_VERSION,
        "max_total_num_tokens": model.max_total_tokens,
        "max_total_tokens": model.max_total_tokens,
        "max_prefill_tokens": engine.max_prefill_tokens(),
        "kv_cache_dtype": model.kv_cache_dtype,
        "attention_backend": model.attention_backend,
        "max_running_requests": model.max_running_requests,
        "schedule_policy": stats.schedule_policy,
        "radix_eviction_policy": stats.radix_eviction_policy,
        "requests_inside": engine.requests_inside(),
        "kv_events": engine.kv_events(),
        "chaos": engine.chaos(),
        "internal_states": [stats],
        "server": state.config(),
    });
    if model.speculation.is_some() {
        let drafts = engine.load().await?.drafts;
        facts["internal_states"][0]["avg_spec_accept_length"] = json!(drafts.accept_length);
    }
    if engine.replicas() > 1 {
        facts["replica"] = replica_facts(engine);
    }
    Ok(facts)
}

/// The resources of each replica of several.
fn replica_facts(engine: &EngineHandle) -> Value {
    let model = engine.model();
    json!({
        "max_total_num_tokens": model.max_total_tokens,
        "max_running_requests": model.max_running_requests,
        "threads": engine.compute_threads(),
    })
}

pub(super) async fn metrics(state: Data<AppState>) -> HttpResponse {
    let page = state.render_metrics();
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(whole::in_pieces(page))
}

fn status() -> Shape {
    object().has("status", text()).shape()
}

pub(super) fn health_operation(_: &Facts) -> Operation {
    describe(Group::Server, "Is the engine alive?")
        .answers(
            status(),
            "the engine is alive (`ok`) or being rebuilt (`rebuilding`)",
        )
        .needs_engine("the engine is being loaded, or has failed")
        .done()
}

pub(super) fn ready_operation(_: &Facts) -> Operation {
    describe(Group::Server, "Does the server accept requests?")
        .answers(status(), "the server accepts requests")
        .needs_engine("the engine is being loaded or rebuilt, or the server shuts down")
        .done()
}

pub(super) fn generate_operation(_: &Facts) -> Operation {
    describe(Group::Server, "Does the engine generate tokens?")
        .answers(status(), "the engine has generated a token")
        .runs_requests()
        .done()
}

fn card() -> Shape {
    let meta = object().has("n_ctx_train", count()).has("n_vocab", count());
    object()
        .has("id", text())
        .has("object", enum_of(["model"]))
        .has("created", count())
        .has("owned_by", text())
        .has("root", text())
        .has("parent", text().or_null())
        .has("max_model_len", count())
        .has("meta", meta.shape())
        .shape()
}

pub(super) fn models_operation(_: &Facts) -> Operation {
    let models = object()
        .has("object", enum_of(["list"]))
        .has("data", list(card()));
    describe(Group::OpenAi, "The served model, as a list")
        .answers(models.shape(), "the list")
        .needs_engine("there is no engine")
        .done()
}

pub(super) fn model_operation(_: &Facts) -> Operation {
    describe(Group::OpenAi, "The served model")
        .at("id", "its name")
        .answers(card(), "the model")
        .fails(404, "another model is served")
        .needs_engine("there is no engine")
        .done()
}

pub(super) fn model_info_operation(_: &Facts) -> Operation {
    let info = object()
        .has("model_path", text())
        .has("tokenizer_path", text())
        .has("served_model_name", text())
        .has("is_generation", flag())
        .has("has_image_understanding", flag())
        .has("has_audio_understanding", flag())
        .has("weight_version", text())
        .has("context_length", count())
        .has("vocab_size", count())
        .has("hidden_size", count().or_null())
        .has("eos_token_ids", list(token_id()));
    describe(Group::Server, "The model")
        .answers(info.shape(), "the model's properties")
        .needs_engine("there is no engine")
        .done()
}

pub(super) fn server_info_operation(_: &Facts) -> Operation {
    let info = object()
        .has("version", text())
        .has("commit", text().or_null())
        .has("commit_date", text().or_null())
        .has("features", list(text()))
        .has("model_path", text())
        .has("served_model_name", text())
        .has("status", enum_of(["ready", "draining"]))
        .has("context_length", count())
        .has("page_size", count())
        .has("tp_size", count())
        .has("pp_size", count())
        .has("dp_size", count())
        .has("disaggregation_mode", enum_of(["null"]))
        .has("is_embedding", flag())
        .has("weight_version", text())
        .has("max_total_num_tokens", count())
        .has("max_total_tokens", count())
        .has("max_prefill_tokens", count())
        .has("kv_cache_dtype", text().or_null())
        .has("attention_backend", text().or_null())
        .has("max_running_requests", count())
        .has("schedule_policy", text())
        .has("radix_eviction_policy", text())
        .has("requests_inside", count())
        .has(
            "kv_events",
            free_object()
                .about("publishers of the cache's events")
                .or_null(),
        )
        .has(
            "chaos",
            list(free_object()).about("faults that the engine injects into itself"),
        )
        .has("internal_states", list(free_object()))
        .may_have(
            "replica",
            object()
                .has("max_total_num_tokens", count())
                .has("max_running_requests", count())
                .has("threads", count().or_null())
                .shape()
                .about("the resources of each replica, if there are several"),
        )
        .has(
            "server",
            free_object().about("the server's configuration, without its keys"),
        );
    describe(Group::Server, "Limits, queues and configuration")
        .answers(info.shape(), "the values")
        .needs_engine("there is no engine")
        .done()
}

pub(super) fn metrics_operation(_: &Facts) -> Operation {
    describe(Group::Server, "Metrics for Prometheus")
        .answers_as(
            "text/plain; version=0.0.4; charset=utf-8",
            text(),
            "the metrics, in Prometheus' text format",
        )
        .done()
}
