//! The server's configuration.

use serde::{Deserialize, Serialize};

use super::key::ApiKey;
use crate::error::ConfigError;

/// Each is a thread with a runtime of its own.
const MAX_WORKERS: usize = 256;
/// Each is a request with a stream of its own.
const MAX_BATCH_REQUESTS: usize = 1 << 16;

/// Everything that decides how the server listens and what it takes. `config/default.toml` says the same with
/// reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to listen on.
    pub host: String,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// What clients must show as `Authorization: Bearer <key>`; no key is asked for when absent. `/health`, `/ready`,
    /// `/health_generate` and `/metrics` never ask for it.
    pub api_key: Option<ApiKey>,
    /// Threads that parse requests and write responses; 0 takes one a core, at most 4.
    pub workers: usize,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Most prompts times samples of one request.
    pub max_batch_requests: usize,
    /// Seconds for a request's headers to arrive.
    pub header_timeout_s: u32,
    /// Seconds for a request's body to arrive.
    pub body_timeout_s: u32,
    /// Seconds that an idle connection is kept.
    pub keep_alive_s: u32,
    /// Seconds without an event after which a stream gets a comment, so that proxies keep it.
    pub sse_keep_alive_s: u32,
    /// Seconds that `/health_generate` waits for a token.
    pub health_generate_timeout_s: u32,
    /// Seconds that running requests may go on once the server is told to stop.
    pub shutdown_deadline_s: u32,
    /// Origins whose pages may open a WebSocket besides the server's own, for instance `https://chat.example`;
    /// `*` stands for all.
    pub allowed_origins: Vec<String>,
    /// Most WebSockets at once.
    pub ws_max_connections: usize,
    /// Most requests under way on one WebSocket.
    pub ws_max_requests: usize,
    /// Largest message that a WebSocket takes, in bytes.
    pub ws_max_frame_bytes: usize,
    /// Seconds between pings; a client that misses two is gone.
    pub ws_ping_interval_s: u32,
    /// Seconds that writing one message to a WebSocket may take.
    pub ws_send_timeout_s: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30000,
            api_key: None,
            workers: 0,
            max_body_bytes: 16 << 20,
            max_batch_requests: 1024,
            header_timeout_s: 10,
            body_timeout_s: 30,
            keep_alive_s: 75,
            sse_keep_alive_s: 15,
            health_generate_timeout_s: 20,
            shutdown_deadline_s: 30,
            allowed_origins: Vec::new(),
            ws_max_connections: 1024,
            ws_max_requests: 64,
            ws_max_frame_bytes: 1 << 20,
            ws_ping_interval_s: 20,
            ws_send_timeout_s: 10,
        }
    }
}

impl ServerConfig {
    /// Checks every value against its limits.
    ///
    /// # Errors
    /// Names the first key that is out of range, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least_one = [
            ("max_body_bytes", self.max_body_bytes),
            ("max_batch_requests", self.max_batch_requests),
            ("header_timeout_s", self.header_timeout_s as usize),
            ("body_timeout_s", self.body_timeout_s as usize),
            ("sse_keep_alive_s", self.sse_keep_alive_s as usize),
            (
                "health_generate_timeout_s",
                self.health_generate_timeout_s as usize,
            ),
            ("ws_max_requests", self.ws_max_requests),
            ("ws_max_frame_bytes", self.ws_max_frame_bytes),
            ("ws_ping_interval_s", self.ws_ping_interval_s as usize),
            ("ws_send_timeout_s", self.ws_send_timeout_s as usize),
        ];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(out_of_range(key, "is 0, must be at least 1".to_owned()));
        }
        let at_most = [
            ("workers", self.workers, MAX_WORKERS),
            (
                "max_batch_requests",
                self.max_batch_requests,
                MAX_BATCH_REQUESTS,
            ),
        ];
        match at_most.into_iter().find(|(_, value, limit)| value > limit) {
            None => Ok(()),
            Some((key, value, limit)) => {
                let reason = format!("is {value}, must be at most {limit}");
                Err(out_of_range(key, reason))
            }
        }
    }

    /// Worker threads to start.
    pub(super) fn worker_threads(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
            workers => workers,
        }
    }
}

fn out_of_range(key: &str, reason: String) -> ConfigError {
    ConfigError {
        key: key.to_owned(),
        reason,
    }
}
