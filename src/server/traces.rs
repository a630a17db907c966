//! The trait for traces of requests, which hosts can implement; the feature `otlp` has an implementation.
//!
//! Calls come after the events, on the server's workers, with the noted times: neither the scheduler nor the executor
//! knows of them. An implementation must not block.

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
    /// The route, with the names of its variables; none if there is no such route.
    pub route: Option<&'a str>,
    pub request_id: &'a str,
    /// W3C's header, as it came.
    pub traceparent: Option<&'a str>,
    pub tracestate: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
pub struct CallEnd {
    /// The status; none if the client left before there was one.
    pub status: Option<u16>,
    /// Bytes of the body that the connection took.
    pub bytes: u64,
    /// The connection took all of the body; otherwise the client left.
    pub is_whole: bool,
    /// The address of the client, or of the proxy before it.
    pub client: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug)]
pub struct RequestTrace<'a> {
    pub rid: &'a str,
    pub model: &'a str,
    pub path: &'a str,
    pub wish: &'a Wish,
    pub opened: Instant,
    /// When its first events came to the server.
    pub first_news: Option<Instant>,
    pub ended: Instant,
    pub outcome: Outcome<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    pub max_new_tokens: u32,
    pub temperature: f64,
    pub top_p: f64,
}

#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// By itself, or cancelled. Counts and moments are those of the engine.
    Ended(&'a Finished),
    /// With an error of this code.
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
