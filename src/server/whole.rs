//! Sends non-streamed JSON answers. Large ones are serialised on another thread and sent in pieces, so that the
//! worker's other clients do not wait for them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::http::header::ContentType;
use actix_web::rt::task::{JoinHandle, spawn_blocking};
use actix_web::web::Bytes;
use actix_web::{HttpResponse, ResponseError};

use super::answers::AnswerCharge;
use super::error::ApiError;
use super::transcript::Transcript;

/// Largest answer that a worker serialises on its own thread.
pub(super) const MAX_INLINE_BYTES: usize = 128 << 10;
const PIECE_BYTES: usize = 64 << 10;

/// Answers with the JSON that `write` makes of the transcripts. `charge` covers its memory until it has been sent.
pub(super) async fn respond<W>(
    transcripts: Vec<Transcript>,
    charge: Option<AnswerCharge>,
    write: W,
) -> HttpResponse
where
    W: FnOnce(Vec<Transcript>) -> Vec<u8> + Send + 'static,
{
    let json_bytes: usize = transcripts.iter().map(Transcript::json_bytes).sum();
    match written(json_bytes, move || write(transcripts)).await {
        Ok(json) => self::json(json, charge),
        Err(error) => error.error_response(),
    }
}

/// Answers with finished JSON. `charge` covers its memory until it has been sent.
pub(super) fn json(json: Vec<u8>, charge: Option<AnswerCharge>) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    response.content_type(ContentType::json());
    response.body(charged_pieces(json, charge))
}

/// As [`in_pieces`]. `charge` covers the memory of the body until it has been sent.
pub(super) fn charged_pieces(bytes: Vec<u8>, charge: Option<AnswerCharge>) -> impl MessageBody {
    Pieces {
        bytes: bytes.into(),
        _charge: charge,
    }
}

/// A body that is sent in pieces: the next request on the connection waits until the client has read most of it.
pub(super) fn in_pieces(bytes: impl Into<Bytes>) -> impl MessageBody {
    Pieces {
        bytes: bytes.into(),
        _charge: None,
    }
}

/// The JSON that `write` returns, of about `json_bytes` bytes. Fails if the runtime shuts down first.
pub(super) async fn written(
    json_bytes: usize,
    write: impl FnOnce() -> Vec<u8> + Send + 'static,
) -> Result<Vec<u8>, ApiError> {
    if json_bytes <= MAX_INLINE_BYTES {
        Ok(write())
    } else {
        on_thread(write).await.map_err(|_| aborted())
    }
}

pub(super) fn on_thread(write: impl FnOnce() -> Vec<u8> + Send + 'static) -> JoinHandle<Vec<u8>> {
    spawn_blocking(write)
}

/// The error for an answer whose serialisation was aborted by the runtime's shutdown.
pub(super) fn aborted() -> ApiError {
    ApiError::interrupted("the server stopped while it wrote the answer: send the request again")
}

pub(super) fn next_piece(bytes: &mut Bytes) -> Option<Bytes> {
    let length = bytes.len().min(PIECE_BYTES);
    (length > 0).then(|| bytes.split_to(length))
}

struct Pieces {
    bytes: Bytes,
    _charge: Option<AnswerCharge>,
}

impl MessageBody for Pieces {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.bytes.len() as u64)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(next_piece(&mut self.bytes).map(Ok))
    }
}
