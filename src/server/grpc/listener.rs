//! The gRPC listener: limits the number of connections, and closes connections that send nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_io_timeout::TimeoutStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Time without data after which a client gets a PING.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Read timeout. It closes connections that never begin HTTP/2 and so get no PINGs; all other clients answer PINGs.
const READ_TIMEOUT: Duration = Duration::from_secs(90);
/// The wait after a failed accept, whose most likely cause is a lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(500);

/// Accepts at most `limit` connections at once. Further connections wait in the socket's backlog.
pub(super) fn connections(
    listener: TcpListener,
    limit: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let permits = Arc::new(Semaphore::new(limit));
    stream::unfold((listener, permits), |(listener, permits)| async move {
        let permit = permits.clone().acquire_owned().await.ok()?;
        let connection = Connection::new(accept(&listener).await, permit);
        Some((Ok(connection), (listener, permits)))
    })
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::debug!(%error, "failed to accept a gRPC connection");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

pub(super) struct Connection {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    info: TcpConnectInfo,
    /// The permit that counts towards the limit of connections.
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY on a gRPC connection");
        }
        let info = stream.connect_info();
        let mut stream = TimeoutStream::new(stream);
        stream.set_read_timeout(Some(READ_TIMEOUT));
        Self {
            stream: Box::pin(stream),
            info,
            _permit: permit,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt, StreamExt};

    use super::*;

    #[tokio::test]
    async fn one_connection_more_than_the_limit_waits_until_another_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let mut connections = pin!(connections(listener, 1));
        let _one = TcpStream::connect(address).await.expect("it listens");
        let _another = TcpStream::connect(address).await.expect("it waits");
        let first = connections.next().await;
        assert!(connections.next().now_or_never().is_none());
        drop(first);
        let second = connections.next().await.expect("a connection is accepted");
        assert!(second.is_ok());
    }
}
