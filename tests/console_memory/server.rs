//! A server with small buffers in its sockets, and a small engine that replies by a script.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix_web::web::Data;
use serde_json::json;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle};
use souffleur::server::{self, AppState, EngineSlot, ServerConfig};
use souffleur::state::scheduler::stats::EngineStats;
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use crate::http::post;
use crate::scripted;

const TIMEOUT: Duration = Duration::from_secs(60);
/// A stalled client's events fill such buffers in some frames; the default ones of a local connection take megabytes.
const SOCKET_BYTES: u32 = 16 << 10;
/// The load evicts, so the size of the tree stays the same.
const POOL_TOKENS: usize = 3500;
const PROMPTS: u64 = 600;
const OUTPUT_TOKENS: u32 = 24;

pub struct Server {
    pub addr: SocketAddr,
    state: Data<AppState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    pub fn start() -> Self {
        let config = ServerConfig {
            http_send_timeout_s: 600,
            ..ServerConfig::default()
        };
        // Without a recorder, the metrics take no memory.
        let state = AppState::new(config, EngineSlot::default(), Arc::new(String::new));
        let state = Data::new(state);
        let listener = listener().expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let server_state = state.clone();
        let serve = move || {
            let stopped = async { drop(stopped.await) };
            actix_web::rt::System::new().block_on(server::run(listener, server_state, stopped))
        };
        let thread = Some(std::thread::spawn(serve));
        state.slot().fill(engine());
        Self {
            addr,
            state,
            stop: Some(stop),
            thread,
        }
    }

    fn engine(&self) -> &EngineHandle {
        self.state.slot().engine().expect("the engine is loaded")
    }

    pub fn stats(&self) -> EngineStats {
        let stats = block_on(self.engine().stats());
        stats.unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    pub fn wait_until_idle(&self) {
        wait_until("the engine is idle", || {
            self.stats().is_idle_and_whole() && self.engine().requests_inside() == 0
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            let ended = ended.expect("the server is joined once");
            ended
                .expect("the server does not panic")
                .expect("no I/O error");
        }
    }
}

fn engine() -> EngineHandle {
    let config = EngineConfig {
        model_path: scripted::checkpoint(),
        served_model_name: Some("scripted".to_owned()),
        max_total_tokens: Some(POOL_TOKENS),
        max_running_requests: Some(32),
        // It remembers evicted pages, more of them with every request.
        prefix_diagnostics: false,
        ..EngineConfig::default()
    };
    let parts = scripted::parts_replying(&config, |_| "One two three four five six.".to_owned());
    Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"))
}

/// Accepted connections inherit the size of the listener's buffers.
fn listener() -> io::Result<TcpListener> {
    block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_send_buffer_size(SOCKET_BYTES)?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        socket.listen(64)?.into_std()
    })
}

/// A connection that takes few bytes while its owner does not read.
pub fn connect_narrowly(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(SOCKET_BYTES)?;
        socket.connect(addr).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Requests whose prompts share prefixes, the same ones again and again.
#[derive(Default)]
pub struct Load {
    n_sent: u64,
}

impl Load {
    pub fn send(&mut self, server: &Server, n_requests: usize) {
        for _ in 0..n_requests {
            let bits = (self.n_sent % PROMPTS + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.n_sent += 1;
            let length = 8 + bits % 17;
            let token = |at: u64| 40 + ((bits >> (20 + at)) & 1);
            let prompt: Vec<u64> = (0..length).map(token).collect();
            let call = json!({
                "input_ids": prompt,
                "sampling_params": {
                    "max_new_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": true,
                },
            });
            post(server.addr, "/generate", &call).ok();
        }
    }
}

#[track_caller]
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "timed out before {what}");
        std::thread::yield_now();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be built").block_on(future)
}
