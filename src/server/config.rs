//! The server's configuration.

use std::net::IpAddr;

use actix_web::http::Uri;
use actix_web::http::uri::Authority;
use serde::{Deserialize, Serialize};

use super::api_key::ApiKey;
use souffleur_base::error::ConfigError;
use souffleur_config::keys;
use souffleur_config::keys::{Flag, Form, KeyType, out_of_range};
use souffleur_media::AllowedDomains;

/// Limit of `workers`: each worker is a thread with its own runtime.
const MAX_WORKERS: usize = 256;
/// Limit of `max_batch_requests`: each prompt or sample of a batch is a request with its own stream.
const MAX_BATCH_REQUESTS: usize = 1 << 16;

/// Limit of `max_images`: the most images of a prompt.
const MAX_IMAGES: usize = 1024;

/// Limit of `responses_max_count`: each response has an entry in an index, regardless of its size.
const MAX_RESPONSES: usize = 1 << 20;

/// Limit of `sessions_max_count`: each session has an entry in an index.
const MAX_SESSIONS: usize = 1 << 16;

/// Limit of `ws_lanes` and `ws_active_lanes`: each lane has an entry in a map of its connection.
const MAX_LANES: usize = 1 << 12;

/// Routes that are polled too often for the access log.
const PROBES: [&str; 4] = ["/health", "/health_generate", "/ready", "/metrics"];

const SERVER: Flag = Flag::under("Server");
const RARE: Flag = SERVER.rare();
const WEBSOCKET: Flag = Flag::under("WebSocket").rare();

keys! {
    /// The server's settings: where it listens, its keys and its limits. `config/default.toml` lists them with reasons.
    pub struct ServerConfig {
        /// Address to listen on.
        #[flag(SERVER.takes("ADDRESS"))]
        host: String = "127.0.0.1".to_owned(),
        /// Whether `--chaos` may inject faults although `--host` is not a loopback address.
        #[flag(RARE)]
        chaos_force: bool = false,
        /// TCP port; 0 picks a free one.
        #[flag(SERVER)]
        port: u16 = 30000,
        /// TCP port of the gRPC services that Dynamo's sidecar and smg call, on the same address; 0 picks a free one.
        /// Needs a build with the feature `grpc`.
        #[flag(SERVER.takes("PORT"))]
        grpc_port: Option<u16> = None,
        /// Key that clients must send as `Authorization: Bearer KEY` or `x-api-key: KEY`; set it through the environment
        /// variable SOUFFLEUR_API_KEY to keep it out of the process list.
        ///
        /// Without a key the server accepts every client. /health, /health_generate, /ready, /metrics, /openapi.json,
        /// /docs, / and the files of the console never need it.
        #[flag(SERVER.takes("KEY"))]
        api_key: Option<ApiKey> = None,
        /// Admin key, sent in the same header as `--api-key`; only this key opens the full report of /debug/prefix,
        /// /debug/actors, /debug/engine, /debug/requests, /console/live, /set_policy, /flush_cache, /pause_generation,
        /// /continue_generation, /open_session, /close_session, /set_internal_state and abort_all of /abort_request.
        ///
        /// It also opens every other route. If it is not set, no client gets the full report of /debug/prefix, and
        /// every client may use the others.
        #[flag(SERVER.takes("KEY"))]
        admin_api_key: Option<ApiKey> = None,
        /// Whether to serve /openapi.json and the page /docs, which shows it.
        #[flag(SERVER)]
        api_docs: bool = true,
        /// Whether to serve the web console, the page /.
        #[flag(SERVER)]
        console: bool = true,
        /// Threads that parse requests and write responses; 0 means one per core, but at most 4.
        #[flag(SERVER.takes("N"))]
        #[range(..=MAX_WORKERS)]
        workers: usize = 0,
        /// Largest request body in bytes; larger ones get 413.
        #[flag(RARE.takes("BYTES"))]
        #[range(1..)]
        max_body_bytes: usize = 16 << 20,
        /// Maximum number of prompts × samples per prompt in one call of the API.
        #[flag(RARE.takes("N"))]
        #[range(1..=MAX_BATCH_REQUESTS)]
        max_batch_requests: usize = 1024,
        /// Maximum total bytes that all request bodies may occupy while they are received and parsed, and the tools and
        /// constraints of requests in flight.
        #[flag(RARE.takes("BYTES"))]
        max_bodies_bytes: usize = 256 << 20,
        /// Maximum total bytes, over all answers, that prompt log probabilities and the tokens of /tokenize may occupy
        /// until clients have read them.
        #[flag(RARE.takes("BYTES"))]
        #[range(1..)]
        max_answers_bytes: usize = 256 << 20,
        /// Maximum number of JSON values in the messages, tools, schemas, template arguments and other free-form fields of
        /// one request body.
        #[flag(RARE.takes("N"))]
        #[range(1..)]
        max_body_values: usize = 1 << 16,
        /// Maximum number of images of one request.
        #[flag(RARE.takes("N"))]
        #[range(..=MAX_IMAGES)]
        max_images: usize = 16,
        /// Comma-separated host names from which images of requests are fetched, such as `images.example.com`, or
        /// `*.example.com` for the names below it. Without any, images are taken from `data:` URLs only.
        ///
        /// Only http and https on ports 80 and 443 are fetched from, at global addresses, without redirects or proxies.
        #[flag(SERVER.takes("HOSTS"))]
        allowed_media_domains: Vec<String> = Vec::new(),
        /// The answer to images in requests to a model that takes text only: refuse, or note, which puts a text in their
        /// places.
        ///
        /// Agents send the whole conversation with every request, so one refused screenshot would end it.
        #[flag(SERVER)]
        image_fallback: ImageFallback = ImageFallback::Refuse,
        /// Name of the field in which chat completions carry a model's reasoning.
        #[flag(SERVER.takes("NAME"))]
        reasoning_field: ReasoningField = ReasoningField::ReasoningContent,
        /// Whether `x-anthropic-billing-header` lines in the system prompts of /v1/messages, which change with every
        /// request, are left out of the prompt, so that the prompts of a conversation share the cache.
        #[flag(SERVER)]
        drop_changing_headers: bool = true,
        /// Maximum number of responses that the server keeps for `previous_response_id` and `GET /v1/responses/{id}`; 0 keeps
        /// none.
        #[flag(RARE.takes("N"))]
        #[range(..=MAX_RESPONSES)]
        responses_max_count: usize = 4096,
        /// Maximum total bytes of the responses that the server keeps; the oldest go first.
        #[flag(RARE.takes("BYTES"))]
        responses_max_bytes: usize = 128 << 20,
        /// Seconds that a response is kept.
        #[flag(RARE.takes("SECONDS"))]
        responses_ttl_s: u32 = 3600,
        /// Seconds that the prefix cache keeps the conversation of a kept response, so that the next turn finds it although
        /// others came in between; 0 keeps it no longer than any other prefix.
        ///
        /// At most half of the KV pool is kept like this, for `--max-pins` conversations, and any request that needs the
        /// memory gets it.
        #[flag(RARE.takes("SECONDS"))]
        responses_pin_ttl_s: u32 = 0,
        /// Maximum number of sessions that are open at once (/open_session); 0 allows none.
        #[flag(RARE.takes("N"))]
        #[range(..=MAX_SESSIONS)]
        sessions_max_count: usize = 256,
        /// Maximum total bytes of the tokens that open sessions hold.
        #[flag(RARE.takes("BYTES"))]
        sessions_max_bytes: usize = 64 << 20,
        /// Seconds after which an unused session is closed.
        #[flag(RARE.takes("SECONDS"))]
        #[range(1..)]
        sessions_idle_s: u32 = 3600,
        /// Seconds for a request's headers to arrive.
        #[flag(RARE.takes("SECONDS"))]
        #[range(1..)]
        header_timeout_s: u32 = 10,
        /// Seconds for a request's body to arrive.
        #[flag(RARE.takes("SECONDS"))]
        #[range(1..)]
        body_timeout_s: u32 = 30,
        /// Seconds that an idle connection is kept.
        #[flag(RARE.takes("SECONDS"))]
        keep_alive_s: u32 = 75,
        /// Seconds without an event after which an SSE comment is sent, so that proxies keep the stream open.
        #[flag(RARE.takes("SECONDS"))]
        #[range(1..)]
        sse_keep_alive_s: u32 = 15,
        /// Seconds that /health_generate waits for a token.
        #[flag(RARE.takes("SECONDS"))]
        #[range(1..)]
        health_generate_timeout_s: u32 = 20,
        /// Seconds that running requests may take to finish once the server stops.
        #[flag(SERVER.takes("SECONDS").aliases(&["shutdown-timeout-s"]))]
        shutdown_deadline_s: u32 = 30,
        /// Whether each HTTP request gets a line in the log, at level info, with its id, status and duration.
        #[flag(SERVER)]
        access_log: bool = true,
        /// Comma-separated routes that are left out of the access log and of traces.
        #[flag(RARE.takes("ROUTES").aliases(&["disable-access-log-for-endpoints"]))]
        access_log_exclude: Vec<String> = PROBES.map(str::to_owned).into(),
        /// Whether each HTTP request becomes a trace, which goes to an OpenTelemetry collector; needs a build with the
        /// feature `otlp`.
        ///
        /// Without `--otlp-traces-endpoint`, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT say where it
        /// is; the default is `http://localhost:4318`.
        #[flag(RARE)]
        enable_trace: bool = false,
        /// URL to which traces are sent as protobuf, such as `http://localhost:4318/v1/traces`; turns `--enable-trace` on.
        #[flag(RARE.takes("URL"))]
        otlp_traces_endpoint: Option<String> = None,
        /// Comma-separated web origins, in addition to the server's own, whose pages may send requests, such as
        /// `https://chat.example`; * allows all.
        #[flag(SERVER.takes("ORIGINS"))]
        allowed_origins: Vec<String> = Vec::new(),
        /// Comma-separated host names that requests may name in their Host header while no API key is set; * allows
        /// all.
        ///
        /// A name without a port allows every port. IP addresses, localhost and the value of `--host` are always
        /// allowed.
        #[flag(SERVER.takes("HOSTS"))]
        allowed_hosts: Vec<String> = Vec::new(),
        /// Maximum number of simultaneous WebSockets.
        #[flag(WEBSOCKET.takes("N"))]
        ws_max_connections: usize = 1024,
        /// Maximum number of requests in progress on one WebSocket.
        #[flag(WEBSOCKET.takes("N"))]
        #[range(1..)]
        ws_max_requests: usize = 64,
        /// Maximum number of named lanes (`stream_id`) on one WebSocket of /v1/responses.
        #[flag(WEBSOCKET.takes("N"))]
        #[range(1..=MAX_LANES)]
        ws_lanes: usize = 64,
        /// Maximum number of lanes of one WebSocket that are answered at the same time; the others wait.
        #[flag(WEBSOCKET.takes("N"))]
        #[range(1..=MAX_LANES)]
        ws_active_lanes: usize = 16,
        /// Largest message that the WebSocket /v1/ws/generate accepts, in bytes; on that of /v1/responses it is
        /// `--max-body-bytes`.
        #[flag(WEBSOCKET.takes("BYTES"))]
        #[range(1..)]
        ws_max_frame_bytes: usize = 1 << 20,
        /// Seconds between pings; a client that misses two in a row is disconnected.
        #[flag(WEBSOCKET.takes("SECONDS"))]
        #[range(1..)]
        ws_ping_interval_s: u32 = 20,
        /// Seconds that writing one message to a WebSocket may take; after that the connection is closed.
        #[flag(WEBSOCKET.takes("SECONDS"))]
        #[range(1..)]
        ws_send_timeout_s: u32 = 10,
        /// Seconds after which a connection is closed if its client reads none of the data waiting to be sent.
        #[flag(RARE.takes("SECONDS"))]
        #[range(1..)]
        http_send_timeout_s: u32 = 30,
    }
}

impl ServerConfig {
    /// # Errors
    /// Names the first key that is out of range, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_ranges()?;
        let (bodies, least) = (self.max_bodies_bytes, self.max_body_bytes.saturating_mul(4));
        if bodies < least {
            let reason =
                format!("is {bodies}, must be at least {least}, four times max_body_bytes");
            return Err(out_of_range("max_bodies_bytes", reason));
        }
        if let Some(port) = self.grpc_port.filter(|_| !cfg!(feature = "grpc")) {
            let reason = format!(
                "is {port}, needs a build with gRPC: cargo build --release --features grpc"
            );
            return Err(out_of_range("grpc_port", reason));
        }
        self.validate_traces()?;
        AllowedDomains::parse(&self.allowed_media_domains).map_err(|error| {
            out_of_range("allowed_media_domains", format!("has an entry: {error}"))
        })?;
        self.validate_guards()
    }

    /// Whether only this machine can reach the server.
    pub fn is_on_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    pub fn traces_requests(&self) -> bool {
        self.enable_trace || self.otlp_traces_endpoint.is_some()
    }

    fn validate_traces(&self) -> Result<(), ConfigError> {
        if self.traces_requests() && !cfg!(feature = "otlp") {
            let key = if self.enable_trace {
                "enable_trace"
            } else {
                "otlp_traces_endpoint"
            };
            let reason = "needs a build with traces: cargo build --release --features otlp";
            return Err(out_of_range(key, reason.to_owned()));
        }
        let Some(endpoint) = &self.otlp_traces_endpoint else {
            return Ok(());
        };
        if endpoint.contains('@') {
            let reason = "holds a user name, which /server_info would show: put credentials into OTEL_EXPORTER_OTLP_HEADERS";
            return Err(out_of_range("otlp_traces_endpoint", reason.to_owned()));
        }
        let url = endpoint.parse::<Uri>().ok();
        let is_url = url.is_some_and(|url| {
            matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some()
        });
        if is_url {
            Ok(())
        } else {
            Err(out_of_range(
                "otlp_traces_endpoint",
                format!("is {endpoint:?}, must be a URL such as http://localhost:4318/v1/traces"),
            ))
        }
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
            let reason =
                format!("holds {origin:?}, must be scheme://name, scheme://name:port or *");
            return Err(out_of_range("allowed_origins", reason));
        }
        let is_name = |host: &&String| !is_host(host) && *host != "*";
        if let Some(host) = self.allowed_hosts.iter().find(is_name) {
            let reason = format!("holds {host:?}, must be a name, name:port or *");
            return Err(out_of_range("allowed_hosts", reason));
        }
        if self.admin_api_key.is_some() && self.admin_api_key == self.api_key {
            let reason = "is the same as api_key, so that every client would be an admin: choose another key";
            return Err(out_of_range("admin_api_key", reason.to_owned()));
        }
        Ok(())
    }

    pub(super) fn worker_threads(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
            workers => workers,
        }
    }
}

/// A name of the field that carries a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningField {
    /// DeepSeek's and SGLang's name.
    ReasoningContent,
    /// OpenRouter's and vLLM's name.
    Reasoning,
}

/// The answer to images for a model without a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFallback {
    /// 400.
    Refuse,
    /// A text in place of each image.
    Note,
}

impl KeyType for ImageFallback {
    const FORM: Form = Form::Name(&["refuse", "note"]);
}

impl KeyType for ReasoningField {
    const FORM: Form = Form::Name(&["reasoning_content", "reasoning"]);
}

impl KeyType for ApiKey {
    const FORM: Form = Form::Text;
}

/// Returns whether `text` is a host, with or without a port, and nothing else.
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
    #[cfg(not(feature = "grpc"))]
    fn grpc_is_refused_by_a_build_without_it() {
        let expected = Some(("grpc_port", "--features grpc"));
        check(|config| config.grpc_port = Some(0), expected);
    }

    #[test]
    #[cfg(not(feature = "otlp"))]
    fn traces_are_refused_by_a_build_without_them() {
        let expected = |key| Some((key, "--features otlp"));
        check(
            |config| config.enable_trace = true,
            expected("enable_trace"),
        );
        let endpoint = Some("http://localhost:4318/v1/traces".to_owned());
        let expected = expected("otlp_traces_endpoint");
        check(|config| config.otlp_traces_endpoint = endpoint, expected);
    }

    #[test]
    #[cfg(feature = "otlp")]
    fn a_traces_endpoint_must_be_a_url() {
        let with = |endpoint: &str| {
            let endpoint = Some(endpoint.to_owned());
            move |config: &mut ServerConfig| config.otlp_traces_endpoint = endpoint
        };
        check(with("http://localhost:4318/v1/traces"), None);
        check(with("https://[::1]/"), None);
        for bad in ["localhost:4317", "grpc://localhost:4317", "/v1/traces", ""] {
            check(with(bad), Some(("otlp_traces_endpoint", "must be a URL")));
        }
        let secret = with("http://user:secret@localhost:4318/v1/traces");
        check(secret, Some(("otlp_traces_endpoint", "OTLP_HEADERS")));
    }

    #[test]
    fn loopback_addresses_are_known() {
        let is_on_loopback = |host: &str| {
            let host = host.to_owned();
            let config = ServerConfig {
                host,
                ..ServerConfig::default()
            };
            config.is_on_loopback()
        };
        for host in ["127.0.0.1", "127.1.2.3", "::1", "localhost"] {
            assert!(is_on_loopback(host), "{host}");
        }
        for host in [
            "0.0.0.0",
            "::",
            "10.0.0.1",
            "souffleur",
            "127.0.0.1.example",
        ] {
            assert!(!is_on_loopback(host), "{host}");
        }
    }

    #[test]
    fn invalid_origins_hosts_and_equal_keys_are_refused() {
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
            let expected = Some(("allowed_origins", "scheme://name"));
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
        check(same, Some(("admin_api_key", "the same as api_key")));
        let other = |config: &mut ServerConfig| {
            (config.api_key, config.admin_api_key) = (key("sk-1"), key("sk-2"));
        };
        check(other, None);
    }
}
