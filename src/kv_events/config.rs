//! Parses the setting `kv_events_config`: SGLang's JSON object plus the keys `format`, `encoding` and `block_size`.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use souffleur_base::error::ConfigError;
use souffleur_state::pool::pages::PageSize;

/// The default block size is the smallest multiple of the page size with at least this many tokens.
const BLOCK_TOKENS: usize = 16;
/// The largest block size: larger blocks would be longer than most prompts.
const MAX_BLOCK_TOKENS: usize = 4096;
/// The largest number of batches kept for replays. The replay buffer also limits their total bytes.
const MAX_BUFFER_STEPS: usize = 1 << 20;
/// The longest topic. The publisher compares its topic with every subscription.
const MAX_TOPIC_BYTES: usize = 255;
/// The longest path of a Unix socket: slightly shorter than the system's `sun_path`.
pub(super) const MAX_IPC_PATH_BYTES: usize = 100;
/// Hosts that mean all interfaces.
const WILDCARDS: [&str; 3] = ["*", "::", "0.0.0.0"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    pub endpoint: Endpoint,
    pub replay_endpoint: Option<Endpoint>,
    /// The number of batches kept for replays.
    pub buffer_steps: usize,
    /// The largest number of batches queued for a slow subscriber; `None` for all batches in the replay buffer.
    pub hwm: Option<usize>,
    /// The largest number of changes of the tree in the publisher's queue.
    pub max_queue_size: usize,
    /// The first frame of every message.
    pub topic: String,
    pub format: IdFormat,
    pub encoding: Encoding,
    /// Tokens per block: a multiple of the page size.
    pub block_size: usize,
}

/// The namespace fields hashed into block ids, so that equal tokens in different namespaces get different ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdFormat {
    /// The `extra_key`; the block hashes already include the salt.
    #[default]
    Default,
    /// The `extra_key` and the salt.
    Dynamo,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// A map with the event's name as `type`, as in SGLang.
    #[default]
    Map,
    /// An array that starts with the event's name, for readers of positional fields.
    Array,
}

/// An endpoint in ZeroMQ's notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `tcp://HOST:PORT`.
    Tcp {
        /// A name, an address without brackets, or `*`.
        host: String,
        /// 0 for any free port.
        port: u16,
    },
    /// `ipc:///PATH`: a Unix socket.
    Ipc { path: PathBuf },
}

impl Endpoint {
    fn parse(key: &str, text: &str) -> Result<Self, String> {
        let wrong = |problem: &str| {
            format!(
                "{key} is {text:?}, which {problem}: write tcp://HOST:PORT, such as tcp://*:5557, or ipc:///PATH"
            )
        };
        if let Some(path) = text.strip_prefix("ipc://") {
            return match path.starts_with('/') && path.len() <= MAX_IPC_PATH_BYTES {
                true => Ok(Self::Ipc { path: path.into() }),
                false if path.starts_with('/') => Err(wrong("has a path longer than 100 bytes")),
                false => Err(wrong("has no absolute path")),
            };
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(wrong("is neither a TCP address nor a Unix socket"));
        };
        let Some((host, port)) = address.rsplit_once(':') else {
            return Err(wrong("has no port"));
        };
        let port = port.parse();
        let port = port.map_err(|_| wrong("has no port between 0 and 65535"))?;
        let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        let host = host.to_owned();
        Ok(Self::Tcp { host, port })
    }

    /// The address that the publisher connects to; `None` if the publisher binds the endpoint.
    pub fn remote(&self) -> Option<(String, u16)> {
        match self {
            Self::Tcp { host, port } if !is_wildcard(host) => Some((host.clone(), *port)),
            Self::Tcp { .. } | Self::Ipc { .. } => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc { path } => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawConfig {
    publisher: String,
    endpoint: String,
    replay_endpoint: Option<String>,
    buffer_steps: usize,
    hwm: usize,
    max_queue_size: usize,
    topic: String,
    format: IdFormat,
    encoding: Encoding,
    block_size: Option<usize>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            publisher: "null".to_owned(),
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
            format: IdFormat::Default,
            encoding: Encoding::Map,
            block_size: None,
        }
    }
}

impl KvEventsConfig {
    /// Parses the JSON object. Returns `None` if the publisher is `null`, which is SGLang's default.
    ///
    /// # Errors
    /// A sentence that names the key, its value and the valid values.
    pub fn parse(json: &str, page_size: PageSize) -> Result<Option<Self>, String> {
        let raw: RawConfig = serde_json::from_str(json).map_err(|error| {
            format!(
                "is not a valid JSON object: {error}; write, for example, {{\"publisher\": \"zmq\"}}"
            )
        })?;
        match raw.publisher.as_str() {
            "null" => return Ok(None),
            "zmq" => (),
            other => {
                return Err(format!(
                    "publisher is {other:?}, must be \"zmq\" or \"null\""
                ));
            }
        }
        raw.check(page_size).map(Some)
    }
}

impl RawConfig {
    fn check(self, page_size: PageSize) -> Result<KvEventsConfig, String> {
        if self.topic.len() > MAX_TOPIC_BYTES {
            let bytes = self.topic.len();
            return Err(format!(
                "topic has {bytes} bytes, limit is {MAX_TOPIC_BYTES}: shorten it"
            ));
        }
        if self.buffer_steps > MAX_BUFFER_STEPS {
            let steps = self.buffer_steps;
            return Err(format!(
                "buffer_steps is {steps}, must be at most {MAX_BUFFER_STEPS}"
            ));
        }
        if self.max_queue_size == 0 {
            return Err("max_queue_size is 0, must be at least 1".to_owned());
        }
        let replay = self.replay_endpoint.as_deref();
        let replay = replay.filter(|endpoint| !endpoint.is_empty());
        Ok(KvEventsConfig {
            block_size: self.block_size(page_size)?,
            endpoint: Endpoint::parse("endpoint", &self.endpoint)?,
            replay_endpoint: replay
                .map(|endpoint| Endpoint::parse("replay_endpoint", endpoint))
                .transpose()?,
            buffer_steps: self.buffer_steps,
            hwm: (self.hwm > 0).then_some(self.hwm),
            max_queue_size: self.max_queue_size,
            topic: self.topic,
            format: self.format,
            encoding: self.encoding,
        })
    }

    fn block_size(&self, page_size: PageSize) -> Result<usize, String> {
        let page = page_size.get();
        let Some(block) = self.block_size else {
            return Ok(page * BLOCK_TOKENS.div_ceil(page));
        };
        if block == 0 || block % page != 0 || block > MAX_BLOCK_TOKENS {
            return Err(format!(
                "block_size is {block}, must be a multiple of page_size ({page}) of at most {MAX_BLOCK_TOKENS} tokens"
            ));
        }
        Ok(block)
    }
}

/// Whether a host means all interfaces.
pub(super) fn is_wildcard(host: &str) -> bool {
    WILDCARDS.contains(&host)
}

pub(super) fn invalid_config(reason: String) -> ConfigError {
    ConfigError {
        key: "kv_events_config".to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(tokens: u32) -> PageSize {
        PageSize::new(tokens).expect("positive")
    }

    fn parse(json: &str) -> Result<Option<KvEventsConfig>, String> {
        KvEventsConfig::parse(json, page(1))
    }

    #[test]
    fn defaults_equal_those_of_sglang() {
        let config = parse(r#"{"publisher": "zmq"}"#).expect("valid");
        let config = config.expect("KV events are on");
        assert_eq!(config.endpoint.to_string(), "tcp://*:5557");
        assert_eq!(config.endpoint.remote(), None);
        assert_eq!(config.replay_endpoint, None);
        assert_eq!(config.buffer_steps, 10_000);
        assert_eq!(config.hwm, Some(100_000));
        assert_eq!(config.max_queue_size, 100_000);
        assert_eq!(config.topic, "");
        assert_eq!(config.format, IdFormat::Default);
        assert_eq!(config.encoding, Encoding::Map);
        for json in ["{}", r#"{"publisher": "null", "topic": "kv"}"#] {
            assert_eq!(parse(json), Ok(None));
        }
    }

    #[test]
    fn default_blocks_are_the_smallest_multiple_of_the_page_size_with_at_least_16_tokens() {
        let json = r#"{"publisher": "zmq"}"#;
        for (page_size, expected) in [(1, 16), (4, 16), (7, 21), (16, 16), (64, 64), (256, 256)] {
            let config = KvEventsConfig::parse(json, page(page_size)).expect("valid");
            let block_size = config.map(|config| config.block_size);
            assert_eq!(block_size, Some(expected), "pages of {page_size}");
        }
    }

    #[test]
    fn wildcard_and_ipc_endpoints_are_bound_and_others_connected() {
        for (text, remote) in [
            ("tcp://*:5557", None),
            ("tcp://0.0.0.0:1", None),
            ("tcp://[::]:1", None),
            ("tcp://127.0.0.1:0", Some(("127.0.0.1", 0))),
            ("tcp://[::1]:65535", Some(("::1", 65535))),
            ("tcp://router.llm-d:5557", Some(("router.llm-d", 5557))),
            ("ipc:///run/souffleur/kv", None),
        ] {
            let endpoint = Endpoint::parse("endpoint", text).expect("valid");
            let remote = remote.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(endpoint.remote(), remote, "{text}");
        }
    }

    #[test]
    fn errors_name_the_key_the_value_and_the_remedy() {
        let long = format!(r#"{{"publisher": "zmq", "topic": "{}"}}"#, "t".repeat(256));
        for (json, parts) in [
            ("[", &["JSON", "publisher"][..]),
            (
                r#"{"publisher": "kafka"}"#,
                &["\"kafka\"", "\"zmq\" or \"null\""],
            ),
            (r#"{"publisher": "zmq", "port": 1}"#, &["port", "endpoint"]),
            (
                r#"{"publisher": "zmq", "endpoint": "inproc://kv"}"#,
                &["endpoint is \"inproc://kv\"", "tcp://HOST:PORT"],
            ),
            (
                r#"{"publisher": "zmq", "replay_endpoint": "ipc://kv"}"#,
                &[
                    "replay_endpoint is \"ipc://kv\"",
                    "no absolute path",
                    "ipc:///PATH",
                ],
            ),
            (
                r#"{"publisher": "zmq", "replay_endpoint": "tcp://*:65536"}"#,
                &["replay_endpoint", "65535"],
            ),
            (
                r#"{"publisher": "zmq", "endpoint": "tcp://:5557"}"#,
                &["no host"],
            ),
            (
                r#"{"publisher": "zmq", "buffer_steps": 2000000}"#,
                &["buffer_steps is 2000000", "1048576"],
            ),
            (
                r#"{"publisher": "zmq", "max_queue_size": 0}"#,
                &["max_queue_size is 0"],
            ),
            (
                r#"{"publisher": "zmq", "block_size": 8192}"#,
                &["block_size is 8192", "4096"],
            ),
            (
                r#"{"publisher": "zmq", "format": "own"}"#,
                &["own", "dynamo"],
            ),
            (long.as_str(), &["topic has 256 bytes", "255"]),
        ] {
            let reason = parse(json).expect_err(json);
            for part in parts {
                assert!(reason.contains(part), "{json}: {reason} lacks {part}");
            }
        }
        let reason = KvEventsConfig::parse(r#"{"publisher": "zmq", "block_size": 24}"#, page(16));
        let reason = reason.expect_err("not a multiple");
        assert!(reason.contains("multiple of page_size (16)"), "{reason}");
    }
}
