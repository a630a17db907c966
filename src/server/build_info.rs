//! The build of the program: its version, commit and features.

use serde::Serialize;

/// Which build of the program runs. `/server_info` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildInfo {
    pub version: &'static str,
    /// The first digits of the commit's hash, if the build knew it.
    pub commit: Option<&'static str>,
    /// The commit's date, as `2026-11-22`.
    pub commit_date: Option<&'static str>,
    /// The optional cargo features with which the program was compiled.
    pub features: Vec<&'static str>,
}

impl Default for BuildInfo {
    /// The version of this crate, for hosts that embed the server.
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: None,
            commit_date: None,
            features: Vec::new(),
        }
    }
}
