//! `GET /props`: the model's and the server's properties, as llama.cpp's clients read them.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;

use super::call::DEFAULTS;
pub(crate) use super::docs::props as operation;
use super::settings::{context_tokens, of_sampling};
use crate::error::ApiError;
use crate::state::AppState;
use souffleur_engine::ModelInfo;
use souffleur_state::sampling::SamplingParams;

pub(crate) async fn props(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    let (model, text) = (engine.model(), engine.text());
    let special = text.map(|text| text.special_tokens());
    let token = |name: Option<&String>| name.cloned().unwrap_or_default();
    let build = state.build();
    Ok(HttpResponse::Ok().json(json!({
        "default_generation_settings": {
            "n_ctx": context_tokens(model),
            "params": of_sampling(&default_sampling(model)),
        },
        "total_slots": model.max_running_requests,
        "model_alias": model.served_model_name,
        "model_path": model.model_path,
        "chat_template": text.and_then(|text| text.chat_template()).unwrap_or_default(),
        "bos_token": token(special.and_then(|special| special.bos.as_ref())),
        "eos_token": token(special.and_then(|special| special.eos.as_ref())),
        "modalities": { "vision": engine.images().is_some(), "audio": false },
        "build_info": format!("souffleur {}", build.version),
        "is_sleeping": false,
    })))
}

/// The parameters of a call of `/infill` without any.
fn default_sampling(model: &ModelInfo) -> SamplingParams {
    let own = &model.generation;
    let [temperature, top_k, top_p, min_p] = DEFAULTS.map(|(_, default)| default as f32);
    SamplingParams {
        temperature: own.temperature.unwrap_or(temperature),
        top_k: own.top_k.unwrap_or(top_k as i32),
        top_p: own.top_p.unwrap_or(top_p),
        min_p: own.min_p.unwrap_or(min_p),
        repetition_penalty: own.repetition_penalty.unwrap_or(1.0),
        max_new_tokens: u32::MAX,
        ..SamplingParams::default()
    }
}
