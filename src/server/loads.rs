//! `GET /v1/loads`, `/loads` and `/get_load`: the engine's load, by which gateways choose an engine.

use std::time::SystemTime;

use actix_web::HttpResponse;
use actix_web::web::{Data, Query};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;

use super::error::ApiError;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{Shape, count, enum_of, list, number, object, text, whole};
use super::state::AppState;
use souffleur_base::field::{Field, Shallow};
use souffleur_engine::{EngineHandle, ModelInfo};
use souffleur_metrics::EngineLoad;

const BYTES_PER_GB: f64 = (1_u64 << 30) as f64;

#[derive(Deserialize)]
pub(super) struct LoadQuery {
    include: Option<String>,
    dp_rank: Option<String>,
    format: Option<String>,
}

impl LoadQuery {
    /// Returns whether a section is requested: by its name, by `all`, or if no section is named.
    fn includes(&self, section: &str) -> bool {
        let named = self.include.as_deref().unwrap_or_default();
        let mut names = named.split(',').map(str::trim);
        named.is_empty() || names.any(|name| name == section || name == "all")
    }

    /// The requested rank; `None` for all.
    fn rank(&self, n_ranks: usize) -> Result<Option<usize>, ApiError> {
        let json = "json: /metrics has these numbers for Prometheus";
        if let Some(format) = self.format.as_deref().filter(|format| *format != "json") {
            return Err(refused("format", format, json));
        }
        let Some(text) = &self.dp_rank else {
            return Ok(None);
        };
        let mut ranks = 0..n_ranks;
        match ranks.find(|rank| rank.to_string() == *text) {
            Some(rank) => Ok(Some(rank)),
            None => Err(refused("dp_rank", text, &bound_of_ranks(n_ranks))),
        }
    }
}

/// The values that `dp_rank` may have, for the error of another one.
pub(super) fn bound_of_ranks(n_ranks: usize) -> String {
    match n_ranks {
        1 => "0: there is one rank".to_owned(),
        _ => format!("less than {n_ranks}"),
    }
}

fn refused(name: &str, value: &str, wanted: &str) -> ApiError {
    let value = Shallow::Text(value.to_owned());
    Field::new(name, &value).must_be(wanted).into()
}

#[derive(Serialize)]
struct RankLoad {
    dp_rank: usize,
    num_running_reqs: usize,
    num_waiting_reqs: usize,
    num_total_reqs: usize,
    num_waiting_uncached_tokens: usize,
    num_used_tokens: usize,
    num_total_tokens: usize,
    max_total_num_tokens: usize,
    max_running_requests: usize,
    token_usage: f64,
    gen_throughput: f64,
    cache_hit_rate: f64,
    utilization: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    /// Only in engines that speculate.
    #[serde(skip_serializing_if = "Option::is_none")]
    speculative: Option<Speculative>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disaggregation: Option<Disaggregation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queues: Option<Queues>,
}

#[derive(Serialize)]
struct Memory {
    weight_gb: f64,
    kv_cache_gb: f64,
    token_capacity: usize,
}

#[derive(Serialize)]
struct Speculative {
    accept_length: f64,
    accept_rate: f64,
}

#[derive(Serialize)]
struct Disaggregation {
    mode: &'static str,
}

#[derive(Serialize)]
struct Queues {
    waiting: usize,
    paused: usize,
    retracted: usize,
}

impl RankLoad {
    fn new((dp_rank, load): (usize, &EngineLoad), model: &ModelInfo, query: &LoadQuery) -> Self {
        let stats = &load.stats;
        Self {
            dp_rank,
            num_running_reqs: stats.running_requests,
            num_waiting_reqs: stats.waiting_requests,
            num_total_reqs: stats.running_requests + stats.waiting_requests,
            num_waiting_uncached_tokens: load.pending.total(),
            num_used_tokens: stats.used_tokens(),
            num_total_tokens: total_tokens(load),
            max_total_num_tokens: model.max_total_tokens,
            max_running_requests: model.max_running_requests,
            token_usage: stats.token_usage(),
            gen_throughput: load.gen_throughput,
            cache_hit_rate: load.cache_hit_rate,
            utilization: stats.utilization(),
            memory: query
                .includes("memory")
                .then(|| Memory::of(model))
                .flatten(),
            speculative: (query.includes("spec") && model.speculation.is_some()).then_some(
                Speculative {
                    accept_length: load.drafts.accept_length,
                    accept_rate: load.drafts.accept_rate,
                },
            ),
            disaggregation: query
                .includes("disagg")
                .then_some(Disaggregation { mode: "null" }),
            queues: query.includes("queues").then_some(Queues {
                waiting: stats.waiting_requests,
                // Requests are retracted, never paused.
                paused: 0,
                retracted: stats.retracted_requests,
            }),
        }
    }
}

impl Memory {
    /// `None` if the embedding program supplies the executor, whose memory is then unknown.
    fn of(model: &ModelInfo) -> Option<Self> {
        let gb = |bytes: u64| bytes as f64 / BYTES_PER_GB;
        model.memory.as_ref().map(|memory| Self {
            weight_gb: gb(memory.budget.weights_bytes),
            kv_cache_gb: gb(memory.kv_bytes),
            token_capacity: model.max_total_tokens,
        })
    }
}

/// Tokens in use plus tokens of waiting requests: the single number by which gateways compare engines.
fn total_tokens(load: &EngineLoad) -> usize {
    load.stats.used_tokens() + load.pending.waiting
}

/// Answers `GET /v1/loads`, which the gateway smg requests, and `GET /loads`, both in SGLang's form.
pub(super) async fn loads(
    state: Data<AppState>,
    query: Query<LoadQuery>,
) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    let rank = query.rank(engine.replicas())?;
    let loads = loads_by_rank(engine, rank).await?.into_iter();
    let loads = loads.map(|(rank, load)| RankLoad::new((rank, &load), engine.model(), &query));
    Ok(HttpResponse::Ok().json(json!({
        "timestamp": now(),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": engine.replicas(),
        "loads": loads.collect::<Vec<RankLoad>>(),
    })))
}

/// The load of each replica whose actors run, or of the named one only.
pub(super) async fn loads_by_rank(
    engine: &EngineHandle,
    named: Option<usize>,
) -> Result<Vec<(usize, EngineLoad)>, ApiError> {
    let loads = engine.loads().await?.into_iter().enumerate();
    Ok(loads
        .filter(|(rank, _)| named.is_none_or(|named| named == *rank))
        .filter_map(|(rank, load)| Some((rank, load?)))
        .collect())
}

/// The time of a load, in RFC 3339's format.
pub(super) fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// Answers `GET /get_load`, the older form. sglang-router adds up the `num_tokens` of the ranks.
pub(super) async fn get_load(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(load_facts(&state, None).await?))
}

pub(super) async fn load_facts(state: &AppState, rank: Option<usize>) -> Result<Value, ApiError> {
    let loads = loads_by_rank(&state.loaded()?.engine, rank).await?;
    let loads = loads.into_iter();
    let facts = loads.map(|(rank, load)| {
        let stats = &load.stats;
        json!({
            "dp_rank": rank,
            "num_reqs": stats.running_requests + stats.waiting_requests,
            "num_waiting_reqs": stats.waiting_requests,
            "num_tokens": total_tokens(&load),
            "num_pending_tokens": load.pending.total(),
        })
    });
    Ok(facts.collect())
}

fn rank_load() -> Shape {
    let memory = object()
        .has("weight_gb", number())
        .has("kv_cache_gb", number())
        .has("token_capacity", count());
    let queues = object().has("waiting", count()).has("paused", count()).has(
        "retracted",
        count().about("requests that wait because they were retracted"),
    );
    let held = "tokens of the KV pool that requests hold";
    let part = "the part of the prompts of the last admission that came from the cache";
    object()
        .has("dp_rank", count())
        .has("num_running_reqs", count())
        .has("num_waiting_reqs", count())
        .has("num_total_reqs", count())
        .has(
            "num_waiting_uncached_tokens",
            count().about(
                "tokens not computed yet; the cached part of a prompt is known at its admission",
            ),
        )
        .has("num_used_tokens", count().about(held))
        .has(
            "num_total_tokens",
            count().about("tokens in use, and the tokens of waiting requests"),
        )
        .has("max_total_num_tokens", count())
        .has("max_running_requests", count())
        .has("token_usage", number().at_least(0).at_most(1))
        .has(
            "gen_throughput",
            number().about("tokens decoded per second"),
        )
        .has(
            "cache_hit_rate",
            number().at_least(0).at_most(1).about(part),
        )
        .has("utilization", number().at_least(0))
        .may_have("memory", memory.shape())
        .may_have(
            "speculative",
            object()
                .has("accept_length", number())
                .has("accept_rate", number().at_least(0).at_most(1))
                .shape()
                .about("the yield of the last drafts, if the server speculates"),
        )
        .may_have(
            "disaggregation",
            object().has("mode", enum_of(["null"])).shape(),
        )
        .may_have("queues", queues.shape())
        .shape()
}

pub(super) fn operation(facts: &Facts) -> Operation {
    let last_rank = facts.replicas.saturating_sub(1);
    let about_rank = match last_rank {
        0 => "a rank, which must be 0",
        _ => "a replica; all by default",
    };
    let rank = whole().at_least(0).at_most(last_rank);
    let loads = object()
        .has("timestamp", text())
        .has("version", text())
        .has("dp_rank_count", count())
        .has("loads", list(rank_load()));
    describe(Group::Server, "The load, for gateways")
        .query(
            "include",
            text(),
            "sections, with commas between them: `core` is always there; `memory`, `spec`, `disagg`, `queues`; `all` is the \
             default. Other names are ignored",
        )
        .query("dp_rank", rank, about_rank)
        .query("format", enum_of(["json"]), "`/metrics` is for Prometheus")
        .answers(loads.shape(), "the load of each rank")
        .fails(400, "there is no such rank or format")
        .needs_engine("there is no engine")
        .done()
}

pub(super) fn get_load_operation(_: &Facts) -> Operation {
    let load = object()
        .has("dp_rank", count())
        .has("num_reqs", count())
        .has("num_waiting_reqs", count())
        .has(
            "num_tokens",
            count().about("tokens in use, and the tokens of waiting requests"),
        )
        .has("num_pending_tokens", count().about("uncomputed tokens"));
    describe(Group::Server, "The load, in the form of older gateways")
        .answers(list(load.shape()), "the load of each rank")
        .needs_engine("there is no engine")
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(include: Option<&str>) -> LoadQuery {
        LoadQuery {
            include: include.map(str::to_owned),
            dp_rank: None,
            format: None,
        }
    }

    #[test]
    fn a_section_is_included_by_its_name_or_by_all() {
        for all in [None, Some(""), Some("all"), Some("core, all")] {
            assert!(query(all).includes("queues"), "{all:?}");
        }
        let some = query(Some("core, disagg,of_another_version"));
        assert!(some.includes("disagg") && !some.includes("queues"));
    }

    #[test]
    fn another_rank_or_format_is_refused_by_name() {
        let refused = |dp_rank: Option<&str>, format: Option<&str>| {
            let query = LoadQuery {
                dp_rank: dp_rank.map(str::to_owned),
                format: format.map(str::to_owned),
                ..query(None)
            };
            let error = query.rank(1).err();
            error.map(|error| error.message().to_owned())
        };
        assert_eq!(refused(Some("0"), Some("json")), None);
        let text = refused(Some("1"), None).expect("there is one rank");
        assert!(text.starts_with("dp_rank is \"1\", must be 0"), "{text}");
        let text = refused(None, Some("prometheus")).expect("only JSON is supported");
        assert!(text.contains("/metrics"), "{text}");
        let second = LoadQuery {
            dp_rank: Some("1".to_owned()),
            ..query(None)
        };
        assert_eq!(second.rank(2).ok(), Some(Some(1)));
    }
}
