//! The Watchdog: stops the whole unit and builds a new one when an actor or the executor thread dies.
//!
//! A handler that panics may leave pages and tree inconsistent, so all actors are replaced together. Every request in
//! flight gets one `Failed(engine_down)`, which its sink sends when it is dropped with the Tokenizer. A failed build is
//! retried after growing waits. After the last attempt the Watchdog reports the failure to the host.

use std::sync::{Arc, RwLock};

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message,
    ResponseFuture, SpawnHandle, WrapFuture,
};
use tokio::sync::{oneshot, watch};

use crate::messages::{ActorDied, Doors, HostSettings};
use crate::rebuild::RebuildRules;
use crate::unit::{Blueprint, Survivor, Unit};
use souffleur_base::error::{LoadError, StartError};
use souffleur_metrics::DeathMetrics;

/// The actors and threads whose death ends the unit.
pub const UNIT_MEMBERS: [&str; 6] = [
    "tokenizer",
    "scheduler",
    "radix_cache",
    "allocator",
    "executor",
    "executor_thread",
];

/// Actors and threads whose death is logged and counted, without a rebuild. The next unit starts them again.
pub const STORE_MEMBERS: [&str; 2] = ["kv_store", "kv_store_thread"];

pub const FIRST_GENERATION: u64 = 1;

/// The addresses of the current unit's actors; `None` while there is no unit.
pub type AddressSlot = Arc<RwLock<Option<Doors>>>;

/// Why the engine stays down; `None` while rebuilds are tried.
pub type FailureWatch = watch::Receiver<Option<Arc<str>>>;

/// The unit that runs, or is built next, and the last death of a member of any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitStatus {
    pub generation: u64,
    pub died: Option<UnitDeath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitDeath {
    /// One of [`UNIT_MEMBERS`].
    pub actor: &'static str,
    /// The generation of the unit that died.
    pub generation: u64,
}

pub type UnitWatch = watch::Receiver<UnitStatus>;

/// Handle -> Watchdog: stop the unit and yourself. Answers when the executor thread has ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopUnit;

pub struct Watchdog {
    blueprint: Arc<Blueprint>,
    doors: AddressSlot,
    unit: Option<Unit>,
    /// The generation of the current or next unit: deaths in older ones are ignored.
    generation: u64,
    settings: HostSettings,
    /// A member of the next unit died before the unit's addresses were published.
    died_early: Option<ActorDied>,
    is_busy: bool,
    rules: RebuildRules,
    failed_attempts: usize,
    next_attempt: Option<SpawnHandle>,
    failure: watch::Sender<Option<Arc<str>>>,
    status: watch::Sender<UnitStatus>,
    is_stopping: bool,
    waiting: Vec<oneshot::Sender<()>>,
    metrics: DeathMetrics,
    /// Notifies its receiver when it is dropped with the watchdog.
    _stopped: oneshot::Sender<()>,
}

impl Watchdog {
    /// A watchdog without a unit. [`AdoptUnit`] brings the first one.
    pub fn new(
        blueprint: Arc<Blueprint>,
        doors: AddressSlot,
        stopped: oneshot::Sender<()>,
    ) -> Self {
        Self {
            rules: blueprint.rebuild,
            failed_attempts: 0,
            next_attempt: None,
            failure: watch::Sender::new(None),
            status: watch::Sender::new(UnitStatus {
                generation: FIRST_GENERATION,
                died: None,
            }),
            blueprint,
            doors,
            unit: None,
            generation: FIRST_GENERATION,
            settings: HostSettings::default(),
            died_early: None,
            is_busy: false,
            is_stopping: false,
            waiting: Vec::new(),
            metrics: DeathMetrics::register(&[&UNIT_MEMBERS[..], &STORE_MEMBERS[..]].concat()),
            _stopped: stopped,
        }
    }

    /// The returned receiver gets a reason when the watchdog has given up rebuilding.
    pub fn failure(&self) -> FailureWatch {
        self.failure.subscribe()
    }

    pub fn status(&self) -> UnitWatch {
        self.status.subscribe()
    }

    fn publish(&mut self, unit: Unit, ctx: &mut Context<Self>) {
        self.generation = unit.generation();
        *self
            .doors
            .write()
            .expect("a holder of the lock of the doors must not panic") = Some(unit.doors());
        self.unit = Some(unit);
        if let Some(died) = self.died_early.take() {
            ctx.notify(died);
        }
    }

    fn unpublish(&mut self) -> Option<Unit> {
        *self
            .doors
            .write()
            .expect("a holder of the lock of the doors must not panic") = None;
        self.unit.take()
    }

    /// Builds the next unit once the `dead` one, if any, has stopped.
    fn rebuild(&mut self, dead: Option<Unit>, ctx: &mut Context<Self>) {
        self.is_busy = true;
        // Further deaths in the dead unit are ignored: they are reported with the old generation.
        self.generation += 1;
        let generation = self.generation;
        self.status
            .send_modify(|status| status.generation = generation);
        let (blueprint, generation) = (self.blueprint.clone(), self.generation);
        let stopped = async move {
            if let Some(dead) = dead {
                dead.stop().await;
            }
        };
        // The settings are read after the stop: until then, the old Scheduler may accept new ones.
        let build = move |(), watchdog: &mut Self, ctx: &mut Context<Self>| {
            let begins_with = (survivor(&ctx.address()), watchdog.settings.clone());
            Unit::build(blueprint, generation, begins_with).into_actor(watchdog)
        };
        let opened = |rebuilt, watchdog: &mut Self, ctx: &mut Context<Self>| {
            watchdog.rebuilt(rebuilt, ctx);
        };
        ctx.spawn(stopped.into_actor(self).then(build).map(opened));
    }

    fn rebuilt(&mut self, rebuilt: Result<Unit, StartError>, ctx: &mut Context<Self>) {
        self.is_busy = false;
        match rebuilt {
            Ok(unit) if self.is_stopping => self.stop_unit(unit, ctx),
            Ok(unit) => {
                self.failed_attempts = 0;
                tracing::warn!(generation = unit.generation(), "engine rebuilt");
                self.publish(unit, ctx);
            }
            Err(_) if self.is_stopping => self.stop_if_idle(ctx),
            Err(error) => self.try_again(&error, ctx),
        }
    }

    fn try_again(&mut self, error: &StartError, ctx: &mut Context<Self>) {
        self.failed_attempts += 1;
        let attempts = self.failed_attempts;
        if let StartError::Load(LoadError::Replaced { .. }) = error {
            // The files hold another model than the one that clients know by this name.
            tracing::error!(%error, "not rebuilding the engine: its model files were replaced; it stays down");
            return self.give_up(&format!("the engine died and will not be rebuilt: {error}"));
        }
        let Some(wait) = self.rules.wait_after(attempts) else {
            tracing::error!(%error, attempts, "failed to rebuild the engine: it stays down until a restart");
            let reason = format!("the engine died and {attempts} attempts to rebuild it failed");
            return self.give_up(&format!("{reason}; the last error: {error}"));
        };
        let wait_s = wait.as_secs_f64();
        tracing::error!(%error, attempts, wait_s, "failed to rebuild the engine: trying again");
        let next = ctx.run_later(wait, |watchdog, ctx| {
            watchdog.next_attempt = None;
            watchdog.rebuild(None, ctx);
        });
        self.next_attempt = Some(next);
    }

    fn continue_without_store(&self, died: &ActorDied) {
        if self.is_stopping {
            return;
        }
        self.metrics.died(died.actor);
        tracing::error!(
            actor = died.actor,
            panicked = died.panicked,
            "the KV store died: prefixes are cached in memory only, until the engine is rebuilt after a failure, \
             or restarted"
        );
    }

    fn give_up(&mut self, reason: &str) {
        self.failure.send_replace(Some(reason.into()));
    }

    fn stop_unit(&mut self, unit: Unit, ctx: &mut Context<Self>) {
        self.is_busy = true;
        ctx.spawn(unit.stop().into_actor(self).map(|(), watchdog, ctx| {
            watchdog.is_busy = false;
            watchdog.stop_if_idle(ctx);
        }));
    }

    /// Stops the watchdog if this was requested and no task is in flight.
    fn stop_if_idle(&mut self, ctx: &mut Context<Self>) {
        if !self.is_stopping || self.is_busy {
            return;
        }
        for waiting in self.waiting.drain(..) {
            // The waiting side may be gone.
            let _ = waiting.send(());
        }
        ctx.stop();
    }
}

pub fn survivor(watchdog: &Addr<Watchdog>) -> Survivor {
    Survivor {
        died: watchdog.clone().recipient(),
        keeper: watchdog.clone().recipient(),
    }
}

impl Actor for Watchdog {
    type Context = Context<Self>;
}

impl Drop for Watchdog {
    /// The unit stops with the watchdog, also when the host has stopped its Arbiter.
    fn drop(&mut self) {
        if let Ok(mut doors) = self.doors.write() {
            *doors = None;
        }
        let has_given_up = self.failure.borrow().is_some();
        if !self.is_stopping && !has_given_up {
            self.give_up(
                "the engine's supervisor panicked (see the log), or the host program stopped the engine's actix \
                 Arbiter: start the engine again",
            );
        }
    }
}

/// Engine -> Watchdog, once: the first unit.
#[derive(Message)]
#[rtype(result = "()")]
pub struct AdoptUnit(pub Unit);

impl Handler<AdoptUnit> for Watchdog {
    type Result = ();

    fn handle(&mut self, adopt: AdoptUnit, ctx: &mut Context<Self>) {
        self.publish(adopt.0, ctx);
    }
}

impl Handler<ActorDied> for Watchdog {
    type Result = ();

    fn handle(&mut self, died: ActorDied, ctx: &mut Context<Self>) {
        if STORE_MEMBERS.contains(&died.actor) {
            return self.continue_without_store(&died);
        }
        if self.is_stopping || died.generation != self.generation {
            return;
        }
        let Some(unit) = self.unpublish() else {
            self.died_early = Some(died);
            return;
        };
        self.metrics.died(died.actor);
        let (actor, generation) = (died.actor, died.generation);
        let death = UnitDeath { actor, generation };
        self.status.send_modify(|status| status.died = Some(death));
        tracing::error!(
            actor = died.actor,
            panicked = died.panicked,
            "an actor died: rebuilding the engine"
        );
        self.rebuild(Some(unit), ctx);
    }
}

impl Handler<HostSettings> for Watchdog {
    type Result = ();

    fn handle(&mut self, settings: HostSettings, _: &mut Context<Self>) {
        self.settings = settings;
    }
}

impl Handler<StopUnit> for Watchdog {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: StopUnit, ctx: &mut Context<Self>) -> Self::Result {
        let (stopped, is_stopped) = oneshot::channel();
        self.waiting.push(stopped);
        self.is_stopping = true;
        if let Some(next_attempt) = self.next_attempt.take() {
            ctx.cancel_future(next_attempt);
        }
        match self.unpublish() {
            Some(unit) => self.stop_unit(unit, ctx),
            None => self.stop_if_idle(ctx),
        }
        Box::pin(async move {
            // A dropped sender means that the System is gone, which is a stop too.
            let _ = is_stopped.await;
        })
    }
}
