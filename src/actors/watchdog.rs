//! The Watchdog: starts dead actors again, with the smallest restart that cures.
//!
//! A handler that panics may leave pages and tree inconsistent, so the control actors are replaced together. The
//! executor's thread, which has the weights, is replaced only if it has ended, and the Tokenizer, which has the live
//! requests and their clients, only if it has died itself: its requests go to the next one. The KvStore is started
//! again alone. A failed load of the executor is retried after growing waits. After the last attempt, and after too
//! many restarts in a short time, the Watchdog ends every request and reports the failure to the host.

mod hang;
mod replica;
mod replicas;
mod restart;

use std::sync::{Arc, RwLock};
use std::time::Instant;

use actix::{Actor, AsyncContext, Context, Handler, Message, ResponseFuture};
use tokio::sync::{oneshot, watch};

use crate::beats::Watch;
use crate::kv_store::StoreKeeper;
use crate::messages::{ActorDied, CancelAll, Doors, Generate, HostSettings, Unread};
use crate::router::{ROUTER, RouterKeeper};
use crate::status::{MemberStatus, UnitDeath, UnitStatus, UnitWatch};
use crate::tokenizer::arbiter::TokenizerArbiter;
use crate::tokenizer::{Estate, HandOver};
use crate::unit::Blueprint;
use crate::vision::VISION;
use souffleur_base::error::StartError;
use souffleur_base::ids::UnitId;
use souffleur_metrics::{DeathMetrics, RestartMetrics};
use souffleur_state::supervision::blame::{Signature, Suspicion};
use souffleur_state::supervision::{Death, Incarnation, Member, Restart, Ruling, Supervision};

use replica::Replica;

pub use souffleur_state::supervision::FIRST_GENERATION;

/// The actors and threads whose death is followed by a restart.
pub const UNIT_MEMBERS: [&str; 6] = [
    "tokenizer",
    "scheduler",
    "radix_cache",
    "allocator",
    "executor",
    "executor_thread",
];

/// The actor and the thread of the KV store. Their death is followed by a restart of the store alone.
pub const STORE_MEMBERS: [&str; 2] = ["kv_store", "kv_store_thread"];

/// The addresses of the current actors; `None` before the start and after the end.
pub type AddressSlot = Arc<RwLock<Option<Doors>>>;

/// Why the engine stays down; `None` while it runs or is restarted.
pub type FailureWatch = watch::Receiver<Option<Arc<str>>>;

/// Engine -> Watchdog, once: load the executor and start the actors.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), StartError>")]
pub struct StartUnit;

/// Handle -> Watchdog: stop the actors and yourself. Answers when the executor thread has ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopUnit;

pub struct Watchdog {
    blueprint: Arc<Blueprint>,
    doors: AddressSlot,
    supervision: Supervision,
    /// The clock of the supervision.
    started: Instant,
    /// The units, by their ids.
    replicas: Vec<Replica>,
    tokenizer: Option<TokenizerArbiter>,
    store: StoreKeeper,
    router: RouterKeeper,
    /// What a dead Tokenizer has left for the next one.
    estate: Option<Box<Estate>>,
    unread: Vec<Generate>,
    /// The next Tokenizer must cancel all requests.
    cancels_all: bool,
    /// The number of the Tokenizer to start once the actors of a unit have stopped.
    due_tokenizer: Option<u64>,
    /// Gets the outcome of the first start.
    first: Option<oneshot::Sender<Result<(), StartError>>>,
    /// The thread that notices hangs sets it too.
    failure: Arc<watch::Sender<Option<Arc<str>>>>,
    /// `None` if no thread is watched.
    watch: Option<Watch>,
    status: watch::Sender<UnitStatus>,
    is_stopping: bool,
    waiting: Vec<oneshot::Sender<()>>,
    metrics: DeathMetrics,
    restarts: RestartMetrics,
    /// Notifies its receiver when it is dropped with the watchdog.
    _stopped: oneshot::Sender<()>,
}

impl Watchdog {
    /// A watchdog without actors. [`StartUnit`] starts them.
    pub fn new(
        blueprint: Arc<Blueprint>,
        doors: AddressSlot,
        stopped: oneshot::Sender<()>,
    ) -> Self {
        let store = StoreKeeper::new(
            (blueprint.store.clone(), blueprint.chaos.clone()),
            blueprint.rebuild,
            blueprint.rules.restarts,
        );
        let router = RouterKeeper::new(
            blueprint.router_setup(),
            blueprint.rules.restarts,
            blueprint.chaos.clone(),
        );
        let mut members = [&UNIT_MEMBERS[..], &STORE_MEMBERS[..]].concat();
        members.extend(router.status().map(|_| ROUTER));
        members.extend(blueprint.vision.as_ref().map(|_| VISION));
        let devices = blueprint.executors.iter().map(|executor| executor.device);
        Self {
            supervision: Supervision::new(blueprint.rules, blueprint.units).on_devices(devices),
            replicas: (0..blueprint.units).map(|_| Replica::new()).collect(),
            started: Instant::now(),
            first: None,
            failure: Arc::new(watch::Sender::new(None)),
            watch: None,
            status: watch::Sender::new(UnitStatus::new(blueprint.rules.restarts)),
            blueprint,
            doors,
            tokenizer: None,
            store,
            router,
            estate: None,
            unread: Vec::new(),
            cancels_all: false,
            due_tokenizer: None,
            is_stopping: false,
            waiting: Vec::new(),
            metrics: DeathMetrics::register(&members),
            restarts: RestartMetrics::register(),
            _stopped: stopped,
        }
    }

    /// The returned receiver gets a reason when the watchdog has given up.
    pub fn failure(&self) -> FailureWatch {
        self.failure.subscribe()
    }

    pub fn status(&self) -> UnitWatch {
        self.status.subscribe()
    }

    fn publish(&self, doors: Option<Doors>) {
        *self
            .doors
            .write()
            .expect("a holder of the lock of the doors must not panic") = doors;
    }

    fn unit_ids(&self) -> impl Iterator<Item = UnitId> + use<> {
        (0..self.blueprint.units).map(UnitId::new)
    }

    fn replica(&mut self, unit: UnitId) -> &mut Replica {
        &mut self.replicas[unit.index()]
    }

    fn show_replicas(&self) {
        let replicas = self.unit_ids().zip(&self.replicas);
        let replicas = replicas.map(|(unit, replica)| MemberStatus {
            generation: self.supervision.newest(unit).generation,
            is_up: replica.unit.is_some(),
        });
        let replicas: Vec<MemberStatus> = replicas.collect();
        self.status.send_modify(|status| status.show(replicas));
    }

    /// True once no actor will be started again.
    fn is_over(&self) -> bool {
        self.is_stopping || self.failure.borrow().is_some()
    }

    /// The death as the supervision knows it.
    fn death(&self, died: &ActorDied) -> Option<Death> {
        let Some(unit) = died.unit else {
            let number = died.generation;
            return (died.actor == "tokenizer").then_some(Death::Tokenizer { number });
        };
        let replica = self.replicas.get(unit.index())?;
        let thread_lives = replica.has_executor();
        let member = match died.actor {
            "scheduler" => Member::Scheduler,
            "radix_cache" => Member::RadixCache,
            "allocator" => Member::Allocator,
            "executor" => Member::Executor,
            // The thread has caught the panic, and waits for the next unit.
            "executor_thread" if thread_lives => Member::Executor,
            "executor_thread" => Member::ExecutorThread,
            VISION => Member::Vision,
            _ => return None,
        };
        let mut generation = died.generation;
        let executor_since = self.supervision.executor_since(unit);
        if member == Member::ExecutorThread && generation >= executor_since {
            generation = executor_since;
        }
        Some(Death::Member {
            member,
            since: Incarnation { unit, generation },
            in_hand: died.generation,
        })
    }

    fn restart(
        &mut self,
        restart: &Restart,
        (died, at): (&ActorDied, Instant),
        ctx: &mut Context<Self>,
    ) {
        tracing::error!(
            actor = died.actor,
            panicked = died.panicked,
            cause = &*died.cause,
            level = restart.level.as_str(),
            restarts_left = self.supervision.restarts_left(),
            "an actor died: restarting, live requests continue"
        );
        self.due_tokenizer = restart.tokenizer.or(self.due_tokenizer);
        for next in &restart.units {
            let replica = self.replica(next.unit);
            replica.due.add(restart.level);
            replica.down_since.get_or_insert(at);
        }
        self.restarts.restarted(restart);
        let left = self.supervision.restarts_left();
        self.status.send_modify(|status| {
            if let Some(next) = restart.units.first() {
                status.generation = next.generation;
            }
            status.restarting(restart, left);
        });
        for next in &restart.units {
            if self.replica(next.unit).next_attempt.is_none() {
                self.replace(next.unit, ctx);
            }
        }
        self.show_replicas();
        if restart.tokenizer.is_none() {
            for next in &restart.units {
                let suspicion = self.supervision.suspicion(next.unit).clone();
                self.move_requests(next.unit, suspicion);
            }
        }
    }
}

/// The requests that may have caused a death.
fn suspicion(died: &ActorDied) -> Suspicion {
    let cause = Signature {
        actor: died.actor,
        place: died.place.clone(),
    };
    match died.in_hand {
        Some(intake) => Suspicion::One(intake, cause),
        None => Suspicion::All(cause),
    }
}

impl Actor for Watchdog {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.watch_threads(ctx);
    }
}

impl Drop for Watchdog {
    /// The actors stop with the watchdog, also when the host has stopped its Arbiter.
    fn drop(&mut self) {
        if let Ok(mut doors) = self.doors.write() {
            *doors = None;
        }
        self.status.send_modify(UnitStatus::stopped);
        if !self.is_over() {
            let reason = "the engine's supervisor panicked (see the log), or the host program stopped the engine's \
                          actix Arbiter: start the engine again";
            self.failure.send_replace(Some(reason.into()));
        }
    }
}

impl Handler<StartUnit> for Watchdog {
    type Result = ResponseFuture<Result<(), StartError>>;

    fn handle(&mut self, _: StartUnit, ctx: &mut Context<Self>) -> Self::Result {
        let (started, is_started) = oneshot::channel();
        self.first = Some(started);
        for replica in &mut self.replicas {
            replica.is_busy = true;
        }
        self.start_router(ctx);
        self.start_tokenizer(FIRST_GENERATION, ctx);
        for unit in self.unit_ids() {
            self.load(unit, ctx);
        }
        Box::pin(async move {
            let stopped = |_| Err(StartError::Thread("the watchdog was stopped".to_owned()));
            is_started.await.unwrap_or_else(stopped)
        })
    }
}

impl Handler<ActorDied> for Watchdog {
    type Result = ();

    fn handle(&mut self, died: ActorDied, ctx: &mut Context<Self>) {
        if STORE_MEMBERS.contains(&died.actor) {
            return self.store_died(&died, ctx);
        }
        if self.is_over() {
            return;
        }
        if died.actor == ROUTER {
            return self.router_died(&died, ctx);
        }
        let Some(death) = self.death(&died) else {
            return;
        };
        let now_s = self.started.elapsed().as_secs_f64();
        let ruling = self.supervision.died(death, suspicion(&died), now_s);
        if ruling == Ruling::Ignored {
            return;
        }
        self.metrics.died(died.actor);
        let (actor, generation) = (died.actor, died.generation);
        let at = Instant::now();
        let death = UnitDeath {
            actor,
            generation,
            cause: died.cause.clone(),
            at,
        };
        self.status.send_modify(|status| status.died = Some(death));
        match ruling {
            Ruling::Ignored => (),
            Ruling::Restart(restart) => self.restart(&restart, (&died, at), ctx),
            Ruling::GivesUp => {
                let restarts = self.blueprint.rules.restarts;
                let reason = format!(
                    "{actor} died after {} restarts within {} s, which is the limit (--max-restarts): see the log for \
                     the causes",
                    restarts.limit, restarts.period_s
                );
                tracing::error!(reason, "the engine ends: its actors die too often");
                self.give_up(&reason, ctx);
            }
        }
    }
}

impl Handler<HandOver> for Watchdog {
    type Result = ();

    fn handle(&mut self, HandOver(estate): HandOver, _: &mut Context<Self>) {
        if !self.is_over() {
            self.estate = Some(estate);
        }
    }
}

impl Handler<Unread> for Watchdog {
    type Result = ();

    fn handle(&mut self, Unread(generate): Unread, ctx: &mut Context<Self>) {
        if self.is_over() {
            return;
        }
        let generate = generate.returning_to(ctx.address().recipient());
        match &self.tokenizer {
            Some(running) if running.tokenizer.connected() => running.tokenizer.do_send(generate),
            _ => self.unread.push(generate),
        }
    }
}

/// A host that finds no Tokenizer cancels all requests here.
impl Handler<CancelAll> for Watchdog {
    type Result = ();

    fn handle(&mut self, cancel: CancelAll, _: &mut Context<Self>) {
        match &self.tokenizer {
            Some(running) if running.tokenizer.connected() => running.tokenizer.do_send(cancel),
            _ => self.cancels_all = true,
        }
    }
}

impl Handler<HostSettings> for Watchdog {
    type Result = ();

    fn handle(&mut self, settings: HostSettings, _: &mut Context<Self>) {
        let HostSettings {
            unit,
            desired,
            pins,
        } = settings;
        self.status
            .send_modify(|status| status.is_paused = desired.paused);
        self.supervision.desired = desired;
        self.replica(unit).pins = pins;
    }
}

impl Handler<StopUnit> for Watchdog {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: StopUnit, ctx: &mut Context<Self>) -> Self::Result {
        let (stopped, is_stopped) = oneshot::channel();
        self.waiting.push(stopped);
        if !self.is_over() {
            // A shutdown loses no request.
            self.blueprint.tokenizer.admission.expect_drops();
        }
        self.is_stopping = true;
        self.watch = None;
        self.publish(None);
        for replica in &mut self.replicas {
            if let Some(next_attempt) = replica.next_attempt.take() {
                ctx.cancel_future(next_attempt);
            }
        }
        self.stop_all(ctx);
        Box::pin(async move {
            // A dropped sender means that the System is gone, which is a stop too.
            let _ = is_stopped.await;
        })
    }
}
