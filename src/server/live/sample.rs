//! The state that the sampler reads at one moment, for all viewers.

use std::time::Instant;

use crate::state::AppState;
use souffleur_actors::messages::{EngineView, ViewedRequests};
use souffleur_actors::status::UnitDeath;
use souffleur_actors::watchdog::FIRST_GENERATION;
use souffleur_engine::EngineHandle;
use souffleur_metrics::{MailboxCounts, mailbox_counts, process_time, stored_bytes};

/// The part of a sample whose changes are announced by a `hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) phase: &'static str,
    pub(super) reason: Option<String>,
    pub(super) generation: u64,
    pub(super) died: Option<UnitDeath>,
}

pub(super) struct Sample {
    pub(super) t_ms: f64,
    pub(super) status: Status,
    /// `None` without an engine.
    pub(super) view: Option<Box<EngineView>>,
    pub(super) mailboxes: Vec<MailboxCounts>,
    /// The bytes of the KV store: the largest number, and those in use.
    pub(super) store: Option<(u64, u64)>,
    /// While the weights are loaded: bytes loaded, and all.
    pub(super) loading: Option<(u64, u64)>,
}

impl Sample {
    /// Reads the state of the server, and asks the engine for its newest steps after `steps_after`. `generation` is the
    /// engine's when the number of that step was read.
    pub(super) async fn take(state: &AppState, generation: u64, steps_after: u64) -> Self {
        let Some(engine) = state.slot().engine() else {
            return Self::without_engine(state);
        };
        let view = engine.view(steps_after, ViewedRequests::CONSOLE).await.ok();
        let status = engine.unit_status();
        // A view of another unit does not match the number of the step.
        let view = view.filter(|_| status.generation == generation);
        let (phase, reason) = phase(state, engine, view.as_deref());
        Self {
            t_ms: now_ms(),
            status: Status {
                phase,
                reason,
                generation: status.generation,
                died: status.died,
            },
            mailboxes: if view.is_some() {
                mailbox_counts()
            } else {
                Vec::new()
            },
            view,
            store: engine.store_bytes().map(|total| (total, stored_bytes())),
            loading: None,
        }
    }

    fn without_engine(state: &AppState) -> Self {
        let reason = state.slot().failure().map(str::to_owned);
        let phase = match &reason {
            Some(_) => "failed",
            None if state.is_draining() => "stopping",
            None => "loading",
        };
        Self {
            t_ms: now_ms(),
            status: Status {
                phase,
                reason,
                generation: FIRST_GENERATION,
                died: None,
            },
            view: None,
            mailboxes: Vec::new(),
            store: None,
            loading: (phase == "loading").then(|| state.slot().loaded_bytes()),
        }
    }
}

fn phase(
    state: &AppState,
    engine: &EngineHandle,
    view: Option<&EngineView>,
) -> (&'static str, Option<String>) {
    if let Some(reason) = engine.failure_reason() {
        return ("failed", Some(reason.to_string()));
    }
    let phase = match view {
        _ if state.is_draining() || engine.is_over() => "stopping",
        Some(view) if view.stats.is_paused => "paused",
        Some(_) => "ready",
        None => "rebuilding",
    };
    (phase, None)
}

fn now_ms() -> f64 {
    process_time(Instant::now()).as_micros() as f64 / 1000.0
}

/// The generation of the unit that runs or is built next.
pub(super) fn generation_of(state: &AppState) -> u64 {
    let engine = state.slot().engine();
    engine.map_or(FIRST_GENERATION, |engine| engine.unit_status().generation)
}
