//! How long peers are waited for, and how much they may say at once.

use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::zmtp::ZmtpError;

/// One that has batches repeated and reads nothing for so long loses its connection: whoever asks reads.
pub(super) const REPLAY_PATIENCE: Duration = Duration::from_secs(5);
/// Whoever asks for nothing for so long, or subscribes to nothing that is published here, loses its connection: those
/// that are gone without a word must not keep others out. ZeroMQ connects again by itself.
pub(super) const IDLE_PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a topic, or of what else a peer says at once.
pub(super) const MAX_WORD_BYTES: usize = 512;

/// Writes all of this, unless the peer reads nothing for too long.
pub(super) async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    patience: Duration,
) -> Result<(), ZmtpError> {
    let written = timeout(patience, writer.write_all(bytes)).await;
    written.map_err(|_| ZmtpError::Late)?.map_err(Into::into)
}
