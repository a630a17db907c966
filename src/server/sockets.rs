//! Listens as actix-web's `HttpServer` does, and closes connections whose clients do not read.
//!
//! The HTTP/1 dispatcher waits for a blocked write without a limit and does not poll the body meanwhile, so neither a
//! body nor a handler can detect a stall. So the stream between the dispatcher and the socket has a write timeout.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use actix_http::{HttpService, Protocol, Request, Response};
use actix_server::Server;
use actix_service::{
    IntoServiceFactory, ServiceFactory, ServiceFactoryExt, fn_service, map_config,
};
use actix_web::body::MessageBody;
use actix_web::dev::AppConfig;
use actix_web::rt::net::TcpStream;
use tokio_io_timeout::TimeoutStream;

use super::config::ServerConfig;
use super::late_heads::TagTimeouts;

/// Seconds at shutdown for the last bytes to reach slow clients, and for idle connections to close.
const FLUSH_S: u64 = 2;
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A server of `app` on `listener`, to be awaited or spawned. Errors are those of the socket.
pub(super) fn listen<F, A, S, B>(
    app: F,
    listener: TcpListener,
    config: &ServerConfig,
) -> io::Result<Server>
where
    F: Fn() -> A + Send + Clone + 'static,
    A: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<actix_web::Error> + 'static,
    S::InitError: fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    B: MessageBody + 'static,
{
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let keep_alive = seconds(config.keep_alive_s);
    let header_timeout = seconds(config.header_timeout_s);
    let send_timeout = seconds(config.http_send_timeout_s);
    let access_log = config.access_log;
    let address = listener.local_addr()?;
    let builder = Server::build()
        .workers(config.worker_threads())
        .shutdown_timeout(FLUSH_S)
        .disable_signals();
    let draining = builder.graceful_shutdown_signal();
    let serve = move || {
        let draining = draining.clone();
        let app = app().into_factory();
        let app = app.map_err(|error| error.into().error_response());
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let draining = draining.clone();
                async move { draining.notified().await }
            })
            .keep_alive(keep_alive)
            .client_request_timeout(header_timeout)
            .client_disconnect_timeout(DISCONNECT_TIMEOUT)
            // A client that closes its side of the connection counts as gone: its requests are cancelled.
            .h1_allow_half_closed(false)
            .local_addr(address)
            .finish(map_config(app, |()| AppConfig::default()));
        fn_service(move |socket: TcpStream| async move {
            let client = socket.peer_addr().ok();
            let mut limited = TimeoutStream::new(socket);
            limited.set_write_timeout(Some(send_timeout));
            // Adds the request id to the dispatcher's own 408 and logs it.
            let stream = TagTimeouts::new(Box::pin(limited), client, access_log);
            Ok((stream, Protocol::Http1, client))
        })
        .and_then(http)
    };
    let server = builder.listen("http", listener, serve)?;
    Ok(server.run())
}
