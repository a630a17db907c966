//! The body of a viewer's response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::rt::time::{Instant, Sleep, sleep};
use actix_web::web::Bytes;
use futures_util::stream::Stream;
use tokio::sync::mpsc::Receiver;

use super::viewers::Seat;
use crate::error::ApiError;

/// Without events for so long, a comment keeps the connection open.
const COMMENT_AFTER: Duration = Duration::from_secs(15);
const COMMENT: &[u8] = b": keep-alive\n\n";

/// Streams a viewer's events. Dropping it frees the viewer's seat.
pub(super) struct LiveBody {
    events: Receiver<Bytes>,
    silence: Pin<Box<Sleep>>,
    _seat: Seat,
}

impl LiveBody {
    pub(super) fn new(events: Receiver<Bytes>, seat: Seat) -> Self {
        Self {
            events,
            silence: Box::pin(sleep(COMMENT_AFTER)),
            _seat: seat,
        }
    }
}

impl Stream for LiveBody {
    type Item = Result<Bytes, ApiError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let bytes = match this.events.poll_recv(cx) {
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                ready!(this.silence.as_mut().poll(cx));
                Bytes::from_static(COMMENT)
            }
        };
        let next = Instant::now() + COMMENT_AFTER;
        this.silence.as_mut().reset(next);
        Poll::Ready(Some(Ok(bytes)))
    }
}
