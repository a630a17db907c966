//! Questions for batches, as the ROUTER socket is asked them.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::patience::{IDLE_PATIENCE, MAX_WORD_BYTES, REPLAY_PATIENCE, write};
use super::zmtp::{self, ZmtpError};

/// Frames of a question: an empty one and a number, and what devices between add.
const MAX_QUESTION_FRAMES: usize = 8;

/// A wish to have batches repeated.
pub(super) struct Question {
    /// Comes before every answer: one empty frame.
    envelope: Vec<Vec<u8>>,
    /// The number of the first one.
    pub first: u64,
}

impl Question {
    /// The frames of an answer with these.
    pub fn answer<'a>(&'a self, frames: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let envelope = self.envelope.iter().map(Vec::as_slice);
        envelope.chain(frames.iter().copied()).collect()
    }
}

/// Reads the next question; `None` if the peer has gone. It may ask whether anybody is there instead, and is answered.
///
/// # Errors
/// What is no question, none for too long, and what the system says.
pub(super) async fn read_question(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<Option<Question>, ZmtpError> {
    let mut envelope = Vec::new();
    loop {
        let heard = unless_idle(zmtp::read_frame(reader, MAX_WORD_BYTES));
        let frame = match heard.await {
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
                return Err(ZmtpError::Peer("asks with too many frames"));
            }
            envelope.push(frame.body);
            continue;
        }
        let number: Result<[u8; 8], _> = frame.body.try_into();
        let Ok(number) = number else {
            return Err(ZmtpError::Peer("asks for a batch by no number of 8 bytes"));
        };
        let first = u64::from_be_bytes(number);
        return Ok(Some(Question { envelope, first }));
    }
}

/// What somebody says who must say something.
async fn unless_idle<T>(heard: impl Future<Output = Result<T, ZmtpError>>) -> Result<T, ZmtpError> {
    let heard = timeout(IDLE_PATIENCE, heard).await;
    heard.map_err(|_| ZmtpError::Idle)?
}
