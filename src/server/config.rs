//! The server's configuration.

use actix_web::http::uri::Authority;
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
    /// Key that clients must send as `Authorization: Bearer <key>`; without it everybody is served. `/health`, `/ready`,
    /// `/health_generate` and `/metrics` never need it.
    pub api_key: Option<ApiKey>,
    /// Key of an admin, sent in the same header: it opens every route, and it alone the full `/debug/prefix`,
    /// `/set_policy`, `/flush_cache` and the `abort_all` of `/abort_request`. Without it nobody gets the full report and
    /// every client may use the others.
    pub admin_api_key: Option<ApiKey>,
    /// Threads that parse requests and write responses; 0 takes one a core, at most 4.
    pub workers: usize,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Most prompts times samples of one request.
    pub max_batch_requests: usize,
    /// Bytes that all request bodies together may take while they are received and parsed.
    pub max_bodies_bytes: usize,
    /// Bytes that prompts' log probabilities of all answers together may take, from the request until the client has
    /// taken them.
    pub max_answers_bytes: usize,
    /// Most JSON values in the messages, template arguments and other free objects of one request body.
    pub max_body_values: usize,
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
    /// Origins whose pages may ask, on every route and by WebSocket, besides the server's own: for instance
    /// `https://chat.example`; `*` stands for all.
    pub allowed_origins: Vec<String>,
    /// Names that the server may be asked under while it has no API key, besides IP addresses, `localhost` and `host`:
    /// with a port or for any; `*` stands for all.
    pub allowed_hosts: Vec<String>,
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
    /// Seconds after which a connection ends whose client takes no byte of what is written to it.
    pub http_send_timeout_s: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30000,
            api_key: None,
            admin_api_key: None,
            workers: 0,
            max_body_bytes: 16 << 20,
            max_batch_requests: 1024,
            max_bodies_bytes: 256 << 20,
            max_answers_bytes: 256 << 20,
            max_body_values: 1 << 16,
            header_timeout_s: 10,
            body_timeout_s: 30,
            keep_alive_s: 75,
            sse_keep_alive_s: 15,
            health_generate_timeout_s: 20,
            shutdown_deadline_s: 30,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            ws_max_connections: 1024,
            ws_max_requests: 64,
            ws_max_frame_bytes: 1 << 20,
            ws_ping_interval_s: 20,
            ws_send_timeout_s: 10,
            http_send_timeout_s: 30,
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
            ("max_answers_bytes", self.max_answers_bytes),
            ("max_body_values", self.max_body_values),
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
            ("http_send_timeout_s", self.http_send_timeout_s as usize),
        ];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(out_of_range(key, "is 0, must be at least 1".to_owned()));
        }
        let (bodies, least) = (self.max_bodies_bytes, self.max_body_bytes.saturating_mul(4));
        if bodies < least {
            let reason =
                format!("is {bodies}, must be at least four times max_body_bytes: {least}");
            return Err(out_of_range("max_bodies_bytes", reason));
        }
        let at_most = [
            ("workers", self.workers, MAX_WORKERS),
            (
                "max_batch_requests",
                self.max_batch_requests,
                MAX_BATCH_REQUESTS,
            ),
        ];
        if let Some((key, value, limit)) =
            at_most.into_iter().find(|(_, value, limit)| value > limit)
        {
            let reason = format!("is {value}, must be at most {limit}");
            return Err(out_of_range(key, reason));
        }
        self.validate_guards()
    }

    fn validate_guards(&self) -> Result<(), ConfigError> {
        let is_origin = |origin: &str| {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_some_and(is_host) || origin == "*"
        };
        if let Some(origin) = self
            .allowed_origins
            .iter()
            .find(|origin| !is_origin(origin))
        {
            let reason = format!("holds {origin:?}, must be https://name, https://name:port or *");
            return Err(out_of_range("allowed_origins", reason));
        }
        let is_name = |host: &&String| !is_host(host) && *host != "*";
        if let Some(host) = self.allowed_hosts.iter().find(is_name) {
            let reason = format!("holds {host:?}, must be a name, name:port or *");
            return Err(out_of_range("allowed_hosts", reason));
        }
        if self.admin_api_key.is_some() && self.admin_api_key == self.api_key {
            let reason = "is that of api_key: every client would be an admin, choose another";
            return Err(out_of_range("admin_api_key", reason.to_owned()));
        }
        Ok(())
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
    let key = key.to_owned();
    ConfigError { key, reason }
}

/// True for a host with or without a port, and nothing else.
fn is_host(text: &str) -> bool {
    !text.contains('@') && Authority::try_from(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(configure: impl FnOnce(&mut ServerConfig), expected: Option<(&str, &str)>) {
        let mut config = ServerConfig::default();
        configure(&mut config);
        let error = config.validate().err();
        match (error, expected) {
            (None, None) => (),
            (Some(error), Some((key, part))) => {
                assert_eq!(error.key, key);
                assert!(error.reason.contains(part), "{}", error.reason);
            }
            (error, expected) => panic!("{error:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn origins_hosts_and_keys_that_would_guard_nothing_are_refused() {
        let origins = |list: &[&str]| list.iter().map(|origin| (*origin).to_owned()).collect();
        let good = origins(&["*", "https://chat.example", "http://[::1]:5173"]);
        check(|config| config.allowed_origins = good, None);
        for bad in [
            "chat.example",
            "https://chat.example/",
            "https://",
            "null",
            "",
        ] {
            let list = origins(&[bad]);
            let expected = Some(("allowed_origins", "https://name"));
            check(|config| config.allowed_origins = list, expected);
        }
        let good = origins(&["*", "souffleur", "souffleur:30000", "[::1]"]);
        check(|config| config.allowed_hosts = good, None);
        for bad in ["http://souffleur", "souffleur/", "a@b", ""] {
            let list = origins(&[bad]);
            check(
                |config| config.allowed_hosts = list,
                Some(("allowed_hosts", "a name")),
            );
        }
        let key = |key| ApiKey::new(key).ok();
        let same = |config: &mut ServerConfig| {
            (config.api_key, config.admin_api_key) = (key("sk-1"), key("sk-1"));
        };
        check(same, Some(("admin_api_key", "that of api_key")));
        let other = |config: &mut ServerConfig| {
            (config.api_key, config.admin_api_key) = (key("sk-1"), key("sk-2"));
        };
        check(other, None);
    }
}
