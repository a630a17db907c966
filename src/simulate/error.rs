//! Errors of simulations.

use std::path::{Path, PathBuf};

use crate::error::{ConfigError, LoadError, StartError};

/// Why something cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A file cannot be opened or read, or is not a trace.
    #[error("{}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The fault, and advice.
        reason: String,
    },
    /// A line of a trace cannot be used.
    #[error("{}, line {line}: {field} {reason}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The column or key.
        field: String,
        /// Its value, and the expectation.
        reason: String,
    },
    /// A value cannot be used.
    #[error("{what} {reason}")]
    Value {
        /// The name of the value.
        what: String,
        /// The value and its limits.
        reason: String,
    },
    /// The engine's configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's shape cannot be used, or does not fit into the memory.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The engine's parts cannot be made.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A bug: requests are inside, no step is in flight and none is planned.
    #[error("the scheduler made no progress with {inside} requests in flight at {now_s:.3} s")]
    Stuck {
        /// Requests inside.
        inside: usize,
        /// Virtual time, in seconds.
        now_s: f64,
    },
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

/// A position in a trace, for the errors.
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
