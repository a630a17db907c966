//! Adds the request id to 408 answers for request heads that arrive too late, and writes them to the access log.
//!
//! actix-web's HTTP/1 dispatcher writes this 408 itself, so no handler or middleware sees it. [`TagTimeouts`] is
//! between the dispatcher and the socket. It adds the request id that all other answers carry, and logs the 408.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::exchange::{X_REQUEST_ID, log_late_head, new_id};

const STATUS_LINE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\n";

/// A connection that adds the request id to the dispatcher's 408, and logs it.
pub(super) struct TagTimeouts<S> {
    inner: S,
    client: Option<SocketAddr>,
    access_log: bool,
    /// When the connection began to wait for a request head.
    waits_since: Instant,
    /// The rest of a 408, which the socket has not accepted yet.
    unsent: Vec<u8>,
}

impl<S: AsyncWrite + Unpin> TagTimeouts<S> {
    pub(super) fn new(inner: S, client: Option<SocketAddr>, access_log: bool) -> Self {
        Self {
            inner,
            client,
            access_log,
            waits_since: Instant::now(),
            unsent: Vec::new(),
        }
    }

    /// Queues the dispatcher's 408 with an id. `rest` is the answer without its status line.
    fn queue(&mut self, rest: &[u8]) {
        let id = new_id();
        if self.access_log {
            log_late_head(&id, self.client, self.waits_since.elapsed());
        }
        let name = X_REQUEST_ID;
        let parts = [
            STATUS_LINE,
            name.as_str().as_bytes(),
            b": ",
            id.as_bytes(),
            b"\r\n",
            rest,
        ];
        self.unsent = parts.concat();
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let taken = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.unsent))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.drain(..taken);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TagTimeouts<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TagTimeouts<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_unsent(cx))?;
        let Some(rest) = bytes.strip_prefix(STATUS_LINE).filter(|rest| !has_id(rest)) else {
            self.waits_since = Instant::now();
            return Pin::new(&mut self.inner).poll_write(cx, bytes);
        };
        self.queue(rest);
        match self.poll_unsent(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The rest is sent by the next write, flush or shutdown.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Returns whether an answer already has an id, as the answers of handlers do.
fn has_id(rest: &[u8]) -> bool {
    let name = X_REQUEST_ID;
    let name = name.as_str().as_bytes();
    rest.windows(name.len()).any(|window| window == name)
}
