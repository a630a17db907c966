//! Timeouts and the frame size limit for ZMTP peers.

use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::zmtp::ZmtpError;

/// A replay client that reads nothing for this long is disconnected.
pub(super) const REPLAY_PATIENCE: Duration = Duration::from_secs(5);
/// A peer that sends no request, or has no matching subscription, for this long is disconnected, so that dead peers do
/// not use up the connections. ZeroMQ reconnects by itself.
pub(super) const IDLE_PATIENCE: Duration = Duration::from_secs(120);
/// The largest topic or other frame accepted from a peer.
pub(super) const MAX_WORD_BYTES: usize = 512;

/// Writes all bytes, or fails if the peer does not read them within `patience`.
pub(super) async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    patience: Duration,
) -> Result<(), ZmtpError> {
    let written = timeout(patience, writer.write_all(bytes)).await;
    written.map_err(|_| ZmtpError::Late)?.map_err(Into::into)
}
