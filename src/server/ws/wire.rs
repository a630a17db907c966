//! Runs a WebSocket over an upgraded HTTP request: reads from the request's body, writes to the response's body.

use std::io;

use actix_http::ws::{HandshakeError, hash_key, verify_handshake};
use actix_web::body::BodyStream;
use actix_web::http::{Version, header};
use actix_web::web::{Bytes, Payload};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use futures_util::StreamExt;
use futures_util::stream::{self, LocalBoxStream};
use tokio::io::{DuplexStream, Join, duplex, join};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::io::{ReaderStream, StreamReader};

use super::inbound::Inbound;
use crate::error::ApiError;

/// Bytes that may wait for a client before writes block.
const OUTPUT_BYTES: usize = 16 << 10;
/// Size of the read buffer, which an idle connection keeps.
const READ_BYTES: usize = 4 << 10;

/// Messages of one client, in both directions. Every write is flushed before the next, so at most one message waits.
pub(super) type Wire = WebSocketStream<Join<Input, DuplexStream>>;

/// The client's bytes. An error with a [`Refusal`](super::inbound::Refusal) ends them if further bytes are refused.
type Input = StreamReader<LocalBoxStream<'static, io::Result<Bytes>>, Bytes>;

/// Answers the handshake of a client whose bytes `inbound` admits and whose messages may have `limit_bytes`. Fails
/// with 400 for a request that is not a handshake, with 426 for another protocol version.
pub(super) async fn accept(
    request: &HttpRequest,
    payload: Payload,
    inbound: Inbound,
    limit_bytes: usize,
) -> Result<(HttpResponse, Wire), ApiError> {
    let mut response = handshake(request)?;
    let (output, written) = duplex(OUTPUT_BYTES);
    let response = response.body(BodyStream::new(ReaderStream::new(written)));

    let mut inbound = inbound;
    let bytes = payload.flat_map(move |chunk| {
        let (bytes, error) = match chunk {
            Ok(chunk) => {
                let (bytes, refused) = inbound.admit(&chunk);
                (bytes, refused.map(io::Error::other))
            }
            Err(error) => (Vec::new(), Some(io::Error::other(error))),
        };
        let bytes = Some(Ok(Bytes::from(bytes)));
        stream::iter([bytes, error.map(Err)].into_iter().flatten())
    });
    let config = WebSocketConfig::default()
        .max_message_size(Some(limit_bytes))
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(0);
    let duplex = join(StreamReader::new(bytes.boxed_local()), output);
    let wire = WebSocketStream::from_raw_socket(duplex, Role::Server, Some(config)).await;
    Ok((response, wire))
}

fn handshake(request: &HttpRequest) -> Result<HttpResponseBuilder, ApiError> {
    let refused =
        |reason: &str| ApiError::invalid(format!("invalid WebSocket handshake: {reason}"));
    if request.version() < Version::HTTP_11 {
        return Err(refused("HTTP must be 1.1 or later"));
    }
    verify_handshake(request.head()).map_err(|error| match error {
        HandshakeError::UnsupportedVersion => ApiError::websocket_version(),
        error => refused(&error.to_string()),
    })?;
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| refused("Sec-WebSocket-Key is missing"))?;
    let accept = hash_key(key.as_bytes());
    let mut response = HttpResponse::SwitchingProtocols();
    response.upgrade("websocket");
    response.insert_header((header::SEC_WEBSOCKET_ACCEPT, accept.as_slice()));
    Ok(response)
}
