//! Questions about the server and its engine: health, models, information, metrics.

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};
use serde_json::json;

use super::error::ApiError;
use super::probe;
use super::state::AppState;
use super::whole;
use crate::error::RequestError;

/// Answers `GET /health`: 200 while the engine lives.
pub(super) async fn health(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    match engine.is_alive() {
        true => Ok(HttpResponse::Ok().json(json!({ "status": "ok" }))),
        false => Err(RequestError::EngineDown("it is being rebuilt".to_owned()).into()),
    }
}

/// Answers `GET /ready`: 200 while new requests are taken.
pub(super) async fn ready(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    match state.serving()?.engine.is_ready() {
        true => Ok(HttpResponse::Ok().json(json!({ "status": "ready" }))),
        false => Err(RequestError::EngineDown("it is being rebuilt".to_owned()).into()),
    }
}

/// Answers `GET /health_generate`: 200 once the engine has generated a token, for all who ask at that time.
pub(super) async fn health_generate(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    probe::outcome(&state).await?;
    Ok(HttpResponse::Ok().json(json!({ "status": "ok" })))
}

/// Answers `GET /v1/models`.
pub(super) async fn models(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let cards = [model_card(&state)?];
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": cards })))
}

/// Answers `GET /v1/models/{id}`.
pub(super) async fn model(
    state: Data<AppState>,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let served = &state.loaded()?.engine.model().served_model_name;
    match *id == *served {
        true => Ok(HttpResponse::Ok().json(model_card(&state)?)),
        false => Err(ApiError::no_such_model(&id, served)),
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
    }))
}

/// Answers `GET /model_info`.
pub(super) async fn model_info(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let model = state.loaded()?.engine.model();
    Ok(HttpResponse::Ok().json(json!({
        "model_path": model.model_path,
        "tokenizer_path": model.model_path,
        "served_model_name": model.served_model_name,
        "is_generation": true,
        "weight_version": "default",
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "eos_token_ids": model.eos_token_ids,
    })))
}

/// Answers `GET /server_info`.
pub(super) async fn server_info(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    let (model, stats) = (engine.model(), engine.stats().await?);
    Ok(HttpResponse::Ok().json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model_path": model.model_path,
        "served_model_name": model.served_model_name,
        "status": if state.is_draining() { "draining" } else { "ready" },
        "context_length": model.context_length,
        "page_size": model.page_size,
        "max_total_num_tokens": model.max_total_tokens,
        "max_running_requests": model.max_running_requests,
        "schedule_policy": stats.schedule_policy,
        "radix_eviction_policy": stats.radix_eviction_policy,
        "requests_inside": engine.requests_inside(),
        "internal_states": [stats],
        "server": state.config(),
    })))
}

/// Answers `GET /metrics` in the Prometheus text format.
pub(super) async fn metrics(state: Data<AppState>) -> HttpResponse {
    let page = state.render_metrics();
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(whole::in_pieces(page))
}
