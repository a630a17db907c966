//! The error type of simulations.

use std::path::{Path, PathBuf};

use souffleur_base::error::{ConfigError, LoadError, StartError};

#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A file cannot be opened or read, or is not a trace.
    #[error("{}: {reason}", file.display())]
    File { file: PathBuf, reason: String },
    #[error("{}, line {line}: {field} {reason}", file.display())]
    Line {
        file: PathBuf,
        line: u64,
        /// The column or key.
        field: String,
        /// The value, and the valid values.
        reason: String,
    },
    #[error("{what} {reason}")]
    Value {
        what: String,
        /// The value, and its limits.
        reason: String,
    },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Start(#[from] StartError),
    /// A bug: requests are in flight, but no step is running or planned.
    #[error(
        "the scheduler made no progress with {in_flight} requests in flight at {now_s:.3} s (a bug): file an issue"
    )]
    Stuck { in_flight: usize, now_s: f64 },
}

impl SimulateError {
    pub(super) fn file(file: &Path, reason: impl ToString) -> Self {
        let (file, reason) = (file.to_owned(), reason.to_string());
        Self::File { file, reason }
    }

    pub(super) fn value(what: &str, reason: impl ToString) -> Self {
        let (what, reason) = (what.to_owned(), reason.to_string());
        Self::Value { what, reason }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub file: &'a Path,
    pub line: u64,
}

impl Place<'_> {
    pub(super) fn error(self, field: &str, reason: impl ToString) -> SimulateError {
        SimulateError::Line {
            file: self.file.to_owned(),
            line: self.line,
            field: field.to_owned(),
            reason: reason.to_string(),
        }
    }
}
