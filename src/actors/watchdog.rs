//! The Watchdog: when an actor or the executor thread dies, it ends the whole unit and builds a new one.
//!
//! After a half-done handler neither pages nor the tree can be trusted, so the actors live and die together. Every
//! request inside gets one `Failed(engine_down)`: its sink sends it when it is dropped with the Tokenizer.

use std::sync::{Arc, RwLock};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient,
    WrapFuture,
};
use tokio::sync::oneshot;

use crate::actors::messages::{ActorDied, Doors};
use crate::actors::unit::{Blueprint, Unit};
use crate::error::StartError;
use crate::metrics::DeathMetrics;
use crate::state::pages::PoolLedger;

/// Everybody whose death is told.
pub const MORTALS: [&str; 6] = [
    "tokenizer",
    "scheduler",
    "radix_cache",
    "allocator",
    "executor",
    "executor_thread",
];

/// The doors of the unit that lives now; `None` while there is none.
pub type DoorSlot = Arc<RwLock<Option<Doors>>>;

/// Unit -> each of its actors: stop, this is no death.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct StopActor;

/// Handle -> Watchdog: stop the unit and yourself. Answers when the executor thread has ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopUnit;

/// Tells the Watchdog when it is dropped without having been disarmed.
///
/// It closes the pool's ledger too: whatever goes down with its actor is lost with the whole unit, and no leak. An
/// actor that holds pages has its note as its first field, so that it is dropped before them.
pub struct DeathNote {
    actor: &'static str,
    generation: u64,
    to: Option<Recipient<ActorDied>>,
    ledger: Arc<PoolLedger>,
}

impl DeathNote {
    /// A note for one actor of one generation of the unit.
    pub fn new(
        actor: &'static str,
        generation: u64,
        to: Recipient<ActorDied>,
        ledger: Arc<PoolLedger>,
    ) -> Self {
        Self {
            actor,
            generation,
            to: Some(to),
            ledger,
        }
    }

    /// A note that nobody reads, for actors wired by a host or a test.
    pub fn unread(actor: &'static str, ledger: Arc<PoolLedger>) -> Self {
        Self {
            actor,
            generation: 0,
            to: None,
            ledger,
        }
    }

    /// The actor stops as it should.
    pub fn disarm(&mut self) {
        self.to = None;
    }
}

impl Drop for DeathNote {
    fn drop(&mut self) {
        self.ledger.close();
        if let Some(to) = self.to.take() {
            to.do_send(ActorDied {
                actor: self.actor,
                generation: self.generation,
                panicked: std::thread::panicking(),
            });
        }
    }
}

/// What every actor does on [`StopActor`].
pub fn stop_actor<A: Actor<Context = Context<A>>>(note: &mut DeathNote, ctx: &mut Context<A>) {
    note.disarm();
    ctx.stop();
}

/// See the module.
pub struct Watchdog {
    blueprint: Arc<Blueprint>,
    doors: DoorSlot,
    unit: Option<Unit>,
    generation: u64,
    metrics: DeathMetrics,
    /// Dropped with the watchdog: whoever holds the other end learns of its stop.
    _stopped: oneshot::Sender<()>,
    is_stopping: bool,
}

impl Watchdog {
    /// A watchdog with the first unit still to be handed to it by [`AdoptUnit`].
    pub fn new(blueprint: Arc<Blueprint>, doors: DoorSlot, stopped: oneshot::Sender<()>) -> Self {
        let metrics = DeathMetrics::register(&MORTALS);
        Self {
            blueprint,
            doors,
            unit: None,
            generation: 0,
            metrics,
            _stopped: stopped,
            is_stopping: false,
        }
    }

    fn open(&mut self, unit: Unit) {
        self.generation = unit.generation();
        *self
            .doors
            .write()
            .expect("nobody panics with the door slot") = Some(unit.doors());
        self.unit = Some(unit);
    }

    fn close(&mut self) -> Option<Unit> {
        *self
            .doors
            .write()
            .expect("nobody panics with the door slot") = None;
        self.unit.take()
    }
}

impl Actor for Watchdog {
    type Context = Context<Self>;
}

impl Drop for Watchdog {
    /// The unit goes with it, also when the host has stopped the Arbiter below.
    fn drop(&mut self) {
        if let Ok(mut doors) = self.doors.write() {
            *doors = None;
        }
    }
}

/// Engine -> Watchdog, once: the first unit.
#[derive(Message)]
#[rtype(result = "()")]
pub struct AdoptUnit(pub Unit);

impl Handler<AdoptUnit> for Watchdog {
    type Result = ();

    fn handle(&mut self, adopt: AdoptUnit, _: &mut Context<Self>) {
        self.open(adopt.0);
    }
}

impl Handler<ActorDied> for Watchdog {
    type Result = ();

    fn handle(&mut self, died: ActorDied, ctx: &mut Context<Self>) {
        if self.is_stopping || died.generation != self.generation {
            return;
        }
        self.metrics.died(died.actor);
        tracing::error!(
            actor = died.actor,
            panicked = died.panicked,
            "an actor died, the engine is rebuilt"
        );
        let Some(unit) = self.close() else { return };
        let next_generation = self.generation + 1;
        // Deaths that follow from this one are told with the old number.
        self.generation = next_generation;
        let blueprint = self.blueprint.clone();
        let note_to = ctx.address().recipient();
        let rebuilt = async move {
            unit.stop().await;
            Unit::build(blueprint, next_generation, note_to).await
        };
        ctx.spawn(
            rebuilt
                .into_actor(self)
                .map(|rebuilt, watchdog, _| watchdog.rebuilt(rebuilt)),
        );
    }
}

impl Watchdog {
    fn rebuilt(&mut self, rebuilt: Result<Unit, StartError>) {
        match rebuilt {
            Ok(unit) if !self.is_stopping => {
                tracing::warn!(generation = unit.generation(), "the engine is rebuilt");
                self.open(unit);
            }
            Ok(unit) => drop(actix_rt::spawn(unit.stop())),
            Err(error) => tracing::error!(%error, "the engine cannot be rebuilt and stays down"),
        }
    }
}

impl Handler<StopUnit> for Watchdog {
    type Result = actix::ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: StopUnit, _: &mut Context<Self>) -> Self::Result {
        self.is_stopping = true;
        let unit = self.close();
        let (stopped, is_stopped) = oneshot::channel();
        actix_rt::spawn(async move {
            if let Some(unit) = unit {
                unit.stop().await;
            }
            // The asker may have given up waiting.
            let _ = stopped.send(());
        });
        let wait = async move {
            // A dropped sender means that the System is gone, which is a stop too.
            let _ = is_stopped.await;
        };
        Box::pin(wait.into_actor(self).map(|(), _, ctx| ctx.stop()))
    }
}
