//! Reads replay requests from clients of the publisher's ROUTER socket.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::timeouts::{IDLE_TIMEOUT, MAX_PEER_FRAME_BYTES, REPLAY_TIMEOUT, write};
use super::zmtp::{self, ZmtpError};

/// The largest number of frames before the sequence number: an empty delimiter, and identities that proxies add.
const MAX_ENVELOPE_FRAMES: usize = 8;

pub(super) struct ReplayRequest {
    /// The first frames of every answer: usually one empty frame.
    envelope: Vec<Vec<u8>>,
    /// The number of the first requested batch.
    pub first: u64,
}

impl ReplayRequest {
    /// The frames of an answer: the envelope, then `frames`.
    pub fn answer<'a>(&'a self, frames: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let envelope = self.envelope.iter().map(Vec::as_slice);
        envelope.chain(frames.iter().copied()).collect()
    }
}

/// Reads the next request, answering PINGs meanwhile; `None` if the peer closed the connection.
///
/// # Errors
/// A malformed request, no request within [`IDLE_TIMEOUT`], or an I/O error.
pub(super) async fn read_request(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<Option<ReplayRequest>, ZmtpError> {
    let mut envelope = Vec::new();
    loop {
        let read = with_idle_timeout(zmtp::read_frame(reader, MAX_PEER_FRAME_BYTES));
        let frame = match read.await {
            Err(ZmtpError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(None);
            }
            frame => frame?,
        };
        if frame.is_command {
            if let Some(pong) = zmtp::answer_to_ping(&frame) {
                write(writer, &pong, REPLAY_TIMEOUT).await?;
            }
            continue;
        }
        if frame.has_more {
            if envelope.len() >= MAX_ENVELOPE_FRAMES {
                return Err(ZmtpError::Limit(
                    "sent a replay request with too many frames before its sequence number",
                    MAX_ENVELOPE_FRAMES,
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
        return Ok(Some(ReplayRequest { envelope, first }));
    }
}

async fn with_idle_timeout<T>(
    read: impl Future<Output = Result<T, ZmtpError>>,
) -> Result<T, ZmtpError> {
    let read = timeout(IDLE_TIMEOUT, read).await;
    read.map_err(|_| ZmtpError::Idle)?
}
