//! Kills an actor at its next message.
//!
//! A fault of no length (`docs/chaos.md`) fires at each message of the victims. It writes an event to the log from the
//! actor's thread, and the program's subscriber panics in the event, so the actor dies at a moment of the program's
//! choice.

use std::panic::panic_any;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use souffleur::chaos::Spec;
use tokio::sync::oneshot;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub struct Victim {
    /// Its name in specs.
    pub actor: &'static str,
    message: &'static str,
    /// The actor gets no message from a step of decodes.
    pub needs_tree_plan: bool,
}

const fn victim(actor: &'static str, message: &'static str) -> Victim {
    Victim {
        actor,
        message,
        needs_tree_plan: false,
    }
}

pub static VICTIMS: [Victim; 4] = [
    victim("scheduler", "StepDone"),
    Victim {
        needs_tree_plan: true,
        ..victim("radix_cache", "PlanStep")
    },
    victim("allocator", "ReservePages"),
    victim("executor", "RunStep"),
];

struct Armed {
    actor: &'static str,
    struck: oneshot::Sender<Instant>,
}

static ARMED: Mutex<Option<Armed>> = Mutex::new(None);

/// The payload of the panics.
struct Killed;

/// The faults that fire at the messages of the victims.
pub fn specs() -> Vec<Spec> {
    let specs = VICTIMS.iter().map(|victim| {
        let Victim { actor, message, .. } = victim;
        let spec = format!("actor={actor},kind=delay,message={message},phase=entry,for=0ms");
        spec.parse().expect("the names are those of points")
    });
    specs.collect()
}

/// Installs the subscriber, and a panic hook that leaves out its panics.
pub fn install() {
    tracing::subscriber::set_global_default(Killer).expect("there is no other subscriber");
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Killed>() {
            report(panic);
        }
    }));
}

/// Kills the victim at its next message. The receiver gets the time.
pub fn arm(victim: &Victim) -> oneshot::Receiver<Instant> {
    let (struck, is_struck) = oneshot::channel();
    let armed = Armed {
        actor: victim.actor,
        struck,
    };
    *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(armed);
    is_struck
}

/// The actor that a fault fires in.
#[derive(Default)]
struct FaultyActor(String);

impl Visit for FaultyActor {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "actor" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

struct Killer;

impl Subscriber for Killer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("souffleur_chaos")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut faulty = FaultyActor::default();
        event.record(&mut faulty);
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = armed.take_if(|armed| armed.actor == faulty.0);
        drop(armed);
        if let Some(Armed { struck, .. }) = taken {
            // The receiver may have given up.
            let _ = struck.send(Instant::now());
            panic_any(Killed);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
