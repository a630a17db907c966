//! The limits, defaults and keys of this server that its OpenAPI document depends on.

use serde_json::{Map, Value};

use crate::state::AppState;
use souffleur_model::generation::GenerationConfig;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::SamplingParams;

#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) limits: RequestLimits,
    /// The number of replicas, once the model is loaded.
    pub(crate) replicas: usize,
    /// Maximum of prompts × samples in a call.
    pub(crate) max_requests: usize,
    /// The default sampling parameters on the endpoints that use the model's defaults.
    pub(crate) model_sampling: SamplingParams,
    /// The name of the served model, once it is loaded.
    pub(crate) model: Option<String>,
    pub(super) has_key: bool,
    pub(super) has_admin_key: bool,
}

impl Facts {
    /// The facts of a server. Until its model is loaded, facts about the model are defaults.
    pub(crate) fn of(state: &AppState) -> Self {
        let config = state.config();
        let engine = state.slot().engine();
        let limits = engine.map(|engine| *engine.request_limits());
        let generation = engine.map(|engine| &engine.model().generation);
        Self {
            limits: limits.unwrap_or_default(),
            replicas: engine.map_or(1, |engine| engine.replicas()),
            max_requests: config.max_batch_requests,
            model_sampling: generation.map(sampling_of).unwrap_or_default(),
            model: engine.map(|engine| engine.model().served_model_name.clone()),
            has_key: config.api_key.is_some(),
            has_admin_key: config.admin_api_key.is_some(),
        }
    }
}

fn sampling_of(model: &GenerationConfig) -> SamplingParams {
    let plain = SamplingParams::default();
    SamplingParams {
        temperature: model.temperature.unwrap_or(plain.temperature),
        top_p: model.top_p.unwrap_or(plain.top_p),
        top_k: model.top_k.unwrap_or(plain.top_k),
        min_p: model.min_p.unwrap_or(plain.min_p),
        repetition_penalty: model.repetition_penalty.unwrap_or(plain.repetition_penalty),
        ..plain
    }
}

pub(crate) fn by_name(sampling: &SamplingParams) -> Map<String, Value> {
    // Converted via text, which has the shortest digits of an `f32`. A direct conversion would show those of an `f64`.
    let text = serde_json::to_string(sampling).expect("parameters have string keys only");
    serde_json::from_str(&text).expect("parameters are an object")
}
