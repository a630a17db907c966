//! Implements SGLang's gRPC scheduler service, to which the gateway smg sends prompts as token ids.

use actix_web::web::Data;
use serde_json::{Map, Value, json};
use tonic::{Request, Response, Status};

use super::answer::{Answer, Responses};
use super::bundle::Bundles;
use super::call::{self, MessageLimits, SharedFields, finite};
use super::proto::scheduler::generate_complete::MatchedStop;
use super::proto::scheduler::generate_response::Response as Part;
use super::proto::scheduler::sampling_params::Constraint;
use super::proto::scheduler::sglang_scheduler_server::SglangScheduler;
use super::proto::scheduler::{
    AbortRequest, AbortResponse, FlushCacheRequest, FlushCacheResponse, GenerateComplete,
    GenerateRequest, GenerateResponse, GenerateStreamChunk, GetLoadsRequest, GetLoadsResponse,
    GetModelInfoRequest, GetModelInfoResponse, GetServerInfoRequest, GetServerInfoResponse,
    GetTokenizerChunk, GetTokenizerRequest, HealthCheckRequest, HealthCheckResponse, KvEventBatch,
    QueueMetrics, SamplingParams, SchedulerLoad, SubscribeKvEventsRequest,
};
use super::{FlushReport, flush, i32_of, kv_events, rank_of, status, verify_admin};
use crate::error::ApiError;
use crate::health;
use crate::loads;
use crate::state::AppState;
use crate::transcript::Transcript;
use souffleur_base::ids::RequestId;
use souffleur_engine::ModelInfo;
use souffleur_metrics::EngineLoad;
use souffleur_request::FinishReason;

pub(super) struct Scheduler {
    state: Data<AppState>,
    bundles: Bundles,
}

impl Scheduler {
    pub(super) fn new(state: Data<AppState>) -> Self {
        Self {
            state,
            bundles: Bundles::default(),
        }
    }
}

#[tonic::async_trait]
impl SglangScheduler for Scheduler {
    type GenerateStream = Responses<GenerateResponse>;
    type GetTokenizerStream = Responses<GetTokenizerChunk>;
    type SubscribeKvEventsStream = Responses<KvEventBatch>;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        let mut writer = ResponseWriter {
            is_streaming: request.stream,
            tokens: Vec::new(),
        };
        let answer = Answer::begin(&self.state, |limits| body(request, limits)).map_err(status)?;
        let responses = answer.responses(move |rid, update| writer.responses(rid, update));
        Ok(Response::new(responses))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let response = match health::check_ready(&self.state) {
            Ok(()) => HealthCheckResponse {
                healthy: true,
                message: String::new(),
            },
            Err(error) => HealthCheckResponse {
                healthy: false,
                message: error.message().to_owned(),
            },
        };
        Ok(Response::new(response))
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        let name = request.into_inner().request_id;
        if name.is_empty() {
            let text = "request_id is empty: send the id of a request";
            return Err(status(ApiError::field("request_id", text)));
        }
        let aborted = self.state.open_requests().cancel(&name);
        Ok(Response::new(AbortResponse {
            success: aborted > 0,
            message: format!("{aborted} aborted"),
        }))
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        let model = self.state.loaded().map_err(status)?.engine.model();
        let path = model.model_path.display().to_string();
        let ends = model.eos_token_ids.iter();
        Ok(Response::new(GetModelInfoResponse {
            model_path: path.clone(),
            tokenizer_path: path,
            is_generation: true,
            weight_version: "default".to_owned(),
            served_model_name: model.served_model_name.clone(),
            max_context_length: i32_of(model.context_length),
            vocab_size: i32_of(model.vocab_size),
            eos_token_ids: ends.map(|token| i32_of(*token as usize)).collect(),
            // The context must hold at least one generated token.
            max_req_input_len: i32_of(model.context_length.saturating_sub(1)),
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let engine = &self.state.loaded().map_err(status)?.engine;
        let stats = engine.stats().await;
        let stats = stats.map_err(|error| status(error.into()))?;
        Ok(Response::new(GetServerInfoResponse {
            active_requests: i32_of(engine.requests_inside()),
            is_paused: stats.is_paused,
            sglang_version: env!("CARGO_PKG_VERSION").to_owned(),
            server_type: "grpc".to_owned(),
            max_total_num_tokens: i32_of(engine.model().max_total_tokens),
        }))
    }

    async fn get_loads(
        &self,
        request: Request<GetLoadsRequest>,
    ) -> Result<Response<GetLoadsResponse>, Status> {
        let GetLoadsRequest { dp_rank, include } = request.into_inner();
        let engine = &self.state.loaded().map_err(status)?.engine;
        let rank = rank_of(dp_rank, engine.replicas())?;
        let loads = loads::loads_by_rank(engine, rank).await;
        let loads = loads.map_err(status)?.into_iter();
        let has_queues = include.is_empty();
        let has_queues = has_queues || include.iter().any(|name| name == "queues" || name == "all");
        let loads = loads.map(|(rank, load)| SchedulerLoad {
            dp_rank: i32_of(rank),
            queues: has_queues.then(|| queues(&load)),
            ..scheduler_load(&load, engine.model())
        });
        Ok(Response::new(GetLoadsResponse {
            timestamp: loads::now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dp_rank_count: i32_of(engine.replicas()),
            loads: loads.collect(),
        }))
    }

    async fn flush_cache(
        &self,
        request: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        verify_admin(&self.state, &request)?;
        let FlushReport { success, message } = flush(&self.state).await?;
        Ok(Response::new(FlushCacheResponse { success, message }))
    }

    async fn get_tokenizer(
        &self,
        _: Request<GetTokenizerRequest>,
    ) -> Result<Response<Self::GetTokenizerStream>, Status> {
        let model = self.state.loaded().map_err(status)?.engine.model();
        let folder = model.model_path.clone();
        self.bundles.stream(folder).await.map(Response::new)
    }

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        let after = request.into_inner().start_sequence_number;
        kv_events::subscribe(&self.state, after).map(Response::new)
    }
}

/// Converts a request's answer to responses: chunks if the client streams, and at the end the whole answer.
struct ResponseWriter {
    is_streaming: bool,
    tokens: Vec<u32>,
}

impl ResponseWriter {
    fn responses(&mut self, rid: &RequestId, update: Transcript) -> Vec<GenerateResponse> {
        self.tokens.extend(&update.tokens);
        let complete = self.complete(&update).map(Part::Complete);
        let is_chunk = self.is_streaming && !update.tokens.is_empty();
        let chunk = is_chunk.then(|| Part::Chunk(chunk(update)));
        let parts = chunk.into_iter().chain(complete);
        let response = |part| GenerateResponse {
            request_id: rid.to_string(),
            response: Some(part),
        };
        parts.map(response).collect()
    }

    fn complete(&mut self, update: &Transcript) -> Option<GenerateComplete> {
        let end = update.end.as_ref()?;
        let matched_stop = match &end.reason {
            FinishReason::StopToken(token) => Some(MatchedStop::MatchedTokenId(*token)),
            FinishReason::StopString(text) => Some(MatchedStop::MatchedStopStr(text.clone())),
            _ => None,
        };
        Some(GenerateComplete {
            output_ids: std::mem::take(&mut self.tokens),
            finish_reason: end.reason.as_str().to_owned(),
            prompt_tokens: update.usage.prompt_tokens,
            completion_tokens: update.usage.completion_tokens,
            cached_tokens: update.usage.cached_tokens,
            matched_stop,
        })
    }
}

fn scheduler_load(load: &EngineLoad, model: &ModelInfo) -> SchedulerLoad {
    let stats = &load.stats;
    SchedulerLoad {
        num_running_reqs: i32_of(stats.running_requests),
        num_waiting_reqs: i32_of(stats.waiting_requests),
        num_total_reqs: i32_of(stats.running_requests + stats.waiting_requests),
        num_used_tokens: i32_of(stats.used_tokens()),
        max_total_num_tokens: i32_of(model.max_total_tokens),
        token_usage: stats.token_usage(),
        gen_throughput: load.gen_throughput,
        cache_hit_rate: load.cache_hit_rate,
        utilization: stats.utilization(),
        max_running_requests: i32_of(model.max_running_requests),
        num_waiting_uncached_tokens: i32_of(load.pending.total()),
        ..SchedulerLoad::default()
    }
}

fn queues(load: &EngineLoad) -> QueueMetrics {
    QueueMetrics {
        waiting: i32_of(load.stats.waiting_requests),
        retracted: i32_of(load.stats.retracted_requests),
    }
}

fn chunk(update: Transcript) -> GenerateStreamChunk {
    GenerateStreamChunk {
        token_ids: update.tokens,
        prompt_tokens: update.usage.prompt_tokens,
        completion_tokens: update.usage.completion_tokens,
        cached_tokens: update.usage.cached_tokens,
    }
}

fn body(
    request: GenerateRequest,
    limits: MessageLimits<'_>,
) -> Result<Map<String, Value>, ApiError> {
    call::refuse(&[
        ("mm_inputs", request.mm_inputs.is_some()),
        ("return_logprob", request.return_logprob),
        ("return_hidden_states", request.return_hidden_states),
        (
            "disaggregated_params",
            request.disaggregated_params.is_some(),
        ),
        (
            "custom_logit_processor",
            !request.custom_logit_processor.is_empty(),
        ),
        ("lora_id", !request.lora_id.is_empty()),
    ])?;
    let missing = || {
        let text = "tokenized is missing: send the token ids of the prompt";
        ApiError::field("tokenized", text)
    };
    let ids = request.tokenized.ok_or_else(missing)?.input_ids;
    limits.check_prompt(ids.len())?;
    if let Some(params) = &request.sampling_params {
        let (ids, bias) = (&params.stop_token_ids, &params.logit_bias);
        limits.check_lists(params.stop.len(), ids.len(), bias.len())?;
    }
    let shared = SharedFields {
        input_ids: ids,
        stream: request.stream,
        rid: request.request_id,
        sampling: request.sampling_params.map(sampling).transpose()?,
    };
    Ok(shared.into_body())
}

fn sampling(params: SamplingParams) -> Result<Map<String, Value>, ApiError> {
    // Zero means the engine's default.
    let unless_zero = |value: f32| Some(value).filter(|value| *value != 0.0);
    let mut bias = Map::new();
    for (token, value) in params.logit_bias {
        bias.insert(token, Value::Number(finite("logit_bias", value)?));
    }
    let mut fields = call::numbers([
        ("temperature", Some(params.temperature)),
        ("top_p", unless_zero(params.top_p)),
        ("min_p", Some(params.min_p)),
        ("frequency_penalty", Some(params.frequency_penalty)),
        ("presence_penalty", Some(params.presence_penalty)),
        ("repetition_penalty", unless_zero(params.repetition_penalty)),
    ])?;
    fields.extend(call::object([
        ("top_k", json!((params.top_k != 0).then_some(params.top_k))),
        ("max_new_tokens", json!(params.max_new_tokens)),
        ("min_new_tokens", json!(params.min_new_tokens)),
        ("ignore_eos", json!(params.ignore_eos)),
        ("n", json!(params.n.max(1))),
        ("stop", call::unless_empty(params.stop)),
        ("stop_token_ids", call::unless_empty(params.stop_token_ids)),
    ]));
    if !bias.is_empty() {
        fields.insert("logit_bias".to_owned(), Value::Object(bias));
    }
    if let Some(constraint) = params.constraint {
        let (name, text) = match constraint {
            Constraint::Regex(text) => ("regex", text),
            Constraint::JsonSchema(text) => ("json_schema", text),
            Constraint::EbnfGrammar(text) => ("ebnf", text),
            Constraint::StructuralTag(text) => ("structural_tag", text),
        };
        fields.insert(name.to_owned(), Value::String(text));
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_state::request_limits::RequestLimits;

    #[test]
    fn a_zero_that_means_the_default_is_null() {
        let fields = sampling(SamplingParams::default()).expect("it is finite");
        for name in [
            "top_p",
            "top_k",
            "repetition_penalty",
            "max_new_tokens",
            "stop",
        ] {
            assert!(fields[name].is_null(), "{name}");
        }
        for name in ["temperature", "min_p", "frequency_penalty"] {
            assert_eq!(fields[name], 0.0, "{name}");
        }
        assert_eq!(fields["n"], 1);
        assert!(!fields.contains_key("logit_bias"));
    }

    #[test]
    fn a_constraint_gets_its_field_name_in_generate() {
        let params = SamplingParams {
            constraint: Some(Constraint::EbnfGrammar("root ::= \"a\"".to_owned())),
            ..SamplingParams::default()
        };
        let fields = sampling(params).expect("it is finite");
        assert_eq!(fields["ebnf"], "root ::= \"a\"");
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        let request = GenerateRequest {
            lora_id: "a".to_owned(),
            ..GenerateRequest::default()
        };
        let limits = MessageLimits {
            context_length: 10,
            request: &RequestLimits::default(),
        };
        let error = body(request, limits).expect_err("there are no adapters");
        assert!(error.message().contains("lora_id"), "{error:?}");
    }
}
