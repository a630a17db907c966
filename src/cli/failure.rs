//! Why a command ends early, and with which exit code.

use std::fmt::Display;

use souffleur::error::StartError;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command line or configuration cannot be used.
    Usage(String),
    /// Something could not be started or done.
    Failed(String),
}

impl Failure {
    /// Something could not be started or done.
    pub fn failed(reason: impl Display) -> Self {
        Self::Failed(reason.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Config(error) => Self::Usage(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}
