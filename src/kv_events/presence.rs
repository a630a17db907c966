//! Detects dead peers, whose machine or network failed without closing the connection.
//!
//! The kernel sends keepalive probes on idle TCP connections. Peers with protocol version 3.1 also get PINGs, since a
//! proxy may answer the kernel's probes for a dead peer.

use std::io;
use std::pin::pin;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::zmtp::{self, Frame, ZmtpError};

/// TCP keepalive: idle time before the first probe, and the probe interval.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// `TCP_USER_TIMEOUT`: how long probes and sent bytes may stay unacknowledged.
#[cfg(any(target_os = "android", target_os = "linux"))]
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// A peer that is silent for this long gets a PING.
const PING_AFTER: Duration = Duration::from_secs(30);
/// The timeout for a PONG. It starts at the last write to the peer, which may still be reading.
const PONG_TIMEOUT: Duration = Duration::from_secs(90);

/// Sets `TCP_NODELAY`, keepalive and, on Linux, the user timeout.
pub(super) fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER);
    socket.set_tcp_keepalive(&probes.with_interval(PROBE_EVERY))?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(PROBE_TIMEOUT))?;
    Ok(())
}

/// Reads the next frame. After [`PING_AFTER`], calls `ask`, which requests a PING. A peer that does not answer is dead.
///
/// `written_at` returns the time of the last write since the PING; `None` while the PING is queued after other writes,
/// which have their own timeout.
///
/// # Errors
/// [`ZmtpError::Silent`], and those of [`zmtp::read_frame`].
pub(super) async fn next_frame(
    reader: &mut (impl AsyncRead + Unpin),
    limit: usize,
    ask: impl FnOnce(),
    written_at: impl Fn() -> Option<Instant>,
) -> Result<Frame, ZmtpError> {
    let mut pending = pin!(zmtp::read_frame(reader, limit));
    if let Ok(frame) = timeout(PING_AFTER, &mut pending).await {
        return frame;
    }
    ask();
    loop {
        let since = written_at().unwrap_or_else(Instant::now);
        if let Ok(frame) = timeout_at(since + PONG_TIMEOUT, &mut pending).await {
            return frame;
        }
        // A later write means that the peer is still reading.
        if written_at().is_some_and(|last| last <= since) {
            return Err(ZmtpError::Silent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn set_options_enables_keepalive_probes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("it is bound");
        let (stream, _) = tokio::join!(TcpStream::connect(addr), listener.accept());
        let stream = stream.expect("it listens");
        assert!(!SockRef::from(&stream).keepalive().expect("an option"));
        set_options(&stream).expect("the options exist");
        assert!(SockRef::from(&stream).keepalive().expect("an option"));
        #[cfg(target_os = "linux")]
        {
            let socket = SockRef::from(&stream);
            assert_eq!(socket.tcp_keepalive_time().ok(), Some(PROBE_AFTER));
            assert_eq!(socket.tcp_keepalive_interval().ok(), Some(PROBE_EVERY));
            let expected = socket.tcp_user_timeout().expect("an option");
            assert_eq!(expected, Some(PROBE_TIMEOUT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_a_ping_is_dead() {
        let (mut reader, mut peer) = tokio::io::duplex(64);
        let begun = Instant::now();
        let asked = Cell::new(None);
        let ask = || asked.set(Some(Instant::now()));
        let ended = next_frame(&mut reader, 64, ask, || asked.get()).await;
        assert!(matches!(ended, Err(ZmtpError::Silent)), "{ended:?}");
        let asked = asked.get().expect("a PING was requested");
        assert_eq!((asked - begun).as_secs(), PING_AFTER.as_secs());
        let expected = PING_AFTER + PONG_TIMEOUT;
        assert_eq!(begun.elapsed().as_secs(), expected.as_secs());
        // A partial frame that arrived before the PING is kept.
        peer.write_all(&[0]).await.expect("the bytes fit");
        let pending = async {
            let asked = Cell::new(None);
            let ask = || asked.set(Some(Instant::now()));
            let frame = next_frame(&mut reader, 64, ask, || asked.get()).await;
            (frame, asked.get())
        };
        let answer = async {
            sleep(PING_AFTER * 2).await;
            peer.write_all(&[2, b'o', b'k']).await
        };
        let ((frame, asked), written) = tokio::join!(pending, answer);
        written.expect("the bytes fit");
        assert!(asked.is_some());
        assert_eq!(frame.expect("a frame arrived").body, b"ok");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_frames_gets_no_ping() {
        let (mut reader, mut peer) = tokio::io::duplex(64);
        peer.write_all(&[0, 1, b'a']).await.expect("the bytes fit");
        let frame = next_frame(&mut reader, 64, || panic!("no PING is due"), || None).await;
        assert_eq!(frame.expect("a frame arrived").body, b"a");
    }

    #[tokio::test(start_paused = true)]
    async fn the_timeout_starts_at_the_last_write() {
        let (mut reader, _peer) = tokio::io::duplex(64);
        let begun = Instant::now();
        let written = Cell::new(None);
        let writer = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(80)).await;
                written.set(Some(Instant::now()));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = next_frame(&mut reader, 64, || (), || written.get()) => {
                assert!(matches!(ended, Err(ZmtpError::Silent)), "{ended:?}");
            }
            () = writer => {}
        }
        let expected = Duration::from_secs(5 * 80) + PONG_TIMEOUT;
        assert_eq!(begun.elapsed().as_secs(), expected.as_secs());
    }
}
