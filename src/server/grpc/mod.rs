//! The gRPC server: the methods of SGLang's runtime service that Dynamo's sidecar calls, and the methods of SGLang's
//! scheduler service that the gateway smg calls. Needs the feature `grpc`.
//!
//! Both services convert their requests to calls of `/generate`, with the same limits and errors.

mod answer;
mod bundle;
mod call;
mod kv_events;
mod listener;
mod runtime;
mod scheduler;
mod zip;

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use actix_web::web::Data;
use serde_json::json;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::{Code, Request, Status};

use super::error::ApiError;
use super::key;
use super::loads;
use super::state::AppState;
use super::words::Dialect;
use proto::runtime::sglang_service_server::SglangServiceServer;
use proto::scheduler::sglang_scheduler_server::SglangSchedulerServer;
use runtime::Runtime;
use scheduler::Scheduler;

/// Messages and services, generated from the proto files; the clients are for tests.
#[doc(hidden)]
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod proto {
    pub mod runtime {
        tonic::include_proto!("sglang.runtime.v1");
    }

    pub mod scheduler {
        tonic::include_proto!("sglang.grpc.scheduler");
    }
}

const AUTHORIZATION: &str = "authorization";
/// Maximum number of connections; others wait. With the limits below, messages take at most 1 GiB while they are read.
const MAX_CONNECTIONS: usize = 32;
const MAX_STREAMS: u32 = 256;
/// Maximum number of requests of one connection whose messages are being read.
const MAX_READ_AT_ONCE: usize = 8;
/// Time limit for reading a message, and for an answer that is not a stream.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest message: 800,000 tokens of five bytes each.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Serves on `listener` until the server drains and the answers in flight have ended. Runs in the caller's runtime,
/// which may have one thread.
///
/// # Errors
/// The errors of the socket.
pub async fn run(listener: TcpListener, state: Data<AppState>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let incoming = listener::connections(listener, MAX_CONNECTIONS);
    let mut draining = state.drain_signal();
    let drained = async move {
        // An error means that the server's state was dropped.
        let _ = draining.wait_for(|drains| *drains).await;
    };
    let max_bytes = state.config().max_body_bytes.min(MAX_MESSAGE_BYTES);
    let runtime = SglangServiceServer::new(Runtime::new(state.clone()));
    let runtime = runtime.max_decoding_message_size(max_bytes);
    let scheduler = SglangSchedulerServer::new(Scheduler::new(state.clone()));
    let scheduler = scheduler.max_decoding_message_size(max_bytes);
    let guard = Guard { state };
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .concurrency_limit_per_connection(MAX_READ_AT_ONCE)
        .timeout(CALL_TIMEOUT)
        .http2_keepalive_interval(Some(listener::KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(listener::KEEPALIVE_TIMEOUT))
        .add_service(InterceptedService::new(runtime, guard.clone()))
        .add_service(InterceptedService::new(scheduler, guard))
        .serve_with_incoming_shutdown(incoming, drained)
        .await
        .map_err(io::Error::other)
}

/// Passes requests with the API key or the admin key, and all requests if no API key is set.
#[derive(Clone)]
struct Guard {
    state: Data<AppState>,
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        key::verify_bearer(authorization(&request), self.state.config()).map_err(status)?;
        Ok(request)
    }
}

fn authorization<T>(request: &Request<T>) -> Option<&[u8]> {
    let value = request.metadata().get(AUTHORIZATION)?;
    Some(value.to_str().ok()?.as_bytes())
}

/// Refuses requests without the admin key, if one is set.
fn verify_admin<T>(state: &AppState, request: &Request<T>) -> Result<(), Status> {
    key::verify_admin_bearer(authorization(request), state.config()).map_err(status)
}

struct FlushReport {
    /// False if the engine refused because it has requests.
    success: bool,
    /// The engine's report in JSON, or the reason for the refusal.
    message: String,
}

async fn flush(state: &AppState) -> Result<FlushReport, Status> {
    let engine = &state.loaded().map_err(status)?.engine;
    let flushed = engine.flush_cache().await;
    Ok(FlushReport {
        success: flushed.is_ok(),
        message: match flushed {
            Ok(flushed) => json!(flushed).to_string(),
            Err(error) => error.to_string(),
        },
    })
}

fn status(error: ApiError) -> Status {
    let error = error.in_dialect(Dialect::Sglang);
    let code = match error.http_status() {
        401 => Code::Unauthenticated,
        404 => Code::NotFound,
        400..=499 => Code::InvalidArgument,
        503 => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, error.message())
}

/// The named replica; `None` for all.
fn rank_of(rank: Option<i32>, n_ranks: usize) -> Result<Option<usize>, Status> {
    let Some(rank) = rank else {
        return Ok(None);
    };
    match usize::try_from(rank).ok().filter(|rank| *rank < n_ranks) {
        Some(rank) => Ok(Some(rank)),
        None => {
            let bound = loads::bound_of_ranks(n_ranks);
            let text = format!("dp_rank is {rank}, must be {bound}");
            Err(status(ApiError::field("dp_rank", text)))
        }
    }
}

/// Converts a count or a token id to an `int32`. A larger value, which does not occur in practice, is clipped.
fn i32_of(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_base::error::RequestError;

    #[test]
    fn a_rank_is_that_of_a_replica() {
        let read = |rank, n_ranks| {
            let read = rank_of(rank, n_ranks);
            read.map_err(|refusal| (refusal.code(), refusal.message().to_owned()))
        };
        assert_eq!(read(None, 2), Ok(None));
        assert_eq!(read(Some(0), 1), Ok(Some(0)));
        assert_eq!(read(Some(1), 2), Ok(Some(1)));
        for (rank, n_ranks, text) in [
            (1, 1, "dp_rank is 1, must be 0: there is one rank"),
            (2, 2, "dp_rank is 2, must be less than 2"),
            (-1, 2, "dp_rank is -1, must be less than 2"),
        ] {
            let refusal = (Code::InvalidArgument, text.to_owned());
            assert_eq!(read(Some(rank), n_ranks), Err(refusal));
        }
    }

    #[test]
    fn errors_keep_their_message_and_get_a_grpc_code() {
        let wrong = status(ApiError::field("n", "n is 2: send several requests"));
        let found = (wrong.code(), wrong.message());
        assert_eq!(
            found,
            (Code::InvalidArgument, "n is 2: send several requests")
        );
        let wrong_key = status(ApiError::wrong_key(""));
        assert_eq!(wrong_key.code(), Code::Unauthenticated);
        assert_eq!(status(ApiError::loading()).code(), Code::Unavailable);
        let down = RequestError::ShuttingDown;
        assert_eq!(status(down.into()).code(), Code::Unavailable);
    }
}
