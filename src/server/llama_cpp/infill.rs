//! `POST /infill`: the text between a prefix and a suffix, as llama.cpp's editors request it.

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::answer::Writer;
use super::call::{Call, PREFIX};
use super::check_model;
pub(crate) use super::docs::infill as operation;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::lanes::{Lane, finish_all};
use crate::openai::answer::ReceivedCall;
use crate::sse;
use crate::state::AppState;
use crate::whole;

pub(crate) async fn fill(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let received = ReceivedCall::new(&state, body)?;
    let loaded = received.loaded;
    let (call, charges) = Call::parse(received.fields, received.limits)?;
    check_model(loaded, PREFIX)?;
    let mut writer = Writer::new(&call, loaded.engine.model());
    let lanes = Lane::open_all(&state, call.requests())?;
    let lanes = Lane::with_line_limit(lanes, &call.line_limit);
    let lanes = Lane::with_charges(lanes, charges);
    if call.request.is_streaming {
        return sse::respond(lanes, writer, state.config().sse_keep_alive_s).await;
    }
    let charge = Lane::answer_charge(&lanes);
    let transcripts = finish_all(lanes).await?;
    Ok(whole::respond(transcripts, charge, move |transcripts| {
        writer.whole(transcripts)
    })
    .await)
}
