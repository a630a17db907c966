//! `/v1/ws/generate`: many requests on one WebSocket.
//!
//! The client sends `{"op": "generate", ...}` with the fields of `/generate`, `{"op": "abort", "rid"}` and
//! `{"op": "ping"}`. The server sends `{"rid", "delta", "output_ids", "meta"}` with what is new, then
//! `{"rid", "done": true, "meta"}` or `{"rid", "error"}`. A prompt list or `n` above 1 answers under the ids `rid-i`.
//! When the connection ends, whatever is under way on it is cancelled.

mod frames;
mod socket;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, rt};

use super::error::ApiError;
use super::state::AppState;
use socket::Socket;

/// Answers the handshake and starts the connection's task.
pub(super) async fn connect(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    state.serving()?;
    let open = state.open_websocket()?;
    let (response, session, frames) = actix_ws::handle(&request, payload)
        .map_err(|error| ApiError::invalid(format!("no WebSocket handshake: {error}")))?;
    let limit = state.config().ws_max_frame_bytes;
    let frames = frames.max_frame_size(limit).aggregate_continuations();
    let frames = frames.max_continuation_size(limit);
    rt::spawn(Socket::new(state.into_inner(), session, open).run(frames));
    Ok(response)
}
