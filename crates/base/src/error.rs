//! Error types of requests, steps, loading and configuration, with stable codes and HTTP statuses.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Seconds in `Retry-After` after an overload.
pub const RETRY_AFTER_S: u32 = 1;

/// Displays a number without a trailing `.0`, and with an exponent if it is very large or very small.
pub struct Plain<T>(pub T);

impl<T: fmt::Debug> fmt::Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    }
}

pub fn number_within(limits: &RangeInclusive<f64>) -> String {
    let (start, end) = (Plain(limits.start()), Plain(limits.end()));
    if *limits.start() == f64::MIN_POSITIVE {
        format!("a number above 0 and at most {end}")
    } else {
        format!("a number from {start} to {end}")
    }
}

pub fn load_error(file: &Path, reason: impl Into<String>) -> LoadError {
    LoadError::Format {
        file: file.to_owned(),
        reason: reason.into(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct FieldError {
    field: String,
    reason: String,
    kind: FieldErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldErrorKind {
    Invalid,
    NotSupported,
}

impl FieldError {
    /// The reason is a sentence that names the value, the limit and the remedy.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
            kind: FieldErrorKind::Invalid,
        }
    }

    /// An error for a feature that this engine does not have yet.
    pub fn not_yet(field: impl Into<String>) -> Self {
        let field = field.into();
        let reason = format!("{field} is not supported yet: leave it out or send null");
        Self {
            field,
            reason,
            kind: FieldErrorKind::NotSupported,
        }
    }

    /// Keeps the reason and replaces the field by the one that contains it.
    pub fn within(self, field: impl Into<String>) -> Self {
        let field = field.into();
        Self { field, ..self }
    }

    pub fn field(&self) -> &str {
        &self.field
    }

    /// Stable, for JSON.
    pub fn code(&self) -> &'static str {
        match self.kind {
            FieldErrorKind::Invalid => "invalid_request",
            FieldErrorKind::NotSupported => "not_supported",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptTokens {
    Exactly(usize),
    /// Counting stopped at this number.
    AtLeast(usize),
}

impl fmt::Display for PromptTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(tokens) => write!(f, "{tokens} tokens"),
            Self::AtLeast(tokens) => write!(f, "at least {tokens} tokens"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The text names the value, the limit and the remedy.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The chat template does not write the end of the last message as it was sent.
    #[error(
        "continue_final_message: this model's chat template changes the last assistant message, so it cannot be \
         continued: end messages with a user message, and leave the field out"
    )]
    NotContinued,
    /// Exceeds the model's context or the KV pool. The text is SGLang's, which clients match.
    #[error(
        "the input ({prompt_tokens}) is longer than the model's context length ({limit_tokens} tokens): \
         shorten the prompt, or restart the server with a larger --context-length or --max-total-tokens"
    )]
    PromptTooLong {
        prompt_tokens: PromptTokens,
        limit_tokens: usize,
    },
    #[error(
        "the engine already has {queued} {what}, the limit is {limit}{}, and this call exceeds it: try again in {} s",
        limit_flag(what),
        RETRY_AFTER_S
    )]
    Overloaded {
        /// The counted unit: `requests` or `prompt tokens`.
        what: &'static str,
        queued: usize,
        limit: usize,
    },
    /// A request with the same id is in flight.
    #[error("request id {0:?} is already in flight: choose another rid")]
    DuplicateRequest(String),
    /// The sequence does not fit in the KV pool even alone.
    #[error(
        "this request alone needs more KV memory than the pool has: shorten the prompt or ask for fewer tokens, or \
         restart the server with a larger --max-total-tokens"
    )]
    OutOfMemory,
    /// The operation needs an idle engine.
    #[error(
        "{running} requests are running and {waiting} are waiting, but flushing the cache needs an idle engine: \
         try again later"
    )]
    Busy { running: usize, waiting: usize },
    #[error("request {what} for {limit_ms} ms, which is its limit ({key}): {remedy}")]
    Timeout {
        /// `waited` or `ran`.
        what: &'static str,
        limit_ms: u64,
        /// The request field and engine flag of the limit.
        key: &'static str,
        remedy: &'static str,
    },
    #[error("the model produced NaN logits: check its weights, or use another --dtype")]
    NanLogits,
    /// The output cannot continue within the request's grammar.
    #[error("the output cannot continue: {0}")]
    Grammar(&'static str),
    /// The client did not read its stream (backpressure).
    #[error(
        "the client reads its stream too slowly: {backlog_bytes} bytes queued, limit is {limit_bytes}: read faster, or \
         restart the server with a larger --client-backlog-bytes"
    )]
    SlowClient {
        backlog_bytes: usize,
        limit_bytes: usize,
    },
    #[error("the engine failed in a step of this request: {0}")]
    Step(#[from] StepError),
    #[error("the engine is down: {0}")]
    EngineDown(String),
    /// An operation failed, while the engine still runs. The text names the operation and the cause.
    #[error("{0}")]
    Interrupted(String),
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The engine panics each time it works on this request.
    #[error("{0}")]
    Poison(String),
}

/// The flag of the limit of [`RequestError::Overloaded`], in brackets; empty if none sets it.
fn limit_flag(what: &str) -> &'static str {
    match what {
        "requests" => " (--max-queued-requests)",
        "prompt tokens" => " (--max-queued-tokens)",
        _ => "",
    }
}

impl RequestError {
    pub fn waiting_timeout(limit_s: f64) -> Self {
        Self::Timeout {
            what: "waited",
            limit_ms: milliseconds(limit_s),
            key: "waiting_timeout, --req-waiting-timeout-s",
            remedy: "try again later or raise the limit",
        }
    }

    pub fn running_timeout(limit_s: f64) -> Self {
        Self::Timeout {
            what: "ran",
            limit_ms: milliseconds(limit_s),
            key: "running_timeout, --req-running-timeout-s",
            remedy: "ask for fewer tokens or raise the limit",
        }
    }

    /// Stable, for JSON and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) | Self::Field(_) | Self::NotContinued => "invalid_request",
            Self::PromptTooLong { .. } => "context_length_exceeded",
            Self::Overloaded { .. } => "overloaded",
            Self::DuplicateRequest(_) => "duplicate_request",
            Self::Busy { .. } => "busy",
            Self::OutOfMemory => "out_of_memory",
            Self::Timeout { .. } => "timeout",
            Self::NanLogits => "nan_logits",
            Self::Grammar(_) => "grammar_failed",
            Self::SlowClient { .. } => "slow_client",
            Self::Step(_) | Self::Poison(_) => "step_failed",
            Self::EngineDown(_) | Self::Interrupted(_) => "engine_down",
            Self::ShuttingDown => "shutting_down",
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::Invalid(_)
            | Self::Field(_)
            | Self::NotContinued
            | Self::PromptTooLong { .. }
            | Self::DuplicateRequest(_)
            | Self::Grammar(_)
            | Self::Busy { .. } => 400,
            Self::Overloaded { .. }
            | Self::Timeout { .. }
            | Self::EngineDown(_)
            | Self::Interrupted(_)
            | Self::ShuttingDown => 503,
            Self::OutOfMemory
            | Self::NanLogits
            | Self::SlowClient { .. }
            | Self::Step(_)
            | Self::Poison(_) => 500,
        }
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1e3).round() as u64
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum StepError {
    /// Rejected before any kernel launch: no K/V was written.
    #[error("the step was refused before it ran: {0}")]
    Rejected(String),
    /// Failed after a kernel launch: K/V of this step and of later steps is invalid.
    #[error("the results are invalid: {0}")]
    Lost(String),
}

/// A model cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("failed to access {}: {source}", file.display())]
    Io {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {reason}", file.display())]
    Format {
        file: PathBuf,
        /// Names the key, its value and the expected value.
        reason: String,
    },
    #[error("{}: architecture {found:?} is not supported, supported: {supported}", file.display())]
    UnknownArchitecture {
        file: PathBuf,
        found: String,
        /// Comma separated.
        supported: String,
    },
    #[error(
        "{}: tensor {tensor} is missing, expected shape {expected:?}: download or convert the model again",
        file.display()
    )]
    MissingTensor {
        /// The file or folder searched.
        file: PathBuf,
        tensor: String,
        /// The shape according to the configuration.
        expected: Vec<usize>,
    },
    #[error(
        "{}: tensor {tensor} has shape {got:?}, the configuration expects {expected:?}: download or convert the model \
         again",
        file.display()
    )]
    WrongShape {
        file: PathBuf,
        tensor: String,
        /// The shape according to the configuration.
        expected: Vec<usize>,
        got: Vec<usize>,
    },
    /// A file has changed since the engine loaded it.
    #[error(
        "{} {what}. Start the engine again to serve the new files",
        file.display()
    )]
    Replaced {
        /// The file that was replaced, added to the model or removed from it.
        file: PathBuf,
        /// The change, as a predicate of the file.
        what: String,
    },
    #[error("{0}")]
    Memory(String),
    #[error("{0}")]
    Device(String),
    /// The device was lost, and this engine cannot use it again.
    #[error("{0}")]
    DeviceLost(String),
}

impl LoadError {
    /// Whether every later load of this engine would fail too.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Replaced { .. } | Self::DeviceLost(_))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{key} {reason}")]
pub struct ConfigError {
    pub key: String,
    /// Follows the key: names the value, the limit and the remedy.
    pub reason: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A thread could not be started, or exited while starting.
    #[error("failed to start the engine: {0}")]
    Thread(String),
}

impl StartError {
    /// As [`LoadError::is_permanent`].
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Load(error) if error.is_permanent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn very_large_and_small_numbers_are_displayed_with_exponents() {
        let displayed = [
            Plain(2.0).to_string(),
            Plain(-0.5).to_string(),
            Plain(f64::MIN_POSITIVE).to_string(),
            Plain(1e300).to_string(),
            Plain(1e38f32).to_string(),
            Plain(f32::NAN).to_string(),
            Plain(7).to_string(),
        ];
        let expected = [
            "2",
            "-0.5",
            "2.2250738585072014e-308",
            "1e300",
            "1e38",
            "NaN",
            "7",
        ];
        assert_eq!(displayed, expected);
    }
}
