//! Implements SGLang's gRPC runtime service, to which Dynamo's sidecar sends prompts as token ids.

use std::collections::HashMap;

use actix_web::web::Data;
use serde_json::{Map, Value, json};
use tonic::{Request, Response, Status};

use super::answer::{Answer, Responses};
use super::call::{self, MessageLimits, SharedFields};
use super::proto::runtime::sglang_service_server::SglangService;
use super::proto::runtime::{
    AbortRequest, AbortResponse, FlushCacheRequest, FlushCacheResponse, GenerateRequest,
    GenerateResponse, GetLoadRequest, GetLoadResponse, GetModelInfoRequest, GetModelInfoResponse,
    GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest, HealthCheckResponse,
    ListModelsRequest, ListModelsResponse, ModelCard, SamplingParams,
};
use super::{FlushReport, flush, i32_of, rank_of, status, verify_admin};
use crate::error::ApiError;
use crate::native::{Meta, ReplyForm};
use crate::state::AppState;
use crate::transcript::Transcript;
use crate::{health, loads};
use souffleur_base::ids::RequestId;

pub(super) struct Runtime {
    state: Data<AppState>,
}

impl Runtime {
    pub(super) fn new(state: Data<AppState>) -> Self {
        Self { state }
    }
}

#[tonic::async_trait]
impl SglangService for Runtime {
    type GenerateStream = Responses<GenerateResponse>;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        let answer = Answer::begin(&self.state, |limits| body(request, limits)).map_err(status)?;
        let responses = answer.responses(|rid, update| vec![response(rid, &update)]);
        Ok(Response::new(responses))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let healthy = health::check_ready(&self.state).is_ok();
        Ok(Response::new(HealthCheckResponse { healthy }))
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        let engine = &self.state.loaded().map_err(status)?.engine;
        Ok(Response::new(GetModelInfoResponse {
            model_path: engine.model().model_path.display().to_string(),
            json_info: health::model_facts(engine).to_string(),
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let facts = health::server_facts(&self.state).await;
        let mut facts = facts.map_err(status)?;
        // The sidecar requires that each response has only the tokens since the last response, as is the case here.
        facts["incremental_streaming_output"] = json!(true);
        Ok(Response::new(GetServerInfoResponse {
            json_info: facts.to_string(),
        }))
    }

    async fn list_models(
        &self,
        _: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let model = self.state.loaded().map_err(status)?.engine.model();
        let card = ModelCard {
            id: model.served_model_name.clone(),
            root: model.served_model_name.clone(),
            parent: None,
            max_model_len: i32::try_from(model.context_length).ok(),
        };
        let models = vec![card];
        Ok(Response::new(ListModelsResponse { models }))
    }

    async fn get_load(
        &self,
        request: Request<GetLoadRequest>,
    ) -> Result<Response<GetLoadResponse>, Status> {
        let n_ranks = self.state.loaded().map_err(status)?.engine.replicas();
        let rank = rank_of(request.into_inner().dp_rank, n_ranks)?;
        let load = loads::load_facts(&self.state, rank).await;
        let load = load.map_err(status)?;
        Ok(Response::new(GetLoadResponse {
            json_info: load.to_string(),
        }))
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        let open_requests = self.state.open_requests();
        if request.get_ref().abort_all {
            verify_admin(&self.state, &request)?;
            open_requests.cancel_all();
        } else if !request.get_ref().rid.is_empty() {
            open_requests.cancel(&request.get_ref().rid);
        }
        // The id of a request that has ended or never existed is not an error.
        Ok(Response::new(AbortResponse { success: true }))
    }

    async fn flush_cache(
        &self,
        request: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        verify_admin(&self.state, &request)?;
        let FlushReport { success, message } = flush(&self.state).await?;
        Ok(Response::new(FlushCacheResponse { success, message }))
    }
}

fn response(rid: &RequestId, update: &Transcript) -> GenerateResponse {
    let form = ReplyForm::new(None, None);
    let meta = Meta::new(rid, &form, update);
    let ids = update.tokens.iter();
    GenerateResponse {
        output_ids: ids.map(|token| i32_of(*token as usize)).collect(),
        meta_info: as_json(&meta),
        finished: update.end.is_some(),
    }
}

fn as_json(meta: &Meta<'_>) -> HashMap<String, String> {
    match serde_json::to_value(meta) {
        Ok(Value::Object(fields)) => {
            let fields = fields.into_iter();
            fields
                .map(|(name, value)| (name, value.to_string()))
                .collect()
        }
        _ => HashMap::new(),
    }
}

fn body(
    request: GenerateRequest,
    limits: MessageLimits<'_>,
) -> Result<Map<String, Value>, ApiError> {
    let lora_path = request.lora_path.unwrap_or_default();
    call::refuse(&[
        ("return_logprob", request.return_logprob == Some(true)),
        ("lora_path", !lora_path.is_empty()),
        (
            "disaggregated_params",
            request.disaggregated_params.is_some(),
        ),
    ])?;
    limits.check_prompt(request.input_ids.len())?;
    if let Some(params) = &request.sampling_params {
        limits.check_lists(params.stop.len(), params.stop_token_ids.len(), 0)?;
    }
    let shared = SharedFields {
        input_ids: request.input_ids,
        stream: request.stream == Some(true),
        rid: request.rid.unwrap_or_default(),
        sampling: request.sampling_params.map(sampling).transpose()?,
    };
    Ok(shared.into_body())
}

fn sampling(params: SamplingParams) -> Result<Map<String, Value>, ApiError> {
    let mut fields = call::numbers([
        ("temperature", params.temperature),
        ("top_p", params.top_p),
        ("min_p", params.min_p),
        ("frequency_penalty", params.frequency_penalty),
        ("presence_penalty", params.presence_penalty),
        ("repetition_penalty", params.repetition_penalty),
    ])?;
    fields.extend(call::object([
        ("top_k", json!(params.top_k)),
        ("max_new_tokens", json!(params.max_new_tokens)),
        ("min_new_tokens", json!(params.min_new_tokens)),
        ("ignore_eos", json!(params.ignore_eos)),
        ("n", json!(params.n)),
        ("stop", call::unless_empty(params.stop)),
        ("stop_token_ids", call::unless_empty(params.stop_token_ids)),
        ("json_schema", json!(params.json_schema)),
        ("regex", json!(params.regex)),
    ]));
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_state::request_limits::RequestLimits;

    #[test]
    fn absent_parameters_are_null_and_zero_is_zero() {
        let params = SamplingParams {
            temperature: Some(0.0),
            max_new_tokens: Some(5),
            ..SamplingParams::default()
        };
        let fields = sampling(params).expect("they are finite");
        let given = fields.iter().filter(|(_, value)| !value.is_null());
        let given: Vec<_> = given.map(|(name, value)| (name.as_str(), value)).collect();
        let expected = [("temperature", &json!(0.0)), ("max_new_tokens", &json!(5))];
        assert_eq!(given, expected);
    }

    #[test]
    fn infinities_and_nan_are_refused_by_name() {
        for value in [f32::NAN, f32::INFINITY] {
            let params = SamplingParams {
                top_p: Some(value),
                ..SamplingParams::default()
            };
            let error = sampling(params).expect_err("it is not finite");
            assert!(error.message().starts_with("top_p is "), "{error:?}");
        }
    }

    #[test]
    fn unsupported_features_and_long_prompts_are_refused() {
        let limits = MessageLimits {
            context_length: 10,
            request: &RequestLimits::default(),
        };
        let request = GenerateRequest {
            return_logprob: Some(true),
            ..GenerateRequest::default()
        };
        let error = body(request, limits).expect_err("log probabilities are not supported");
        assert!(error.message().contains("return_logprob"), "{error:?}");
        assert!(body(GenerateRequest::default(), limits).is_ok());
        let long = GenerateRequest {
            input_ids: vec![1; 11],
            ..GenerateRequest::default()
        };
        let error = body(long, limits).expect_err("the prompt is too long");
        assert!(
            error.message().contains("maximum context length is 10"),
            "{error:?}"
        );
    }
}
