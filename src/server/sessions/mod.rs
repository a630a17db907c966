//! SGLang's sessions: `POST /open_session`, `POST /close_session`, and `session_params` of `POST /generate` and of
//! `/v1/ws/generate`.
//!
//! A session keeps the tokens of its requests, so that a later request sends only the new tokens. The K/V of these
//! tokens is in the prefix cache, as for all requests.

mod params;
pub(super) mod store;

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::call::MAX_RID_BYTES;
use super::encode;
use super::error::ApiError;
use super::fields::Fields;
use super::lanes::Lane;
use super::openai::json_values::missing;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{flag, object, seconds, text, whole};
use super::state::AppState;
use souffleur_base::field::check_bytes;
use souffleur_request::{GenerateRequest, Prompt};

pub(super) use params::SessionParams;
use store::NewTokens;
pub(super) use store::SessionTurn;

const SESSION_ID: &str = "session_id";
const CAPACITY: &str = "capacity_of_str_len";

pub(super) async fn open(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    let capacity: Option<u32> = fields.integer(CAPACITY)?;
    let capacity = capacity.ok_or_else(|| missing(CAPACITY.to_owned(), "a number of tokens"))?;
    if capacity == 0 {
        let text = "capacity_of_str_len is 0, must be at least 1 token";
        return Err(ApiError::field(CAPACITY, text));
    }
    // With this flag SGLang keeps the K/V in the session; here the prefix cache keeps it.
    fields.flag("streaming")?;
    let new_session = store::NewSession {
        id: session_id(&mut fields)?,
        capacity: capacity as usize,
        idle: timeout(&mut fields)?,
    };
    let id = state.sessions().open(new_session)?;
    Ok(HttpResponse::Ok().json(id))
}

/// Closes a session and cancels its running requests.
pub(super) async fn close(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    let id = session_id(&mut fields)?;
    let id =
        id.ok_or_else(|| missing(SESSION_ID.to_owned(), "the id that /open_session returned"))?;
    if state.sessions().close(&id) {
        Ok(HttpResponse::Ok().finish())
    } else {
        Err(ApiError::no_such_session(&id))
    }
}

fn session_id(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let id = fields.string(SESSION_ID)?;
    if let Some(id) = &id {
        if id.is_empty() {
            let text = "session_id is empty: send an id, or no session_id to get a random one";
            return Err(ApiError::field(SESSION_ID, text));
        }
        check_bytes(SESSION_ID, id, MAX_RID_BYTES)?;
    }
    Ok(id)
}

fn timeout(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let seconds = fields.seconds("timeout")?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
}

/// Sends the requests of a call to the engine. If the call names a session, its only request continues the session.
/// Then the call also fails if it is a batch, has neither text nor tokens as its prompt, or is refused by the session.
pub(super) async fn open_all(
    state: &Arc<AppState>,
    session: Option<&SessionParams>,
    mut requests: Vec<GenerateRequest>,
) -> Result<(Vec<Lane>, Option<SessionTurn>), ApiError> {
    let Some(params) = session else {
        return Ok((Lane::open_all(state, requests)?, None));
    };
    let [request] = requests.as_mut_slice() else {
        let text = "session_params need one prompt and one sample: send one call per prompt";
        return Err(ApiError::field("session_params", text));
    };
    let new = match &request.prompt {
        Prompt::Tokens(tokens) => tokens.to_vec(),
        Prompt::Text(text) => encode::text(state, text.clone(), params.is_continuation()).await?,
        Prompt::Chat(_)
        | Prompt::Infill(_)
        | Prompt::Vectors(_)
        | Prompt::Images(_)
        | Prompt::TextImages(_) => {
            let text = "session_params need text or input_ids";
            return Err(ApiError::field("session_params", text));
        }
    };
    let tokenizer = state.serving()?.engine.text().cloned();
    let new = NewTokens {
        tokens: new,
        bos: tokenizer.and_then(|tokenizer| tokenizer.bos_id()),
    };
    let rid = request.rid.clone();
    let sessions = state.sessions();
    let (lanes, turn) = sessions.begin(params, &rid, &new, |prompt| {
        requests[0].prompt = Prompt::Tokens(prompt);
        let lanes = Lane::open_all(state, requests)?;
        let canceller = lanes.first().map(Lane::canceller);
        Ok((lanes, canceller))
    })?;
    Ok((lanes, Some(turn)))
}

pub(super) fn open_operation(_: &Facts) -> Operation {
    let id = text().longer_than(0).up_to(MAX_RID_BYTES);
    let fields = object()
        .has(
            CAPACITY,
            whole()
                .at_least(1)
                .at_most(u32::MAX)
                .about("most tokens of one request's prompt"),
        )
        .takes(SESSION_ID, id.about("a random one if it is absent"))
        .takes(
            "timeout",
            seconds().about("seconds after which the idle session is closed"),
        )
        .takes("streaming", flag().about("accepted and ignored"));
    describe(Group::Control, "Open a session")
        .takes(fields.shape(), json!({"capacity_of_str_len": 1000}))
        .answers(text(), "the session's id")
        .needs_engine("`sessions_full`: the limit of sessions is reached, or the memory for request bodies is used up")
        .done()
}

pub(super) fn close_operation(_: &Facts) -> Operation {
    let id = text().longer_than(0).up_to(MAX_RID_BYTES);
    let fields = object().has(SESSION_ID, id.about("the id that `/open_session` returned"));
    describe(Group::Control, "Close a session")
        .takes(fields.shape(), json!({"session_id": "a"}))
        .answers_nothing("it is closed, and its running requests are cancelled")
        .fails(404, "it is not open")
        .needs_engine("the memory for request bodies is used up")
        .done()
}
