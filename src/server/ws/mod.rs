//! The WebSockets `/v1/ws/generate`, for many requests on one connection, and `/v1/responses`, for OpenAI's clients
//! (see [`responses`]).
//!
//! On `/v1/ws/generate` the client sends `{"op": "generate", ...}` with the fields of `/generate` and of sessions,
//! `{"op": "abort", "rid"}` and `{"op": "ping"}`. The server sends `{"rid", "delta", "output_ids", "meta"}` with the
//! new output, then `{"rid", "done": true, "meta"}` or `{"rid", "error"}`. With a prompt list or `n` above 1, the ids
//! are `rid-i`. When the connection ends, its requests in flight are cancelled. Close codes: 1001 at shutdown, 1002
//! for invalid frames, 1007 for text that is not UTF-8, 1008 for clients that are slow or do not answer pings, 1009
//! for messages above the limit, 1013 for overload; a client's own code is echoed.

mod connection;
mod fetches;
mod frames;
mod inbound;
mod native;
mod responses;
mod wire;

use std::time::Duration;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, rt};
use utoipa::openapi::path::Operation;

use connection::{Connection, MessageHandler};
use inbound::Inbound;

use super::error::ApiError;
use super::exchange::Exchange;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::state::AppState;
use native::Native;
use responses::Responses;

pub(super) async fn connect(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let limit_bytes = state.config().ws_max_frame_bytes;
    start(&request, payload, &state, limit_bytes, Native::default()).await
}

/// Answers the handshake of a client of `/v1/responses`. A message is the body of a request, and may be as large.
pub(super) async fn connect_responses(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let limit_bytes = state.config().max_body_bytes;
    let handler = Responses::new(&state);
    start(&request, payload, &state, limit_bytes, handler).await
}

async fn start(
    request: &HttpRequest,
    payload: Payload,
    state: &Data<AppState>,
    limit_bytes: usize,
    handler: impl MessageHandler + 'static,
) -> Result<HttpResponse, ApiError> {
    state.serving()?;
    let open = state.open_websocket()?;
    let message_timeout = Duration::from_secs(state.config().body_timeout_s.into());
    let inbound = Inbound::new(limit_bytes, message_timeout, state.bodies().open());
    let (response, wire) = wire::accept(request, payload, inbound, limit_bytes).await?;
    let state = state.clone().into_inner();
    let serving = Connection::new(state, wire, limit_bytes, open).run(handler);
    match Exchange::current() {
        Some(exchange) => rt::spawn(exchange.scope(serving)),
        None => rt::spawn(serving),
    };
    Ok(response)
}

pub(super) fn operation(_: &Facts) -> Operation {
    describe(Group::SgLang, "A WebSocket: many requests on one connection")
        .about("Text frames: `{\"op\": \"generate\", …}` with the fields of `/generate`, `{\"op\": \"abort\", \"rid\": \"…\"}`, `{\"op\": \"ping\"}`.")
        .upgrades()
        .done()
}

pub(super) fn responses_operation(_: &Facts) -> Operation {
    describe(Group::OpenAi, "Responses over a WebSocket")
        .about("A message is the body of a POST, with `\"type\": \"response.create\"`; the answer is the events of its stream.")
        .upgrades()
        .done()
}
