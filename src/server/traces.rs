//! The trait for traces of requests, which hosts can implement; the feature `otlp` has an implementation.
//!
//! Calls come after the events, on the server's workers, with the noted times: neither the scheduler nor the executor
//! knows of them. An implementation must not block.

use std::net::SocketAddr;
use std::time::Instant;

use crate::request::{Finished, GenerateRequest};

/// Makes traces.
pub trait Traces: Send + Sync {
    /// An HTTP request has arrived.
    fn begin(&self, call: &CallStart<'_>) -> Box<dyn Trace>;
}

/// The trace of one HTTP request.
pub trait Trace: Send + Sync {
    /// A request that it has in the engine has ended.
    fn request_ended(&self, request: &RequestTrace<'_>);

    /// Its answer has ended.
    fn end(&self, call: &CallEnd);
}

/// An HTTP request that begins.
#[derive(Clone, Copy, Debug)]
pub struct CallStart<'a> {
    /// The method.
    pub method: &'a str,
    /// The route, with the names of its variables; none if there is no such route.
    pub route: Option<&'a str>,
    /// The id that its answer carries.
    pub request_id: &'a str,
    /// W3C's header, as it came.
    pub traceparent: Option<&'a str>,
    /// W3C's other header.
    pub tracestate: Option<&'a str>,
}

/// An HTTP request that has ended.
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

/// A request of the engine that has ended.
#[derive(Clone, Copy, Debug)]
pub struct RequestTrace<'a> {
    /// Its id in the engine.
    pub rid: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// The route of its HTTP request.
    pub path: &'a str,
    /// The request.
    pub wish: &'a Wish,
    /// When it was sent to the engine.
    pub opened: Instant,
    /// When its first events came to the server.
    pub first_news: Option<Instant>,
    /// When the server knew of its end.
    pub ended: Instant,
    /// How it ended.
    pub outcome: Outcome<'a>,
}

/// The parameters of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// Most tokens of its output.
    pub max_new_tokens: u32,
    /// Temperature.
    pub temperature: f64,
    /// Nucleus.
    pub top_p: f64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// By itself, or cancelled. Counts and moments are those of the engine.
    Ended(&'a Finished),
    /// With an error of this code.
    Failed(&'static str),
    /// Its client left before.
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
