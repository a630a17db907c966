//! Server-sent events: the first event decides between an HTTP error and a stream, a comment keeps idle streams
//! open, `[DONE]` ends them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::http::header;
use actix_web::web::Bytes;
use actix_web::{HttpResponse, rt};
use futures_util::stream::{SelectAll, Stream, StreamExt};
use serde::Serialize;

use super::error::{ApiError, Envelope};
use super::lanes::{Events, Lane, merged};
use super::transcript::News;
use crate::error::RequestError;

/// Turns the news of the lanes into the JSON of one endpoint.
pub(super) trait Render: Unpin + 'static {
    /// What comes before everything else.
    fn start(&mut self, _out: &mut Chunks) {}

    /// One lane's news.
    fn news(&mut self, index: usize, news: News, out: &mut Chunks);

    /// A failed lane's error, under the names of the endpoint.
    fn error(&self, error: RequestError) -> ApiError {
        error.into()
    }

    /// What comes when all lanes have ended.
    fn end(&mut self, _out: &mut Chunks) {}
}

/// Events in their wire format.
#[derive(Default)]
pub(super) struct Chunks(Vec<u8>);

impl Chunks {
    /// Adds an event.
    pub(super) fn data(&mut self, value: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, value).expect("responses have string keys only");
        self.0.extend_from_slice(b"\n\n");
    }

    #[cfg(test)]
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn take(&mut self) -> Option<Bytes> {
        let bytes = std::mem::take(&mut self.0);
        (!bytes.is_empty()).then(|| bytes.into())
    }
}

/// Answers with the events of `lanes`.
///
/// # Errors
/// The first event's, if that is a failure. Later failures end the stream with an error event, and the other lanes
/// with it.
pub(super) async fn respond(
    lanes: Vec<Lane>,
    render: impl Render,
    keep_alive_s: u32,
) -> Result<HttpResponse, ApiError> {
    let keep_alive = Duration::from_secs(keep_alive_s.into());
    let mut events = merged(lanes);
    let mut stream_start = Chunks::default();
    let mut render = render;
    render.start(&mut stream_start);
    // A request that waits long in the queue begins its stream anyway: proxies give up on silent responses.
    if let Ok(first) = rt::time::timeout(keep_alive, events.next()).await
        && let Some((index, event)) = first
    {
        let news = News::of(event).map_err(|error| render.error(error))?;
        render.news(index, news, &mut stream_start);
    }
    let body = SseBody {
        events,
        render,
        ready: stream_start,
        keep_alive: Box::pin(rt::time::sleep(keep_alive)),
        keep_alive_period: keep_alive,
        has_ended: false,
    };
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(body))
}

struct SseBody<R> {
    events: SelectAll<Events<usize>>,
    render: R,
    ready: Chunks,
    keep_alive: Pin<Box<rt::time::Sleep>>,
    keep_alive_period: Duration,
    has_ended: bool,
}

impl<R: Render> SseBody<R> {
    fn take_in(&mut self, next: Option<(usize, crate::request::Event)>) {
        match next.map(|(index, event)| (index, News::of(event))) {
            Some((index, Ok(news))) => self.render.news(index, news, &mut self.ready),
            Some((_, Err(error))) => {
                self.events.clear();
                self.has_ended = true;
                self.ready.data(&Envelope {
                    error: self.render.error(error).body(),
                });
                self.ready.done();
            }
            None => {
                self.has_ended = true;
                self.render.end(&mut self.ready);
                self.ready.done();
            }
        }
    }
}

impl<R: Render> Stream for SseBody<R> {
    type Item = Result<Bytes, ApiError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.ready.take() {
                let next_comment = rt::time::Instant::now() + this.keep_alive_period;
                this.keep_alive.as_mut().reset(next_comment);
                return Poll::Ready(Some(Ok(bytes)));
            }
            if this.has_ended {
                return Poll::Ready(None);
            }
            if let Poll::Ready(next) = this.events.poll_next_unpin(cx) {
                this.take_in(next);
                continue;
            }
            ready!(this.keep_alive.as_mut().poll(cx));
            this.ready.0.extend_from_slice(b": keep-alive\n\n");
        }
    }
}
