//! The errors, one enum for each boundary. Each has a stable `code()` for JSON and metric labels and the HTTP
//! status that fits it.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Seconds after which a client should retry after an overload.
pub const RETRY_AFTER_S: u32 = 1;

/// A number as messages show it: with an exponent where it would have many zeros.
pub struct Plain<T>(pub T);

impl<T: fmt::Debug> fmt::Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    }
}

/// The description of a number within limits, for errors.
pub fn number_within(limits: &RangeInclusive<f64>) -> String {
    let (start, end) = (Plain(limits.start()), Plain(limits.end()));
    if *limits.start() == f64::MIN_POSITIVE {
        format!("a number above 0 and at most {end}")
    } else {
        format!("a number from {start} to {end}")
    }
}

/// An error about a whole file.
pub fn format_error(file: &Path, reason: impl Into<String>) -> LoadError {
    LoadError::Format {
        file: file.to_owned(),
        reason: reason.into(),
    }
}

/// Why a field of a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct FieldError {
    field: String,
    reason: String,
    kind: FieldErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldErrorKind {
    Wrong,
    NotYet,
}

impl FieldError {
    /// A field with a value that it cannot have. The reason is a sentence that names the value, the limit and the
    /// remedy.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
            kind: FieldErrorKind::Wrong,
        }
    }

    /// A field that requests a feature that this engine does not have yet.
    pub fn not_yet(field: impl Into<String>) -> Self {
        let field = field.into();
        let reason = format!("{field} is not supported yet: leave it out or send null");
        Self {
            field,
            reason,
            kind: FieldErrorKind::NotYet,
        }
    }

    /// The same reason, for the field that holds this one.
    pub fn within(self, field: impl Into<String>) -> Self {
        let field = field.into();
        Self { field, ..self }
    }

    /// The field's name.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Stable name for JSON.
    pub fn code(&self) -> &'static str {
        match self.kind {
            FieldErrorKind::Wrong => "invalid_request",
            FieldErrorKind::NotYet => "not_supported",
        }
    }
}

/// Tokens of a prompt that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptTokens {
    /// All of them were counted.
    Exactly(usize),
    /// The prompt is so long that counting stopped here.
    AtLeast(usize),
}

/// The number with its unit.
impl fmt::Display for PromptTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(tokens) => write!(f, "{tokens} tokens"),
            Self::AtLeast(tokens) => write!(f, "at least {tokens} tokens"),
        }
    }
}

/// Why a request was refused or ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request contradicts itself or a limit; the text names the value, the limit and the remedy.
    #[error("{0}")]
    Invalid(String),
    /// One field has a value that it cannot have.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The prompt is longer than the model's context or the KV pool. The text is SGLang's, which clients look for.
    #[error(
        "the input ({prompt_tokens}) is longer than the model's context length ({limit_tokens} tokens): \
         shorten the prompt"
    )]
    PromptTooLong {
        /// Length of the prompt.
        prompt_tokens: PromptTokens,
        /// Longest prompt that this engine takes.
        limit_tokens: usize,
    },
    /// The queue is full.
    #[error(
        "{queued} {what} are in the engine, limit is {limit}: try again in {} s",
        RETRY_AFTER_S
    )]
    Overloaded {
        /// The unit that is counted: `requests` or `prompt tokens`.
        what: &'static str,
        /// How many there are.
        queued: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A request with the same id is in flight.
    #[error("request id {0:?} is already in flight: choose another rid")]
    DuplicateRequest(String),
    /// Even alone on the device the sequence does not fit.
    #[error("out of memory even after retracting all other requests: raise --max-total-tokens")]
    OutOfMemory,
    /// An operation that needs an engine without requests, on one that has some.
    #[error(
        "{running} requests are running and {waiting} are waiting, flushing the cache needs an idle engine: try \
         again later"
    )]
    Busy {
        /// How many run.
        running: usize,
        /// How many wait.
        waiting: usize,
    },
    /// It waited or ran for longer than it may.
    #[error("request {what} for {limit_ms} ms, which is its limit ({key}): {remedy}")]
    Timeout {
        /// The state that it was in: `waited` or `ran`.
        what: &'static str,
        /// The limit in milliseconds.
        limit_ms: u64,
        /// The field of the request and the flag of the engine that set it.
        key: &'static str,
        /// Advice.
        remedy: &'static str,
    },
    /// The model produced NaN logits for this request.
    #[error("the model produced NaN logits")]
    NanLogits,
    /// The output cannot follow the request's grammar any further.
    #[error("no token continues the output within its grammar: {0}")]
    Grammar(&'static str),
    /// The client did not read its stream.
    #[error(
        "client reads its stream too slowly: {backlog_bytes} bytes queued, limit is {limit_bytes}"
    )]
    SlowClient {
        /// Bytes of text that wait.
        backlog_bytes: usize,
        /// Bytes that may wait.
        limit_bytes: usize,
    },
    /// The step that held this request failed.
    #[error("step failed: {0}")]
    Step(#[from] StepError),
    /// The engine died while the request was in flight.
    #[error("the engine is down: {0}")]
    EngineDown(String),
    /// The engine is shutting down and takes no new requests.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

impl RequestError {
    /// The queue was longer than the request could wait.
    pub fn waiting_timeout(limit_s: f64) -> Self {
        Self::Timeout {
            what: "waited",
            limit_ms: milliseconds(limit_s),
            key: "waiting_timeout, --req-waiting-timeout-s",
            remedy: "try again later or raise the limit",
        }
    }

    /// The output took longer than the request may run.
    pub fn running_timeout(limit_s: f64) -> Self {
        Self::Timeout {
            what: "ran",
            limit_ms: milliseconds(limit_s),
            key: "running_timeout, --req-running-timeout-s",
            remedy: "ask for fewer tokens or raise the limit",
        }
    }

    /// Stable name for JSON and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) | Self::Field(_) => "invalid_request",
            Self::PromptTooLong { .. } => "context_length_exceeded",
            Self::Overloaded { .. } => "overloaded",
            Self::DuplicateRequest(_) => "duplicate_request",
            Self::Busy { .. } => "busy",
            Self::OutOfMemory => "out_of_memory",
            Self::Timeout { .. } => "timeout",
            Self::NanLogits => "nan_logits",
            Self::Grammar(_) => "grammar_failed",
            Self::SlowClient { .. } => "slow_client",
            Self::Step(_) => "step_failed",
            Self::EngineDown(_) => "engine_down",
            Self::ShuttingDown => "shutting_down",
        }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Invalid(_)
            | Self::Field(_)
            | Self::PromptTooLong { .. }
            | Self::DuplicateRequest(_)
            | Self::Grammar(_)
            | Self::Busy { .. } => 400,
            Self::Overloaded { .. }
            | Self::Timeout { .. }
            | Self::EngineDown(_)
            | Self::ShuttingDown => 503,
            Self::OutOfMemory | Self::NanLogits | Self::SlowClient { .. } | Self::Step(_) => 500,
        }
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1e3).round() as u64
}

/// Why a step did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum StepError {
    /// Refused before anything was launched: no K/V was written.
    #[error("rejected: {0}")]
    Rejected(String),
    /// Failed after a launch: K/V of this step and of later ones cannot be trusted.
    #[error("lost: {0}")]
    Lost(String),
}

/// Why a model could not be loaded. Nothing was allocated for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file violates its format.
    #[error("{}: {reason}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// The fault, with key, value and expectation.
        reason: String,
    },
    /// The architecture is not implemented.
    #[error("{}: architecture {found:?} is not supported, supported: {supported}", file.display())]
    UnknownArchitecture {
        /// The file.
        file: PathBuf,
        /// The name that was found.
        found: String,
        /// The supported names, comma separated.
        supported: String,
    },
    /// A tensor is missing.
    #[error("{}: tensor {tensor} is missing, expected shape {expected:?}", file.display())]
    MissingTensor {
        /// The file or folder searched.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape by the configuration.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{}: tensor {tensor} has shape {got:?}, the configuration expects {expected:?}", file.display())]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape by the configuration.
        expected: Vec<usize>,
        /// Its shape in the file.
        got: Vec<usize>,
    },
    /// A file is not the one that the engine has loaded.
    #[error(
        "{} is not the file that was loaded: {what}. Start the engine again to serve the new file",
        file.display()
    )]
    Replaced {
        /// The file, or the folder that names other files.
        file: PathBuf,
        /// The difference.
        what: String,
    },
    /// The KV pool does not fit.
    #[error("{0}")]
    Memory(String),
    /// The device refuses the model.
    #[error("{0}")]
    Device(String),
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    /// The key or flag.
    pub key: String,
    /// The value, the limit and the remedy.
    pub reason: String,
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A thread could not be started, or died while starting.
    #[error("engine thread: {0}")]
    Thread(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_without_rows_of_zeros() {
        let shown = [
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
        assert_eq!(shown, expected);
    }
}
