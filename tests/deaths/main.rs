//! Tests that the death of an actor or a thread loses no request, over real sockets.
//!
//! 32 mixed requests stream at once while faults of `--chaos` kill a part of the engine. Every answer must equal the
//! one of an undisturbed run, and a request that is sent at the moment of the death must be answered.
//!
//! `SOUFFLEUR_DEATHS` sets the kills of each part on each of the three models, of each part of a replica, and of the
//! Router. By default, there is one of each part on the bundled model, one of the Scheduler and of the Tokenizer on the
//! others, and one of a replica's Scheduler and of the Router. `SOUFFLEUR_DEATHS_SEED` sets the seed of the moments,
//! `SOUFFLEUR_DEATHS_MIXED` the seconds of a run with faults of all kinds.

mod files;
mod gate;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/http.rs"]
mod http;
mod kills;
mod load;
#[cfg(target_os = "linux")]
mod mixed;
mod models;
mod pause;
mod plan;
mod poison;
mod replicas;
#[path = "../common/repository.rs"]
mod repository;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../common/scripted.rs"]
mod scripted;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/world.rs"]
mod server;
mod streams;
mod undisturbed;
mod watch;
mod wave;
mod world;

/// The kills of each part, if the checks run in full.
fn full_kills() -> Option<usize> {
    number("SOUFFLEUR_DEATHS").map(|kills| kills as usize)
}

fn seed() -> u64 {
    number("SOUFFLEUR_DEATHS_SEED").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}, must be a number")))
}
