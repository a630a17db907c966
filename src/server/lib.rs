//! The HTTP, WebSocket and gRPC server of an engine, with the APIs of SGLang, OpenAI, Anthropic, Ollama and, for
//! editors, llama.cpp.
//!
//! [`routes`] mounts all endpoints into an actix-web app; [`run`] runs a complete server on a listener.
//! The server holds no engine state: it parses requests, sends them to the engine and writes their events to clients.
//! When a client disconnects, its handler or response body is dropped, which cancels its request. The crate installs
//! neither signal handlers nor a metrics recorder.

mod abort;
mod answers;
mod anthropic;
mod api_key;
mod body;
mod budget;
mod build_info;
mod cached;
mod call;
mod config;
mod console;
mod constraint;
mod debug;
mod digits;
mod encode;
mod encode_gate;
mod endpoint;
mod endpoints;
mod error;
mod exchange;
mod fields;
mod files;
mod flush;
mod foreign;
mod generate;
#[cfg(feature = "grpc")]
pub mod grpc;
mod guard;
mod health;
mod images;
mod internal_state;
mod key;
mod lanes;
mod late_heads;
mod line_limit;
mod live;
mod llama_cpp;
mod loads;
mod methods;
mod mount;
mod native;
mod ollama;
mod open_requests;
mod openai;
mod openapi;
mod options;
#[cfg(feature = "otlp")]
pub mod otlp;
mod pause;
mod policy;
mod probe;
mod raw;
mod rerank;
mod score;
mod scoring;
mod sessions;
mod sockets;
mod spelling;
mod sse;
mod state;
mod table;
mod tokenize;
mod traces;
mod track;
mod transcript;
mod whole;
mod words;
mod ws;

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use actix_web::App;
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data};

pub use api_key::ApiKey;
pub use build_info::BuildInfo;
pub use config::{ImageFallback, ReasoningField, ServerConfig};
pub use error::ApiError;

pub use state::{AppState, EngineSlot, RenderMetrics};
pub use traces::{CallEnd, CallStart, Outcome, RequestTrace, Trace, Traces, Wish};

/// Mounts all endpoints. Health checks, `/metrics`, the API documentation and the files of the web console need no
/// key. Every endpoint refuses requests from web pages of other sites and requests for unknown hosts, unless the
/// configuration allows them; other sites may link to the console and to the documentation's page.
///
/// The app or scope needs a `web::Data<AppState>`, and its `HttpServer` needs `h1_allow_half_closed(false)`: with
/// actix's default, a client's disconnect is not detected. Only [`run`] closes connections whose clients stop reading
/// (`http_send_timeout_s`).
pub fn routes(cfg: &mut web::ServiceConfig) {
    for endpoint in endpoints::all() {
        endpoint.mount(cfg);
    }
}

/// Serves on `listener` until `shutdown` completes, then drains: `/ready` answers 503, new requests are refused, the
/// engine in the state's slot is shut down once its requests have ended or the configured deadline has passed, and
/// the last responses are sent. Runs in the caller's actix System.
///
/// # Errors
/// The errors of the socket.
pub async fn run(
    listener: TcpListener,
    state: Data<AppState>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let config = state.config();
    let app_state = state.clone();
    let app = move || {
        let fallback = web::to(error::not_found).wrap(from_fn(guard::check));
        let fallback = fallback.wrap(from_fn(ollama::adapt_unknown));
        let fallback = fallback.wrap(from_fn(track::track));
        App::new()
            .app_data(app_state.clone())
            .configure(routes)
            .default_service(fallback)
    };
    let server = sockets::listen(app, listener, config)?;
    let handle = server.handle();
    let serving = actix_web::rt::spawn(server);
    tokio::select! {
        () = shutdown => (),
        // The sockets failed, so there is nothing to drain.
        ended = serving => return ended.unwrap_or_else(|error| Err(io::Error::other(error))),
    }
    state.drain();
    if let Some(engine) = state.slot().engine() {
        engine
            .shutdown(Duration::from_secs(config.shutdown_deadline_s.into()))
            .await;
    }
    state.viewers().end();
    handle.stop(true).await;
    Ok(())
}
