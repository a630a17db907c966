//! Defines the errors of rendering a template.

use std::fmt;

pub(super) type Result<T> = std::result::Result<T, Fault>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The template called `raise_exception`.
    Raised(String),
    Instructions,
    Output,
    Memory,
    Depth,
    /// The message of the exception that Python would raise.
    Other(String),
}

impl Fault {
    pub(super) fn other<T>(text: impl Into<String>) -> Result<T> {
        Err(Self::Other(text.into()))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raised(text) | Self::Other(text) => f.write_str(text),
            Self::Instructions => f.write_str("too many instructions"),
            Self::Output => f.write_str("too much output"),
            Self::Memory => f.write_str("too much memory"),
            Self::Depth => f.write_str("calls or values nest too deeply"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) fault: Fault,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (line {})", self.fault, self.line)
    }
}
