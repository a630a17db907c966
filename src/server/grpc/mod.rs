//! gRPC: the part of SGLang's runtime service that Dynamo's sidecar calls. Behind the feature `grpc`.
//!
//! It reads what it is asked as a call of `/generate`, with the same limits and errors, and has no state of its own.

mod call;
mod runtime;

use std::io;
use std::net::TcpListener;

use actix_web::web::Data;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Status};

use super::error::ApiError;
use super::key;
use super::state::AppState;
use proto::sglang_service_server::SglangServiceServer;
use runtime::Runtime;

/// Messages and service, generated from `runtime.proto`; the client is for tests.
#[doc(hidden)]
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod proto {
    tonic::include_proto!("sglang.runtime.v1");
}

/// The header of the key.
const AUTHORIZATION: &str = "authorization";
/// Requests that one connection has under way at most.
const MAX_STREAMS: u32 = 1024;

/// Serves on `listener` until the state drains and the answers under way have ended. Runs in the caller's runtime,
/// which may have one thread.
///
/// # Errors
/// Those of the socket.
pub async fn run(listener: TcpListener, state: Data<AppState>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut draining = state.drain_signal();
    let drained = async move {
        // An error means that the state is gone.
        let _ = draining.wait_for(|drains| *drains).await;
    };
    let max_bytes = state.config().max_body_bytes;
    let service = SglangServiceServer::new(Runtime::new(state.clone()));
    let service = service.max_decoding_message_size(max_bytes);
    let guarded = InterceptedService::new(service, Guard { state });
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .serve_with_incoming_shutdown(guarded, incoming, drained)
        .await
        .map_err(io::Error::other)
}

/// Lets requests through that show the key, and all of them where there is none.
#[derive(Clone)]
struct Guard {
    state: Data<AppState>,
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        key::judge_bearer(shown(&request), self.state.config()).map_err(status)?;
        Ok(request)
    }
}

/// What a request shows as its key.
fn shown<T>(request: &Request<T>) -> Option<&[u8]> {
    let value = request.metadata().get(AUTHORIZATION)?;
    Some(value.to_str().ok()?.as_bytes())
}

/// An error of the HTTP endpoints, as gRPC tells it.
fn status(error: ApiError) -> Status {
    let code = match error.http_status() {
        401 => Code::Unauthenticated,
        404 => Code::NotFound,
        400..=499 => Code::InvalidArgument,
        503 => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, error.message())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RequestError;

    #[test]
    fn errors_keep_their_words_and_get_the_code_of_their_status() {
        let wrong = status(ApiError::field("n", "n is 2: send several requests"));
        let told = (wrong.code(), wrong.message());
        assert_eq!(
            told,
            (Code::InvalidArgument, "n is 2: send several requests")
        );
        assert_eq!(status(ApiError::wrong_key()).code(), Code::Unauthenticated);
        assert_eq!(status(ApiError::loading()).code(), Code::Unavailable);
        let down = RequestError::ShuttingDown;
        assert_eq!(status(down.into()).code(), Code::Unavailable);
    }
}
