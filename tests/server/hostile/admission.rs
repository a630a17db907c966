//! Requests that come in by other doors than the server are admitted like any other.
