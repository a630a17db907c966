//! Tests of servers that are killed and restarted on the same KV store, with real processes and real files.
//!
//! `SOUFFLEUR_RESTART_KILLS` sets the number of kills of a server under load (default: 2); if set, the other tests run
//! every model, page size and kernel path. `SOUFFLEUR_RESTART_SEED` sets the seed of the random moments of kills.

mod bits;
mod damage;
mod events;
mod gpu;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/http.rs"]
mod http;
mod identity;
#[allow(
    dead_code,
    reason = "shared with tests whose engines are in one process"
)]
#[path = "../common/kernel_paths.rs"]
mod kernel_paths;
mod kills;
mod server;
mod troubles;
#[allow(dead_code, reason = "shared with the tests of the events")]
#[path = "../common/zmq_peer.rs"]
mod zmq_peer;

use std::path::{Path, PathBuf};

const BLOCK_TOKENS: u64 = 64;
/// Tokens in the whole blocks of [`prompt`].
const STORED_TOKENS: u64 = 2 * BLOCK_TOKENS;

/// The folder of a fixture, or of the bundled model.
fn model(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match name {
        "souffleur-tiny" => root.join("models").join(name),
        _ => root.join("tests/fixtures/models").join(name),
    }
}

/// A prompt of two whole blocks and some more tokens, all of which every vocabulary has.
fn prompt(seed: u32) -> Vec<u32> {
    let tokens = 0..STORED_TOKENS as u32 + 22;
    tokens
        .map(|i| (i * 17 + seed * 5 + i / 7 + i * i % (seed + 11)) % 288)
        .collect()
}

/// A number in the environment; `None` where it is not set.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn kills() -> Option<u64> {
    number("SOUFFLEUR_RESTART_KILLS")
}

fn runs_all_cases() -> bool {
    kills().is_some()
}
