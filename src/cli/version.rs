//! The version of the binary, as `souffleur --version`, `/server_info` and the metrics show it.

use souffleur::server::BuildInfo;

/// The version, commit and features of this build.
pub fn build_info() -> BuildInfo {
    let mut commit = env!("SOUFFLEUR_BUILT_COMMIT").split_whitespace();
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("grpc", cfg!(feature = "grpc")),
        ("hub", cfg!(feature = "hub")),
        ("otlp", cfg!(feature = "otlp")),
    ];
    let enabled = features.into_iter().filter(|(_, is_enabled)| *is_enabled);
    BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        commit: commit.next(),
        commit_date: commit.next(),
        features: enabled.map(|(name, _)| name).collect(),
    }
}

/// The text of `--version` after the program's name: `0.1.0 (f33cb7e0 2026-11-22, cuda, hub)`.
pub fn version() -> String {
    let BuildInfo {
        version,
        commit,
        commit_date,
        features,
    } = build_info();
    let commit = commit.unwrap_or("unknown commit").to_owned();
    let commit = commit_date.map_or(commit.clone(), |date| format!("{commit} {date}"));
    let parts: Vec<&str> = std::iter::once(commit.as_str()).chain(features).collect();
    format!("{version} ({})", parts.join(", "))
}
