//! The flags of section `[server]`.

use clap::Args;
use serde::Serialize;

/// Section `[server]`.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct ServerFlags {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", help_heading = "Server")]
    pub host: Option<String>,
    /// TCP port; 0 takes a free one
    #[arg(long, help_heading = "Server")]
    pub port: Option<u16>,
    /// Key that clients must send as `Authorization: Bearer KEY`; SOUFFLEUR_API_KEY keeps it out of the process list
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub api_key: Option<String>,
    /// Key of an admin, sent in the same header; it alone opens the full /debug/prefix, /set_policy, /flush_cache, abort_all
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub admin_api_key: Option<String>,
    /// Threads that parse requests and write responses; 0 takes one per core, but at most 4
    #[arg(long, value_name = "N", help_heading = "Server")]
    pub workers: Option<usize>,
    /// Seconds that running requests may go on once the server is told to stop
    #[arg(
        long,
        alias = "shutdown-timeout-s",
        value_name = "SECONDS",
        help_heading = "Server"
    )]
    pub shutdown_deadline_s: Option<u32>,
    /// Largest request body in bytes; larger ones get 413
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub max_body_bytes: Option<usize>,
    /// Most prompts times samples of one request
    #[arg(
        long,
        value_name = "N",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub max_batch_requests: Option<usize>,
    /// Bytes of all request bodies that are being received or parsed at once
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub max_bodies_bytes: Option<usize>,
    /// Bytes that prompts' log probabilities of all answers together may take
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub max_answers_bytes: Option<usize>,
    /// Most JSON values in the lists and objects of one request body
    #[arg(
        long,
        value_name = "N",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub max_body_values: Option<usize>,
    /// Seconds for a request's headers to arrive
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub header_timeout_s: Option<u32>,
    /// Seconds for a request's body to arrive
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub body_timeout_s: Option<u32>,
    /// Seconds that an idle connection is kept
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub keep_alive_s: Option<u32>,
    /// Seconds without an event after which a stream gets a comment, so that proxies keep it
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub sse_keep_alive_s: Option<u32>,
    /// Seconds that /health_generate waits for a token
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub health_generate_timeout_s: Option<u32>,
    /// Origins whose pages may ask besides the server's own, comma separated; * stands for all
    #[arg(
        long,
        value_name = "ORIGINS",
        value_delimiter = ',',
        help_heading = "Server"
    )]
    pub allowed_origins: Option<Vec<String>>,
    /// Host names under which the server answers without an API key, comma separated; * stands for all. IP addresses,
    /// localhost and --host always are
    #[arg(
        long,
        value_name = "HOSTS",
        value_delimiter = ',',
        help_heading = "Server"
    )]
    pub allowed_hosts: Option<Vec<String>>,
    /// Most WebSockets at once
    #[arg(
        long,
        value_name = "N",
        help_heading = "WebSocket",
        hide_short_help = true
    )]
    pub ws_max_connections: Option<usize>,
    /// Most requests under way on one WebSocket
    #[arg(
        long,
        value_name = "N",
        help_heading = "WebSocket",
        hide_short_help = true
    )]
    pub ws_max_requests: Option<usize>,
    /// Largest message that a WebSocket takes, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "WebSocket",
        hide_short_help = true
    )]
    pub ws_max_frame_bytes: Option<usize>,
    /// Seconds between pings; a client that misses two is gone
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "WebSocket",
        hide_short_help = true
    )]
    pub ws_ping_interval_s: Option<u32>,
    /// Seconds that writing one message to a WebSocket may take
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "WebSocket",
        hide_short_help = true
    )]
    pub ws_send_timeout_s: Option<u32>,
    /// Seconds after which a connection ends if its client has read nothing of what is sent
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub http_send_timeout_s: Option<u32>,
}
