//! The methods of the service.

use std::collections::HashMap;
use std::pin::Pin;

use actix_web::web::Data;
use futures_util::stream::{self, Stream};
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::proto::sglang_service_server::SglangService;
use super::proto::{
    AbortRequest, AbortResponse, FlushCacheRequest, FlushCacheResponse, GenerateRequest,
    GenerateResponse, GetLoadRequest, GetLoadResponse, GetModelInfoRequest, GetModelInfoResponse,
    GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest, HealthCheckResponse,
    ListModelsRequest, ListModelsResponse, ModelCard,
};
use super::{call, shown, status};
use crate::engine::Generation;
use crate::ids::RequestId;
use crate::server::budget::{BodyCharge, Charges};
use crate::server::error::ApiError;
use crate::server::native::{Meta, Shape};
use crate::server::open_requests::Listed;
use crate::server::state::AppState;
use crate::server::transcript::{News, Transcript};
use crate::server::{health, key, loads};

/// The service of one server.
pub(super) struct Runtime {
    state: Data<AppState>,
}

impl Runtime {
    pub(super) fn new(state: Data<AppState>) -> Self {
        Self { state }
    }
}

/// Responses as they come.
type Responses = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

#[tonic::async_trait]
impl SglangService for Runtime {
    type GenerateStream = Responses;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Responses>, Status> {
        let answer = Answer::begin(&self.state, request.into_inner()).map_err(status)?;
        let responses = stream::unfold(Some(answer), |answer| async move {
            let mut answer = answer?;
            let response = answer.next().await;
            let goes_on = response.as_ref().is_ok_and(|response| !response.finished);
            Some((response, goes_on.then_some(answer)))
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let serving = self.state.serving();
        let healthy = serving.is_ok_and(|loaded| loaded.engine.is_alive());
        Ok(Response::new(HealthCheckResponse { healthy }))
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        let model = self.state.loaded().map_err(status)?.engine.model();
        Ok(Response::new(GetModelInfoResponse {
            model_path: model.model_path.display().to_string(),
            json_info: health::model_facts(model).to_string(),
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let facts = health::server_facts(&self.state).await;
        let mut facts = facts.map_err(status)?;
        // Each response has the tokens since the last one, which the sidecar insists on.
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
        if let Some(rank) = request.into_inner().dp_rank
            && rank != 0
        {
            let text = format!("dp_rank is {rank}, must be 0: there is one rank");
            return Err(status(ApiError::field("dp_rank", text)));
        }
        let load = loads::load_facts(&self.state).await.map_err(status)?;
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
            self.judge_admin(&request)?;
            open_requests.cancel_all();
        } else if !request.get_ref().rid.is_empty() {
            open_requests.cancel(&request.get_ref().rid);
        }
        // A request that has ended, or was never there, is no error.
        Ok(Response::new(AbortResponse { success: true }))
    }

    async fn flush_cache(
        &self,
        request: Request<FlushCacheRequest>,
    ) -> Result<Response<FlushCacheResponse>, Status> {
        self.judge_admin(&request)?;
        let engine = &self.state.loaded().map_err(status)?.engine;
        let response = match engine.flush_cache().await {
            Ok(flushed) => FlushCacheResponse {
                success: true,
                message: json!(flushed).to_string(),
            },
            Err(error) => FlushCacheResponse {
                success: false,
                message: error.to_string(),
            },
        };
        Ok(Response::new(response))
    }
}

impl Runtime {
    fn judge_admin<T>(&self, request: &Request<T>) -> Result<(), Status> {
        key::judge_admin_bearer(shown(request), self.state.config()).map_err(status)
    }
}

/// One request under way. Dropped before its end, when its client leaves, it is cancelled.
struct Answer {
    generation: Generation,
    rid: RequestId,
    shape: Shape,
    /// What has come and was not sent.
    transcript: Transcript,
    streams: bool,
    /// The memory of the prompt, until the first event: by then the engine has it.
    prompt_charge: Option<BodyCharge>,
    _request_charge: BodyCharge,
    _listed: Listed,
}

impl Answer {
    fn begin(state: &AppState, request: GenerateRequest) -> Result<Self, ApiError> {
        let call = call::read(state, request)?;
        let streams = call.stream;
        let (
            mut requests,
            Charges {
                prompt,
                request: kept,
            },
        ) = match streams {
            true => call.into_streamed(),
            false => (call.requests, call.charges),
        };
        let request = requests.pop();
        let request = request.ok_or_else(|| ApiError::field("n", "n is 0, must be 1"))?;
        let (rid, shape) = (request.rid.clone(), Shape::new(None, None));
        let generation = state.serving()?.engine.generate(request)?;
        Ok(Self {
            _listed: state.open_requests().list(generation.canceller()),
            prompt_charge: Some(prompt),
            _request_charge: kept,
            generation,
            rid,
            shape,
            transcript: Transcript::default(),
            streams,
        })
    }

    /// The next response, which has finished if it is the last.
    async fn next(&mut self) -> Result<GenerateResponse, Status> {
        loop {
            let lost = || Status::unavailable("the request was lost");
            let event = self.generation.next().await.ok_or_else(lost)?;
            self.prompt_charge = None;
            let news = News::of(event).map_err(|error| status(error.into()))?;
            let is_shown = self.streams && !news.is_of_the_prompt();
            self.transcript.push(news);
            if is_shown || self.transcript.end.is_some() {
                return Ok(self.response());
            }
        }
    }

    fn response(&mut self) -> GenerateResponse {
        let transcript = std::mem::take(&mut self.transcript);
        let meta = Meta::new(&self.rid, &self.shape, &transcript);
        let id = |token: &u32| i32::try_from(*token).unwrap_or(i32::MAX);
        GenerateResponse {
            output_ids: transcript.tokens.iter().map(id).collect(),
            meta_info: as_json(&meta),
            finished: transcript.end.is_some(),
        }
    }
}

/// Every field as JSON.
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
