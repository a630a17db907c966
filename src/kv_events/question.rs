//! Reads replay requests from clients of the publisher's ROUTER socket.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::patience::{IDLE_PATIENCE, MAX_WORD_BYTES, REPLAY_PATIENCE, write};
use super::zmtp::{self, ZmtpError};

/// The most frames before the number in a request: an empty delimiter, and identities that intermediate devices add.
const MAX_QUESTION_FRAMES: usize = 8;

pub(super) struct Question {
    /// The first frames of every answer: usually one empty frame.
    envelope: Vec<Vec<u8>>,
    /// The number of the first requested batch.
    pub first: u64,
}

impl Question {
    /// The frames of an answer: the envelope, then `frames`.
    pub fn answer<'a>(&'a self, frames: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let envelope = self.envelope.iter().map(Vec::as_slice);
        envelope.chain(frames.iter().copied()).collect()
    }
}

/// Reads the next request, answering PINGs meanwhile; `None` if the peer closed the connection.
///
/// # Errors
/// A malformed request, no request within [`IDLE_PATIENCE`], or an I/O error.
pub(super) async fn read_question(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<Option<Question>, ZmtpError> {
    let mut envelope = Vec::new();
    loop {
        let read = unless_idle(zmtp::read_frame(reader, MAX_WORD_BYTES));
        let frame = match read.await {
            Err(ZmtpError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(None);
            }
            frame => frame?,
        };
        if frame.is_command {
            if let Some(pong) = zmtp::answer_to_ping(&frame) {
                write(writer, &pong, REPLAY_PATIENCE).await?;
            }
            continue;
        }
        if frame.has_more {
            if envelope.len() >= MAX_QUESTION_FRAMES {
                return Err(ZmtpError::Peer(
                    "sent a replay request with too many frames",
                ));
            }
            envelope.push(frame.body);
            continue;
        }
        let number: Result<[u8; 8], _> = frame.body.try_into();
        let Ok(number) = number else {
            return Err(ZmtpError::Peer(
                "sent a replay request without an 8-byte sequence number",
            ));
        };
        let first = u64::from_be_bytes(number);
        return Ok(Some(Question { envelope, first }));
    }
}

/// Fails if `read` does not finish within [`IDLE_PATIENCE`].
async fn unless_idle<T>(read: impl Future<Output = Result<T, ZmtpError>>) -> Result<T, ZmtpError> {
    let read = timeout(IDLE_PATIENCE, read).await;
    read.map_err(|_| ZmtpError::Idle)?
}
