//! Timeouts and the frame size limit for ZMTP peers.

use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::zmtp::ZmtpError;

/// A replay client that reads nothing for this long is disconnected.
pub(super) const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that sends no request, or has no matching subscription, for this long is disconnected. Dead peers would
/// otherwise use up the connections. ZeroMQ reconnects by itself.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The largest topic or other frame accepted from a peer.
pub(super) const MAX_PEER_FRAME_BYTES: usize = 512;

pub(super) async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    limit: Duration,
) -> Result<(), ZmtpError> {
    let written = timeout(limit, writer.write_all(bytes)).await;
    written
        .map_err(|_| ZmtpError::Late(limit))?
        .map_err(Into::into)
}
