//! The endpoints by which clients discover the model: `/api/version`, `/api/tags`, `/api/show`, `/api/ps`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::{Map, Value, json};

use super::names;
use super::wire::timestamp;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::llama_cpp;
use crate::state::{AppState, Loaded};
use souffleur_engine::{ModelCard, ModelInfo};

/// Clients compare the numbers before the hyphen with the version of Ollama that they need.
const VERSION: &str = "0.12.0-souffleur";
/// The family of a model that a host's executor computes.
const UNKNOWN: &str = "unknown";
/// The model is never unloaded: it expires this long after the server's start.
const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "version": VERSION }))
}

pub(crate) async fn tags(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let loaded = state.loaded()?;
    let info = loaded.engine.model();
    let size = info.card.as_ref().map_or(0, |card| card.file_bytes);
    let mut model = listed(info, size);
    model["modified_at"] = modified_at(&state, info).into();
    model["capabilities"] = json!(capabilities(loaded));
    Ok(HttpResponse::Ok().json(json!({ "models": [model] })))
}

pub(crate) async fn ps(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let loaded = state.loaded()?;
    let info = loaded.engine.model();
    let memory = info.memory.as_ref();
    let size = memory.map_or(0, |memory| memory.budget.weights_bytes + memory.kv_bytes);
    let is_on_gpu = memory.is_some() && info.kernel_path.is_none();
    let on_gpu = if is_on_gpu { size } else { 0 };
    let mut model = listed(info, size);
    model["size_vram"] = on_gpu.into();
    model["expires_at"] = timestamp(started(&state) + LIFETIME).into();
    model["context_length"] = context_length(info).into();
    Ok(HttpResponse::Ok().json(json!({ "models": [model] })))
}

pub(crate) async fn show(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let loaded = state.loaded()?;
    let info = loaded.engine.model();
    let served = &info.served_model_name;
    let mut fields = body.0;
    names::take(&mut fields, &["model", "name"], served)?;
    Ok(HttpResponse::Ok().json(json!({
        "license": "",
        "modelfile": format!("FROM {}\n", names::tagged(served)),
        "parameters": parameters(loaded),
        "template": template(loaded),
        "details": details(info),
        "model_info": model_info(info),
        "capabilities": capabilities(loaded),
        "modified_at": modified_at(&state, info),
    })))
}

/// The chat template. Continue sends a suffix only to models whose template contains `.Suffix`.
fn template(loaded: &Loaded) -> String {
    let text = loaded.engine.text();
    let template = text.and_then(|text| text.chat_template());
    let mut template = template.unwrap_or_default().to_owned();
    if llama_cpp::no_infill(loaded).is_none() {
        template.push_str("{# .Suffix #}");
    }
    template
}

/// The fields that both lists of models have.
fn listed(info: &ModelInfo, size: u64) -> Value {
    let name = names::tagged(&info.served_model_name);
    json!({
        "name": name,
        "model": name,
        "size": size,
        "digest": digest(info),
        "details": details(info),
    })
}

fn details(info: &ModelInfo) -> Value {
    let card = info.card.as_deref();
    let family = family(info);
    json!({
        "parent_model": "",
        "format": card.map_or(UNKNOWN, |card| card.format),
        "family": family,
        "families": [family],
        "parameter_size": card.map_or_else(String::new, |card| shortened(card.parameters)),
        "quantization_level": card.map_or(UNKNOWN, |card| card.stored_as.as_str()),
    })
}

fn family(info: &ModelInfo) -> &'static str {
    info.card.as_ref().map_or(UNKNOWN, |card| card.family)
}

/// 64 hexadecimal digits, as clients cut a part out of them.
fn digest(info: &ModelInfo) -> String {
    let digest = info.card.as_ref().map_or([0; 32], |card| card.digest);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn modified_at(state: &AppState, info: &ModelInfo) -> String {
    let modified = info.card.as_ref().and_then(|card| card.modified);
    timestamp(modified.unwrap_or_else(|| started(state)))
}

fn started(state: &AppState) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(state.started_unix_s())
}

fn context_length(info: &ModelInfo) -> usize {
    info.context_length.min(info.max_total_tokens)
}

fn capabilities(loaded: &Loaded) -> Vec<&'static str> {
    let info = loaded.engine.model();
    let optional = [
        ("tools", info.formats.tool.is_some()),
        ("insert", llama_cpp::no_infill(loaded).is_none()),
        ("vision", loaded.engine.images().is_some()),
        ("thinking", info.formats.reasoning.is_some()),
        ("embedding", info.hidden_size.is_some()),
    ];
    let optional = optional.into_iter().filter(|(_, has)| *has);
    let names = optional.map(|(name, _)| name);
    ["completion"].into_iter().chain(names).collect()
}

fn model_info(info: &ModelInfo) -> Map<String, Value> {
    let family = family(info);
    let mut facts = Map::new();
    let mut add = |name: String, value: Value| facts.insert(name, value);
    add("general.architecture".to_owned(), family.into());
    // Clients show this name to people.
    let name = info.served_model_name.as_str();
    add("general.basename".to_owned(), name.into());
    let mut add_own = |name: &str, value: Option<usize>| {
        if let Some(value) = value {
            add(format!("{family}.{name}"), value.into());
        }
    };
    add_own("context_length", Some(context_length(info)));
    add_own("embedding_length", info.hidden_size);
    add_own("vocab_size", Some(info.vocab_size));
    let of_card = |value: fn(&ModelCard) -> usize| info.card.as_deref().map(value);
    add_own("block_count", of_card(|card| card.layers));
    add_own("attention.head_count", of_card(|card| card.attention_heads));
    let key_value_heads = of_card(|card| card.key_value_heads);
    add_own("attention.head_count_kv", key_value_heads);
    let width = of_card(|card| card.feed_forward_size);
    add_own("feed_forward_length", width);
    if let Some(card) = &info.card {
        let count = card.parameters.into();
        facts.insert("general.parameter_count".to_owned(), count);
    }
    facts
}

/// The model's default sampling parameters, one a line.
fn parameters(loaded: &Loaded) -> String {
    let defaults = &loaded.engine.model().generation;
    let named = [
        ("temperature", defaults.temperature.map(|it| it.to_string())),
        ("top_k", defaults.top_k.map(|it| it.to_string())),
        ("top_p", defaults.top_p.map(|it| it.to_string())),
        ("min_p", defaults.min_p.map(|it| it.to_string())),
        (
            "repeat_penalty",
            defaults.repetition_penalty.map(|it| it.to_string()),
        ),
    ];
    let lines = named.into_iter();
    let lines = lines.filter_map(|(name, value)| Some(format!("{name:<30} {}", value?)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A number of parameters as Ollama writes it: `7.6B`, `596.05M`, `3.00K`.
fn shortened(count: u64) -> String {
    let number = count as f64;
    match count {
        1_000_000_000.. => format!("{:.1}B", number / 1e9),
        1_000_000.. => format!("{:.2}M", number / 1e6),
        1_000.. => format!("{:.2}K", number / 1e3),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_have_a_unit() {
        for (count, expected) in [
            (7_615_616_512, "7.6B"),
            (596_049_920, "596.05M"),
            (137_216, "137.22K"),
            (42, "42"),
        ] {
            assert_eq!(shortened(count), expected);
        }
    }

    #[test]
    fn the_version_begins_with_three_numbers() {
        let numbers = VERSION.split('-').next().expect("there is a part");
        let numbers: Vec<u32> = numbers
            .split('.')
            .map(|number| number.parse().expect("a number"))
            .collect();
        assert!(numbers.len() == 3 && numbers >= vec![0, 6, 4], "{VERSION}");
    }
}
