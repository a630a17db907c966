//! `GET /debug/actors`: the actors and threads of the engine, without a message to any of them.

use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::{death, death_shape};
use crate::error::ApiError;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{Shape, count, enum_of, flag, list, number, object, text};
use crate::state::AppState;
use souffleur_actors::router::ROUTER;
use souffleur_actors::status::UnitStatus;
use souffleur_actors::vision::VISION;
use souffleur_actors::watchdog::UNIT_MEMBERS;
use souffleur_engine::EngineHandle;
use souffleur_metrics::{MailboxCounts, mailbox_counts, process_time};

const STORE: &str = "kv_store";
const STATES: [&str; 4] = ["up", "restarting", "stopped", "dead"];

/// One actor or thread. The numbers of its mailbox are sums over the types of its messages, of the whole process.
#[derive(Serialize)]
struct Actor {
    actor: &'static str,
    state: &'static str,
    generation: u64,
    restarts: u64,
    depth: u64,
    handled: u64,
    busy_s: f64,
    longest_handler_s: f64,
    waiting_s: Option<f64>,
    handling: Option<Handling>,
    messages: Vec<Messages>,
}

#[derive(Serialize)]
struct Handling {
    message: &'static str,
    seconds: f64,
}

#[derive(Serialize)]
struct Messages {
    message: &'static str,
    depth: u64,
    handled: u64,
    busy_s: f64,
    longest_handler_s: f64,
}

pub(crate) async fn actors(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let engine = &state.loaded()?.engine;
    let (status, now) = (engine.unit_status(), Instant::now());
    let counts = mailbox_counts();
    let now_us = process_time(now).as_micros() as u64;
    let names = UNIT_MEMBERS.into_iter();
    let names = names.chain(status.router.map(|_| ROUTER));
    let names = names.chain(engine.store_bytes().map(|_| STORE));
    let names = names.chain(engine.encodes_images().then_some(VISION));
    let actors = names.map(|name| actor(name, engine, &status, (&counts[..], now_us)));
    Ok(HttpResponse::Ok().json(json!({
        "generation": status.generation,
        "is_up": status.is_up,
        "last_death": status.died.as_ref().map(|died| death(died, now)),
        "actors": actors.collect::<Vec<_>>(),
    })))
}

fn actor(
    name: &'static str,
    engine: &EngineHandle,
    status: &UnitStatus,
    (counts, now_us): (&[MailboxCounts], u64),
) -> Actor {
    let (generation, is_up, restarts) = match name {
        "tokenizer" => (
            status.tokenizer.generation,
            status.tokenizer.is_up,
            status.restarts.tokenizer,
        ),
        // Its number counts its starts.
        ROUTER => status.router.map_or((0, false, 0), |router| {
            let restarts = router.generation.saturating_sub(1);
            (router.generation, router.is_up, restarts)
        }),
        "executor_thread" => (
            status.executor_thread.generation,
            status.executor_thread.is_up,
            status.restarts.executor,
        ),
        _ => (status.generation, status.is_up, status.restarts.all()),
    };
    let state = if is_up && name == STORE && status.has_lost_store {
        "dead"
    } else if is_up {
        "up"
    } else if engine.is_over() {
        "stopped"
    } else {
        "restarting"
    };
    let counts: Vec<&MailboxCounts> = counts.iter().filter(|of| of.actor == name).collect();
    let sum = |part: fn(&MailboxCounts) -> u64| counts.iter().map(|of| part(of)).sum::<u64>();
    let since = |us: u64| seconds(now_us.saturating_sub(us));
    let waiting = counts.iter().filter_map(|of| of.waiting_since_us);
    let handling = counts.iter().filter_map(|of| {
        let seconds = since(of.handling_since_us?);
        Some(Handling {
            message: of.message,
            seconds,
        })
    });
    let longest = counts.iter().map(|of| of.longest_us);
    Actor {
        actor: name,
        state,
        generation,
        restarts,
        depth: sum(|of| of.depth),
        handled: sum(|of| of.handled),
        busy_s: seconds(sum(|of| of.busy_us)),
        longest_handler_s: seconds(longest.max().unwrap_or(0)),
        waiting_s: waiting.min().map(since),
        handling: handling.max_by(|a, b| a.seconds.total_cmp(&b.seconds)),
        messages: counts.iter().map(|of| messages(of)).collect(),
    }
}

fn messages(counts: &MailboxCounts) -> Messages {
    Messages {
        message: counts.message,
        depth: counts.depth,
        handled: counts.handled,
        busy_s: seconds(counts.busy_us),
        longest_handler_s: seconds(counts.longest_us),
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn actor_shape() -> Shape {
    let handling = object()
        .has("message", text())
        .has("seconds", number().at_least(0));
    let of_message = object()
        .has("message", text())
        .has("depth", count())
        .has("handled", count())
        .has("busy_s", number().at_least(0))
        .has("longest_handler_s", number().at_least(0));
    object()
        .has("actor", text())
        .has("state", enum_of(STATES))
        .has("generation", count())
        .has("restarts", count())
        .has("depth", count().about("messages in the mailbox"))
        .has("handled", count().about("messages whose handler has ended"))
        .has(
            "busy_s",
            number()
                .at_least(0)
                .about("the sum of the times of handlers"),
        )
        .has("longest_handler_s", number().at_least(0))
        .has(
            "waiting_s",
            number()
                .or_null()
                .about("seconds since the mailbox was empty: no message in it is older"),
        )
        .has(
            "handling",
            handling
                .shape()
                .or_null()
                .about("the handler that runs now, and its time"),
        )
        .has("messages", list(of_message.shape()))
        .shape()
}

pub(crate) fn operation(_: &Facts) -> Operation {
    let answer = object()
        .has("generation", count())
        .has("is_up", flag())
        .has("last_death", death_shape())
        .has("actors", list(actor_shape()));
    describe(Group::Server, "The engine's actors and threads")
        .about(
            "Reads counters and sends no message, so it answers while an actor hangs. The mailboxes' numbers belong to \
             the process and outlive restarts.",
        )
        .answers(answer.shape(), "the actors")
        .needs_engine("there is no engine")
        .done()
}
