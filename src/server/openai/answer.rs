//! Starts a call of completions or chat completions, and writes its answer, whole or streamed.

use std::sync::Arc;

use actix_web::HttpResponse;
use serde::Serialize;

use super::wire::{Head, Response};
use super::{apply_model_defaults, unix_now_s};
use crate::ids::RequestId;
use crate::server::body::JsonBody;
use crate::server::call::CallLimits;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::lanes::{Lane, finish_all};
use crate::server::sse::{self, Render};
use crate::server::state::{AppState, Loaded};
use crate::server::transcript::Transcript;
use crate::server::whole;

/// Writes an answer event by event, or whole.
pub(super) trait Write: Render + Send {
    /// The JSON of the whole answer.
    fn whole(&mut self, transcripts: Vec<Transcript>) -> Vec<u8>;
}

/// Writes an answer that consists of choices.
pub(super) trait Choices: Render + Send {
    type Choice: Serialize;

    /// The whole choice of one lane.
    fn whole_choice(&mut self, index: usize, transcript: Transcript) -> Self::Choice;

    /// The whole answer, after its choices.
    fn whole_answer(&self, choices: Vec<Self::Choice>) -> Response<'_, Self::Choice>;
}

impl<W: Choices> Write for W {
    fn whole(&mut self, transcripts: Vec<Transcript>) -> Vec<u8> {
        let choices = transcripts.into_iter().enumerate();
        let choices = choices.map(|(index, transcript)| self.whole_choice(index, transcript));
        let choices = choices.collect();
        serde_json::to_vec(&self.whole_answer(choices)).expect("responses have string keys only")
    }
}

/// A call that has been received and not read.
pub(in crate::server) struct Received<'a> {
    pub(in crate::server) loaded: &'a Loaded,
    pub(in crate::server) fields: Fields,
    pub(in crate::server) limits: CallLimits<'a>,
}

impl<'a> Received<'a> {
    /// The call with the model's defaults among its fields.
    ///
    /// # Errors
    /// The engine is loading, or has stopped.
    pub(in crate::server) fn new(state: &'a AppState, body: JsonBody) -> Result<Self, ApiError> {
        let loaded = state.serving()?;
        let mut fields = body.0;
        apply_model_defaults(&mut fields, &loaded.engine.model().generation);
        let limits = CallLimits {
            max_requests: state.config().max_batch_requests,
            websocket: None,
            request: loaded.engine.request_limits(),
            vectors: None,
        };
        Ok(Self {
            loaded,
            fields,
            limits,
        })
    }
}

impl Head {
    /// The head of an answer that begins now.
    pub(super) fn new(id: &RequestId, object: &'static str, loaded: &Loaded) -> Self {
        Self {
            id: id.to_string(),
            object,
            created: unix_now_s(),
            model: loaded.engine.model().served_model_name.clone(),
        }
    }
}

/// Answers with the lanes' events, as `writer` writes them.
pub(super) async fn respond(
    state: &Arc<AppState>,
    lanes: Vec<Lane>,
    stream: bool,
    mut writer: impl Write,
) -> Result<HttpResponse, ApiError> {
    if stream {
        return sse::respond(lanes, writer, state.config().sse_keep_alive_s).await;
    }
    let charge = Lane::answer_charge(&lanes);
    let transcripts = finish_all(lanes).await?;
    let write = move |transcripts| writer.whole(transcripts);
    Ok(whole::respond(transcripts, charge, write).await)
}
