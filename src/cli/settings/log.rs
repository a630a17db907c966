//! The configuration section `[log]`: the filter and the form of log messages.

use serde::{Deserialize, Serialize};
use souffleur::config::keys::{Flag, Form, Key, Keys};
use souffleur::error::ConfigError;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Minimum severity to log, or `target=level` pairs.
    pub log_level: String,
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object a line, with the message's fields at its top level.
    Json,
}

impl Keys for LogConfig {
    const KEYS: &'static [Key] = &[
        Key {
            name: "log_level",
            doc: "Minimum severity to log to stderr: error, warn, info, debug, trace, or `target=level` pairs; it takes \
              precedence over RUST_LOG.\n",
            form: Form::Text,
            flag: Flag {
                heading: "Log",
                value_name: Some("LEVEL"),
                aliases: &[],
                is_rare: false,
            },
        },
        Key {
            name: "log_format",
            doc: "Form of the log on stderr: text, or json with one object a line. With json, `serve` prints nothing on \
              stdout.\n",
            form: Form::Name(&["text", "json"]),
            flag: Flag {
                heading: "Log",
                value_name: Some("FORMAT"),
                aliases: &[],
                is_rare: false,
            },
        },
    ];
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            log_level: "info".to_owned(),
            log_format: LogFormat::Text,
        }
    }
}

/// Converts `RUST_LOG` to the form of `log_level`, in which each target has a level; `None` if it is empty.
///
/// # Errors
/// A warning: other programs read the variable too, and an invalid value does not prevent a start.
pub(super) fn of_rust_log(value: &str) -> Result<Option<String>, String> {
    if value.trim().is_empty() {
        return Ok(None);
    }
    if let Err(error) = EnvFilter::try_new(value) {
        return Err(format!(
            "environment variable RUST_LOG is {value:?} and is ignored: {error}"
        ));
    }
    let parts = value.split(',');
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    let parts = parts.map(|part| {
        if part.contains(['=', '[']) || is_level(part) {
            part.to_owned()
        } else {
            format!("{part}=trace")
        }
    });
    Ok(Some(parts.collect::<Vec<_>>().join(",")))
}

fn is_level(part: &str) -> bool {
    part.parse::<LevelFilter>().is_ok()
}

impl LogConfig {
    /// The configured filter for the subscriber.
    ///
    /// # Errors
    /// Names an invalid level, which `EnvFilter` would take for a target.
    pub fn filter(&self) -> Result<EnvFilter, ConfigError> {
        let level = &self.log_level;
        let is_target = |part: &str| part.contains(['=', '[', ']']);
        let mut parts = level.split(',').map(str::trim);
        let is_valid = parts.all(|part| is_target(part) || is_level(part));
        // Silences actix's messages about listening sockets, which this program logs itself.
        let filter = EnvFilter::try_new(format!("actix_server=warn,{level}"));
        let filter = filter.ok().filter(|_| is_valid);
        filter.ok_or_else(|| ConfigError {
            key: "log_level".to_owned(),
            reason: format!(
                "is {level:?}, must be error, warn, info, debug, trace or target=level"
            ),
        })
    }
}
