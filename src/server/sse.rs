//! Streams answers as server-sent events, or as lines of JSON. By default, a failure before the first event becomes an
//! HTTP error, comments keep idle streams open, and `[DONE]` ends a stream; the [`Render`] of an endpoint can change
//! that.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::http::header;
use actix_web::rt::task::JoinHandle;
use actix_web::web::Bytes;
use actix_web::{HttpResponse, HttpResponseBuilder, rt};
use futures_util::stream::{SelectAll, Stream, StreamExt};
use serde::Serialize;

use super::answers::AnswerCharge;
use super::error::{ApiError, Envelope};
use super::lanes::{Events, Lane, check_logprobs, merged};
use super::transcript::Update;
use super::whole::{aborted, charged_pieces, next_piece, on_thread};
use souffleur_base::error::RequestError;

const EVENT_STREAM: &str = "text/event-stream";

/// Renders the events of the lanes as the JSON of one endpoint.
pub(super) trait Render: Unpin + 'static {
    /// The content type of the stream.
    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }

    /// Writes events before those of the lanes, if the endpoint has any.
    fn start(&mut self, _out: &mut Chunks) {}

    /// Writes the events for one lane's delta or end.
    fn update(&mut self, index: usize, update: Update, out: &mut Chunks);

    /// Number of log probabilities that are kept for later events.
    fn kept_logprobs(&self) -> usize {
        0
    }

    fn end(&mut self, _out: &mut Chunks) {}

    /// Writes the error event for a lane's failure. The failure ends all lanes.
    fn fail(&mut self, error: &ApiError, out: &mut Chunks) {
        out.data(&Envelope {
            error: error.body(),
        });
    }

    /// Returns whether a failure before the first event is sent as an event; otherwise it becomes an HTTP error.
    fn streams_failure(&self, _failure: &RequestError) -> bool {
        false
    }

    /// Ends the stream, after `end` or `fail`.
    fn close(&mut self, out: &mut Chunks) {
        out.done();
    }

    fn keep_alive(&mut self, out: &mut Chunks) {
        out.comment();
    }
}

/// Serialises an event to JSON, on another thread.
type Write = Box<dyn FnOnce() -> Vec<u8> + Send>;

enum Chunk {
    Written(Vec<u8>),
    ToWrite(Write),
}

/// Events in their wire format, or still to be serialised.
#[derive(Default)]
pub(super) struct Chunks(VecDeque<Chunk>);

impl Chunks {
    pub(super) fn data(&mut self, value: &impl Serialize) {
        let out = self.tail();
        out.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut *out, value).expect("responses have string keys only");
        out.extend_from_slice(b"\n\n");
    }

    /// Adds a line of JSON, for streams of lines instead of events.
    pub(super) fn line(&mut self, value: &impl Serialize) {
        let out = self.tail();
        serde_json::to_writer(&mut *out, value).expect("responses have string keys only");
        out.push(b'\n');
    }

    pub(super) fn event(&mut self, name: &str, value: &impl Serialize) {
        self.text(format!("event: {name}\n").as_bytes());
        self.data(value);
    }

    pub(super) fn comment(&mut self) {
        self.text(b": keep-alive\n\n");
    }

    /// Adds an event from the parts of its finished JSON.
    pub(super) fn json(&mut self, parts: &[&[u8]]) {
        let out = self.tail();
        out.reserve(parts.iter().map(|part| part.len()).sum::<usize>() + 16);
        out.extend_from_slice(b"data: ");
        for part in parts {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(b"\n\n");
    }

    /// Adds an event whose JSON takes long to write: another thread writes it while the worker serves other clients.
    pub(super) fn data_on_thread(&mut self, write: impl FnOnce() -> Vec<u8> + Send + 'static) {
        self.text(b"data: ");
        self.0.push_back(Chunk::ToWrite(Box::new(write)));
        self.text(b"\n\n");
    }

    #[cfg(test)]
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let chunks = self.0.into_iter().map(|chunk| match chunk {
            Chunk::Written(bytes) => bytes,
            Chunk::ToWrite(write) => write(),
        });
        chunks.flatten().collect()
    }

    pub(super) fn named(&mut self, name: &str, json: &[u8]) {
        write_named(self.tail(), name, json);
    }

    pub(super) fn done(&mut self) {
        self.text(b"data: [DONE]\n\n");
    }

    fn text(&mut self, text: &[u8]) {
        self.tail().extend_from_slice(text);
    }

    fn tail(&mut self) -> &mut Vec<u8> {
        if !matches!(self.0.back(), Some(Chunk::Written(_))) {
            self.0.push_back(Chunk::Written(Vec::new()));
        }
        match self.0.back_mut() {
            Some(Chunk::Written(bytes)) => bytes,
            _ => unreachable!("written bytes are at the end"),
        }
    }

    fn take(&mut self) -> Option<Chunk> {
        self.0.pop_front()
    }
}

pub(super) fn write_named(out: &mut Vec<u8>, name: &str, json: &[u8]) {
    out.reserve(name.len() + json.len() + 24);
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    out.extend_from_slice(json);
    out.extend_from_slice(b"\n\n");
}

/// Answers with serialised events. `charge` covers their memory until they have been sent.
pub(super) fn whole(events: Vec<u8>, charge: Option<AnswerCharge>) -> HttpResponse {
    stream_head(EVENT_STREAM).body(charged_pieces(events, charge))
}

fn stream_head(content_type: &'static str) -> HttpResponseBuilder {
    let mut response = HttpResponse::Ok();
    response
        .content_type(content_type)
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"));
    response
}

/// Answers with the events of `lanes`.
///
/// # Errors
/// A failure before the first event, unless [`Render::streams_failure`] accepts it. A later failure ends all lanes, and
/// the stream ends with an error event.
pub(super) async fn respond(
    lanes: Vec<Lane>,
    render: impl Render,
    keep_alive_s: u32,
) -> Result<HttpResponse, ApiError> {
    let keep_alive = Duration::from_secs(keep_alive_s.into());
    let max_logprob_entries = lanes.first().map_or(0, Lane::max_logprob_entries);
    let mut body = SseBody {
        _charge: Lane::answer_charge(&lanes),
        events: merged(lanes),
        render,
        max_logprob_entries,
        pieces: VecDeque::new(),
        must_yield: false,
        ready: Chunks::default(),
        writing: None,
        sending: Bytes::new(),
        keep_alive: Box::pin(rt::time::sleep(keep_alive)),
        keep_alive_period: keep_alive,
        has_ended: false,
    };
    body.render.start(&mut body.ready);
    // If the request waits long in the queue, the response starts without an event: proxies drop silent responses.
    if let Ok(first) = rt::time::timeout(keep_alive, body.events.next()).await
        && let Some((index, event)) = first
    {
        match Update::of(event) {
            Ok(update) => body.enqueue(index, update),
            Err(error) if body.render.streams_failure(&error) => body.fail(error),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(stream_head(body.render.content_type()).streaming(body))
}

struct SseBody<R> {
    /// The charge for the written bytes until they have been sent.
    _charge: Option<AnswerCharge>,
    events: SelectAll<Events<usize>>,
    render: R,
    max_logprob_entries: usize,
    /// Pieces of one event that are not rendered yet.
    pieces: VecDeque<(usize, Update)>,
    /// A piece was rendered: the worker serves its other clients before the next piece.
    must_yield: bool,
    ready: Chunks,
    writing: Option<JoinHandle<Vec<u8>>>,
    sending: Bytes,
    keep_alive: Pin<Box<rt::time::Sleep>>,
    keep_alive_period: Duration,
    has_ended: bool,
}

impl<R: Render> SseBody<R> {
    fn enqueue(&mut self, index: usize, update: Update) {
        update.in_pieces(|piece| self.pieces.push_back((index, piece)));
    }

    fn render_piece(&mut self, index: usize, update: Update) {
        self.render.update(index, update, &mut self.ready);
        self.must_yield = !self.pieces.is_empty();
        if let Err(error) = check_logprobs(self.render.kept_logprobs(), self.max_logprob_entries) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: RequestError) {
        self.events.clear();
        self.pieces.clear();
        self.has_ended = true;
        self.render.fail(&error.into(), &mut self.ready);
        self.render.close(&mut self.ready);
    }

    fn end(&mut self) {
        self.has_ended = true;
        self.render.end(&mut self.ready);
        self.render.close(&mut self.ready);
    }

    /// The next bytes of the rendered events; `None` if all have been sent.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ApiError>>> {
        loop {
            if let Some(bytes) = next_piece(&mut self.sending) {
                let next_comment = rt::time::Instant::now() + self.keep_alive_period;
                self.keep_alive.as_mut().reset(next_comment);
                return Poll::Ready(Some(Ok(bytes)));
            }
            if let Some(writing) = &mut self.writing {
                let written = ready!(Pin::new(writing).poll(cx));
                self.writing = None;
                match written {
                    Ok(bytes) => self.sending = bytes.into(),
                    Err(_) => return Poll::Ready(Some(Err(aborted()))),
                }
                continue;
            }
            match self.ready.take() {
                Some(Chunk::Written(bytes)) => self.sending = bytes.into(),
                Some(Chunk::ToWrite(write)) => self.writing = Some(on_thread(write)),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl<R: Render> Stream for SseBody<R> {
    type Item = Result<Bytes, ApiError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = ready!(this.poll_bytes(cx)) {
                return Poll::Ready(Some(bytes));
            }
            if this.has_ended {
                return Poll::Ready(None);
            }
            if std::mem::take(&mut this.must_yield) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some((index, piece)) = this.pieces.pop_front() {
                this.render_piece(index, piece);
                continue;
            }
            if let Poll::Ready(next) = this.events.poll_next_unpin(cx) {
                match next.map(|(index, event)| (index, Update::of(event))) {
                    Some((index, Ok(update))) => this.enqueue(index, update),
                    Some((_, Err(error))) => this.fail(error),
                    None => this.end(),
                }
                continue;
            }
            ready!(this.keep_alive.as_mut().poll(cx));
            this.render.keep_alive(&mut this.ready);
        }
    }
}
