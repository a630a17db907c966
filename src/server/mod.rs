//! HTTP and WebSocket in front of an engine: SGLang's native API, OpenAI's, Anthropic's, and a WebSocket of our own.
//!
//! [`routes`] mounts everything into a host's actix-web app; [`run`] is a whole server on a socket of the caller's.
//! The server holds no engine state: it reads requests, sends them in and writes their events out. A client that
//! disappears drops the handler or the body, which drops the request, which cancels it. Nothing here touches signal
//! handlers or installs a metrics recorder.

mod abort;
mod answers;
mod anthropic;
mod body;
mod budget;
mod cached;
mod call;
mod config;
mod constraint;
mod debug;
mod digits;
mod encode;
mod endpoints;
mod error;
mod exchange;
mod fields;
mod flush;
mod foreign;
mod generate;
#[cfg(feature = "grpc")]
pub mod grpc;
mod guard;
mod health;
mod internal_state;
mod key;
mod lanes;
mod late_heads;
mod loads;
mod methods;
mod native;
mod open_requests;
mod openai;
mod openapi;
#[cfg(feature = "otlp")]
pub mod otlp;
mod pause;
mod policy;
mod probe;
mod raw;
mod score;
mod sessions;
mod sockets;
mod spelling;
mod sse;
mod state;
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

use actix_web::dev::Handler;
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data};
use actix_web::{App, FromRequest, HttpRequest, Responder};

pub use config::{ReasoningField, ServerConfig};
pub use error::ApiError;
pub use key::ApiKey;
pub use state::{AppState, EngineSlot, RenderMetrics};
pub use traces::{CallEnd, CallStart, Outcome, RequestTrace, Trace, Traces, Wish};

/// Mounts all endpoints. Those that probes and Prometheus ask need no key. Pages of other sites and hosts that are not
/// the server's own are refused on all of them, as the state's configuration says.
///
/// The app or scope needs a `web::Data<AppState>`, and its `HttpServer` needs `h1_allow_half_closed(false)`: with
/// actix's default a client that disappears is not noticed. A client that takes no bytes is noticed by [`run`] only,
/// whose connections have `http_send_timeout_s`.
pub fn routes(cfg: &mut web::ServiceConfig) {
    for endpoint in endpoints::all() {
        endpoint.mount(cfg);
    }
}

fn get<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    closed(cfg, resource(path, web::get().to(handler), "GET, HEAD"));
}

/// As [`get`], without a key.
fn open<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let resource = resource(path, web::get().to(handler), "GET, HEAD").wrap(guard::cors());
    let resource = resource.wrap(from_fn(guard::check));
    let resource = resource.wrap(from_fn(methods::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

fn post<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler).wrap(from_fn(guard::takes_json));
    closed(cfg, resource(path, route, "POST"));
}

/// As [`post`], for Anthropic's clients: errors have their form, and answers an id.
fn post_anthropic<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler).wrap(from_fn(guard::takes_json));
    let resource = resource(path, route, "POST").wrap(from_fn(key::check));
    let resource = resource
        .wrap(guard::cors())
        .wrap(from_fn(guard::check))
        .wrap(from_fn(methods::adapt));
    let resource = resource.wrap(from_fn(anthropic::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

/// As [`post`], for what changes the server for everybody: it asks for the admin's key, if the server has one.
fn post_admin<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler).wrap(from_fn(guard::takes_json));
    let route = route.wrap(from_fn(key::check_admin));
    closed(cfg, resource(path, route, "POST"));
}

/// As [`post_admin`], and PUT does the same, as SGLang has it.
fn set_admin<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = |route: actix_web::Route| {
        let route = route.to(handler.clone()).wrap(from_fn(guard::takes_json));
        route.wrap(from_fn(key::check_admin))
    };
    let put = route(web::put());
    closed(
        cfg,
        resource(path, route(web::post()), "POST, PUT").route(put),
    );
}

/// Mounts what asks for the key, if the server has one. The wrap that comes last sees a request first: what is refused
/// is tracked too, preflights need no key, and a page may read why its key was refused.
fn closed(cfg: &mut web::ServiceConfig, resource: actix_web::Resource) {
    let resource = resource.wrap(from_fn(key::check)).wrap(guard::cors());
    let resource = resource.wrap(from_fn(guard::check));
    let resource = resource.wrap(from_fn(methods::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

fn resource(path: &str, route: actix_web::Route, allow: &'static str) -> actix_web::Resource {
    let refuse = move |request: HttpRequest| async move {
        Err::<&str, ApiError>(error::method_not_allowed(&request, allow))
    };
    // Queries that cannot be read get an error in the form of all others.
    let queries = web::QueryConfig::default()
        .error_handler(|error, _| ApiError::invalid(format!("the query: {error}")).into());
    web::resource(path)
        .app_data(queries)
        .route(route)
        .default_service(web::to(refuse))
}

/// Serves on `listener` until `shutdown` completes, then drains: `/ready` turns 503, new requests are refused, the
/// engine in the state's slot is shut down once its requests have ended or the configured deadline has passed, and
/// the last responses go out. Runs in the caller's actix System.
///
/// # Errors
/// Those of the socket.
pub async fn run(
    listener: TcpListener,
    state: Data<AppState>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let config = state.config();
    let app_state = state.clone();
    let app = move || {
        let fallback = web::to(error::not_found).wrap(from_fn(guard::check));
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
        // The sockets failed: there is nothing to drain.
        ended = serving => return ended.unwrap_or_else(|error| Err(io::Error::other(error))),
    }
    state.drain();
    if let Some(engine) = state.slot().engine() {
        engine
            .shutdown(Duration::from_secs(config.shutdown_deadline_s.into()))
            .await;
    }
    handle.stop(true).await;
    Ok(())
}
