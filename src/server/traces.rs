//! The traits that receive request traces. The feature `otlp` implements them; embedding programs can too.
//!
//! The server's workers call the methods after the events, with the recorded times: neither the scheduler nor the
//! executor is involved. An implementation must not block.

use std::net::SocketAddr;
use std::time::Instant;

use souffleur_request::{Finished, GenerateRequest};

pub trait Traces: Send + Sync {
    fn begin(&self, call: &CallStart<'_>) -> Box<dyn Trace>;
}

pub trait Trace: Send + Sync {
    fn request_ended(&self, request: &RequestTrace<'_>);

    fn end(&self, call: &CallEnd);
}

#[derive(Clone, Copy, Debug)]
pub struct CallStart<'a> {
    pub method: &'a str,
    /// The pattern of the route, with the names of its variables; `None` if no route matches.
    pub route: Option<&'a str>,
    pub request_id: &'a str,
    /// The W3C header as the client sent it.
    pub traceparent: Option<&'a str>,
    pub tracestate: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
pub struct CallEnd {
    /// The HTTP status; `None` if the client disconnected before the answer began.
    pub status: Option<u16>,
    /// Bytes of the body that the connection accepted.
    pub bytes: u64,
    /// The connection accepted the whole body; otherwise the client disconnected.
    pub is_whole: bool,
    /// The address of the client, or of the proxy in front of the server.
    pub client: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug)]
pub struct RequestTrace<'a> {
    pub rid: &'a str,
    pub model: &'a str,
    pub path: &'a str,
    pub wish: &'a Wish,
    pub opened: Instant,
    /// When the server received the request's first events.
    pub first_event: Option<Instant>,
    pub ended: Instant,
    pub outcome: Outcome<'a>,
}

/// The sampling parameters of a request that traces show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    pub max_new_tokens: u32,
    pub temperature: f64,
    pub top_p: f64,
}

#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The request finished or was cancelled. Counts and times are those of the engine.
    Ended(&'a Finished),
    /// The request failed with an error of this code.
    Failed(&'static str),
    ClientLeft,
}

impl Wish {
    pub(super) fn of(request: &GenerateRequest) -> Self {
        let sampling = &request.sampling;
        Self {
            max_new_tokens: sampling.max_new_tokens,
            temperature: sampling.temperature.into(),
            top_p: sampling.top_p.into(),
        }
    }
}
