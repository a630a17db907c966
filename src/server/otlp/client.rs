//! The exporter's HTTP client: ureq, which blocks the exporter's own thread only.

use std::future::{Future, ready};
use std::io::Read;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// Time for a batch to be sent and answered, the default of OpenTelemetry's specification.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes that are read from a collector's answer. Such answers are short.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Client(Agent);

impl Client {
    pub(super) fn new() -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .build();
        Self(config.into())
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let sent = self.0.run(Request::from_parts(head, body.to_vec()))?;
        let (head, body) = sent.into_parts();
        let mut answer = Vec::new();
        body.into_reader()
            .take(MAX_ANSWER_BYTES)
            .read_to_end(&mut answer)?;
        Ok(Response::from_parts(head, answer.into()))
    }
}

type SendFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> SendFuture<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(ready(self.send(request)))
    }
}
