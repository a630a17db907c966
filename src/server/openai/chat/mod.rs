//! `POST /v1/chat/completions`.

mod call;
mod choice;
mod history;
mod messages;
mod pieces;
mod places;
mod reasoning;
mod tool_choice;
mod tools;
mod writer;

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::wire::Head;
use super::{apply_model_defaults, unix_now_s};
use crate::server::body::JsonBody;
use crate::server::call::CallLimits;
use crate::server::error::ApiError;
use crate::server::lanes::{Lane, finish_all};
use crate::server::sse;
use crate::server::state::AppState;
use crate::server::transcript::Transcript;
use crate::server::whole;
use call::Call;
use choice::Choice;
use writer::Writer;

/// Answers `POST /v1/chat/completions`.
pub(in crate::server) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let loaded = state.serving()?;
    let mut fields = body.0;
    apply_model_defaults(&mut fields, &loaded.engine.model().generation);
    let limits = CallLimits {
        max_requests: state.config().max_batch_requests,
        websocket: None,
        request: loaded.engine.request_limits(),
    };
    let (call, charges) = Call::parse(fields, limits)?;
    let stream = call.common.stream;
    let head = Head {
        id: call.common.id.to_string(),
        object: if stream {
            "chat.completion.chunk"
        } else {
            "chat.completion"
        },
        created: unix_now_s(),
        model: loaded.engine.model().served_model_name.clone(),
    };
    let field = state.config().reasoning_field;
    let mut writer = Writer::new(&call, head, loaded.spelling.clone(), field);
    let lanes = Lane::open_all(&state, call.into_requests())?;
    let lanes = Lane::with_charges(lanes, charges);
    if stream {
        return sse::respond(lanes, writer, state.config().sse_keep_alive_s).await;
    }
    let answer_charge = Lane::answer_charge(&lanes);
    let transcripts = finish_all(lanes).await?;
    let write = move |transcripts: Vec<Transcript>| {
        let choices = transcripts.into_iter().enumerate();
        let choices = choices.map(|(index, transcript)| writer.message(index, transcript));
        let choices: Vec<Choice> = choices.collect();
        let response = writer.head.with(choices, Some(writer.usage()));
        serde_json::to_vec(&response).expect("responses have string keys only")
    };
    Ok(whole::respond(transcripts, answer_charge, write).await)
}

#[cfg(test)]
mod tests;
