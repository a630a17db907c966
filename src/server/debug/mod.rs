//! `/debug`: the state of the engine, for an admin who looks for the cause of a fault.
//!
//! `/debug/actors` and `/debug/engine` read atomics and the Watchdog's status: they answer while an actor hangs.
//! `/debug/requests` asks the Scheduler and the Tokenizer, and answers 503 if the Scheduler hangs.

pub(super) mod actors;
pub(super) mod engine;
pub(super) mod prefix;
pub(super) mod requests;

use std::time::Instant;

use serde_json::{Value, json};

use super::openapi::shape::{Shape, count, number, object, text};
use souffleur_actors::status::UnitDeath;

/// A death, on the clock of `now`.
fn death(died: &UnitDeath, now: Instant) -> Value {
    json!({
        "actor": died.actor,
        "generation": died.generation,
        "cause": &*died.cause,
        "seconds_ago": now.saturating_duration_since(died.at).as_secs_f64(),
    })
}

fn death_shape() -> Shape {
    object()
        .has("actor", text())
        .has("generation", count())
        .has(
            "cause",
            text().about(
                "the message and the place of the panic, the injected fault, or the error of the device",
            ),
        )
        .has("seconds_ago", number().at_least(0))
        .shape()
        .or_null()
}
