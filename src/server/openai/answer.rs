//! Receives a call of one of OpenAI's endpoints, and sends the answer, whole or streamed.

use std::sync::Arc;

use actix_web::HttpResponse;
use serde::Serialize;

use super::wire::{Head, Response};
use super::{apply_model_defaults, unix_now_s};
use crate::body::JsonBody;
use crate::call::CallLimits;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::lanes::{Lane, finish_all};
use crate::sse::{self, Render};
use crate::state::{AppState, Loaded};
use crate::transcript::Transcript;
use crate::whole;
use souffleur_base::ids::RequestId;

/// Writes an answer event by event, or whole.
pub(super) trait Write: Render + Send {
    fn whole(&mut self, transcripts: Vec<Transcript>) -> Vec<u8>;
}

pub(super) trait WriteChoices: Render + Send {
    type Choice: Serialize;

    fn whole_choice(&mut self, index: usize, transcript: Transcript) -> Self::Choice;

    fn whole_answer(&self, choices: Vec<Self::Choice>) -> Response<'_, Self::Choice>;
}

impl<W: WriteChoices> Write for W {
    fn whole(&mut self, transcripts: Vec<Transcript>) -> Vec<u8> {
        let choices = transcripts.into_iter().enumerate();
        let choices = choices.map(|(index, transcript)| self.whole_choice(index, transcript));
        let choices = choices.collect();
        serde_json::to_vec(&self.whole_answer(choices)).expect("responses have string keys only")
    }
}

/// A call that has been received and not parsed yet.
pub(crate) struct ReceivedCall<'a> {
    pub(crate) loaded: &'a Loaded,
    pub(crate) fields: Fields,
    pub(crate) limits: CallLimits<'a>,
}

impl<'a> ReceivedCall<'a> {
    /// Receives a call and fills in the model's defaults. Fails if no engine is loaded, or while the server drains.
    pub(crate) fn new(state: &'a AppState, body: JsonBody) -> Result<Self, ApiError> {
        let loaded = state.serving()?;
        let mut fields = body.0;
        apply_model_defaults(&mut fields, &loaded.engine.model().generation);
        let limits = CallLimits {
            max_requests: state.config().max_batch_requests,
            websocket: None,
            request: loaded.engine.request_limits(),
            embeds: None,
        };
        Ok(Self {
            loaded,
            fields,
            limits,
        })
    }
}

impl Head {
    pub(super) fn new(id: &RequestId, object: &'static str, loaded: &Loaded) -> Self {
        Self {
            id: id.to_string(),
            object,
            created: unix_now_s(),
            model: loaded.engine.model().served_model_name.clone(),
        }
    }
}

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
