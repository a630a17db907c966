//! Non-streamed JSON answers. A large one is serialised on another thread and sent in pieces, so that a worker's other
//! clients wait for neither.

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
use souffleur_base::error::RequestError;

/// Largest answer that a worker writes itself.
pub(super) const MAX_INLINE_BYTES: usize = 128 << 10;
const PIECE_BYTES: usize = 64 << 10;

/// Answers with the JSON that `write` makes of the transcripts, whose memory `charge` holds until the answer has left.
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

/// Answers with JSON that is written already, whose memory `charge` holds until the answer has left.
pub(super) fn json(json: Vec<u8>, charge: Option<AnswerCharge>) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    response.content_type(ContentType::json());
    response.body(charged_pieces(json, charge))
}

/// A body as [`in_pieces`], whose memory `charge` holds until it has left.
pub(super) fn charged_pieces(bytes: Vec<u8>, charge: Option<AnswerCharge>) -> impl MessageBody {
    Pieces {
        bytes: bytes.into(),
        _charge: charge,
    }
}

/// A body that leaves in pieces: the next request on a connection is handled when its client has taken most of it.
pub(super) fn in_pieces(bytes: impl Into<Bytes>) -> impl MessageBody {
    Pieces {
        bytes: bytes.into(),
        _charge: None,
    }
}

/// The JSON that `write` makes, of about `json_bytes` bytes. Fails if the runtime ends first.
pub(super) async fn written(
    json_bytes: usize,
    write: impl FnOnce() -> Vec<u8> + Send + 'static,
) -> Result<Vec<u8>, ApiError> {
    if json_bytes <= MAX_INLINE_BYTES {
        Ok(write())
    } else {
        aside(write).await.map_err(|_| lost())
    }
}

pub(super) fn aside(write: impl FnOnce() -> Vec<u8> + Send + 'static) -> JoinHandle<Vec<u8>> {
    spawn_blocking(write)
}

/// The error for an answer whose writing was aborted, at the runtime's end.
pub(super) fn lost() -> ApiError {
    RequestError::EngineDown("the answer was lost while it was written".to_owned()).into()
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
