//! Answers to requests whose heads did not arrive in time.
//!
//! The HTTP/1 dispatcher writes such a 408 itself: there is no request, so no handler and no middleware sees it. On its
//! way to the socket it gets the id that every answer has, and its line in the access log.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::exchange::{X_REQUEST_ID, log_late_head, new_id};

const STATUS_LINE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\n";

/// A connection whose late heads are answered with an id.
pub(super) struct LateHeads<S> {
    inner: S,
    client: Option<SocketAddr>,
    is_logged: bool,
    /// The connection has waited for a head since then.
    waits_since: Instant,
    /// The rest of the answer, which the socket has not taken.
    unsent: Vec<u8>,
}

impl<S: AsyncWrite + Unpin> LateHeads<S> {
    pub(super) fn new(inner: S, client: Option<SocketAddr>, is_logged: bool) -> Self {
        Self {
            inner,
            client,
            is_logged,
            waits_since: Instant::now(),
            unsent: Vec::new(),
        }
    }

    /// Takes an answer of the dispatcher, and gives it its id.
    fn take(&mut self, rest: &[u8]) {
        let id = new_id();
        if self.is_logged {
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

impl<S: AsyncRead + Unpin> AsyncRead for LateHeads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LateHeads<S> {
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
        self.take(rest);
        match self.poll_unsent(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The rest goes out with the next write, flush or shutdown.
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

/// True of an answer that has an id: a handler's.
fn has_id(rest: &[u8]) -> bool {
    let name = X_REQUEST_ID;
    let name = name.as_str().as_bytes();
    rest.windows(name.len()).any(|window| window == name)
}
