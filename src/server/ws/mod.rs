//! `/v1/ws/generate`: many requests on one WebSocket.
//!
//! The client sends `{"op": "generate", ...}` with the fields of `/generate`, `{"op": "abort", "rid"}` and
//! `{"op": "ping"}`. The server sends `{"rid", "delta", "output_ids", "meta"}` with what is new, then
//! `{"rid", "done": true, "meta"}` or `{"rid", "error"}`. A prompt list or `n` above 1 answers under the ids `rid-i`.
//! When the connection ends, whatever is under way on it is cancelled. Close codes are the standard's: 1002 for frames
//! that it forbids, 1007 for text that is not UTF-8, 1009 for messages above the limit; a client's own is echoed.

mod frames;
mod inbound;
mod socket;
mod wire;

use std::time::Duration;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, rt};

use inbound::Inbound;

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
    let limit_bytes = state.config().ws_max_frame_bytes;
    let message_timeout = Duration::from_secs(state.config().body_timeout_s.into());
    let inbound = Inbound::new(limit_bytes, message_timeout, state.bodies().open());
    let (response, wire) = wire::accept(&request, payload, inbound, limit_bytes).await?;
    rt::spawn(Socket::new(state.into_inner(), wire, open).run());
    Ok(response)
}
