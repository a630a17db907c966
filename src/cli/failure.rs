//! The errors that end a command, with different exit codes for wrong usage and other failures.

use std::fmt::Display;

use souffleur::error::StartError;

#[derive(Debug)]
pub enum Failure {
    Usage(String),
    Failed(String),
    /// The engine has failed permanently while it served.
    Ended(String),
}

impl Failure {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            // EX_SOFTWARE of sysexits.h.
            Self::Ended(_) => 70,
        }
    }

    pub fn failed(reason: impl Display) -> Self {
        Self::Failed(reason.to_string())
    }

    /// For `map_err`: names the operation that failed.
    pub fn to<E: Display>(operation: impl Display) -> impl Fn(E) -> Self {
        move |error| Self::Failed(format!("failed to {operation}: {error}"))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Usage(reason) | Self::Failed(reason) | Self::Ended(reason)) = self;
        f.write_str(reason)
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
