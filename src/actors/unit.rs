//! A unit: the control actors, which start and stop together. The executor's thread, the Tokenizer and the KvStore
//! outlive them.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Recipient};

use crate::allocator::{Allocator, GrantReceiver};
use crate::beats::{BeatingExecutor, Beats};
use crate::death::{DeathNote, StopActor};
use crate::executor::{Executor, ExecutorFactory, ExecutorThread};
use crate::kv_store::{StoreLinks, StoreSetup};
use crate::links::SchedulerLinks;
use crate::mailbox::Mailbox;
use crate::messages::{
    ActorDied, Doors, HostSettings, ImageEncoded, ReservePages, StoreOrders, VisionOrders,
};
use crate::radix_cache::RadixCache;
use crate::rebuild::RebuildRules;
use crate::router::RouterSetup;
use crate::scheduler::{Links, Scheduler};
use crate::tokenizer::{Tokenizer, TokenizerSettings};
use crate::vision::{VISION, Vision, VisionSetup};
use souffleur_base::error::{LoadError, StartError};
use souffleur_base::ids::UnitId;
use souffleur_chaos::Chaos;
use souffleur_kv_events::{KvEventPublishers, KvEventsOutlet};
use souffleur_metrics::SchedulerMetrics;
use souffleur_record::{LogSink, RecordedScheduler};
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::docket;
use souffleur_state::pool::pages::PoolLedger;
use souffleur_state::router::{LoadBalance, recent_window};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::submission::{IdFloor, Resume};
use souffleur_state::supervision::{Incarnation, Rules};

/// Binds the thread of a unit's executor to CPUs. It is called on this thread, before the executor is made.
pub type BindThread = dyn Fn(UnitId) + Send + Sync;

/// How the executor of a unit is made.
#[derive(Clone)]
pub struct UnitExecutor {
    pub make: Arc<ExecutorFactory>,
    /// Units with the same number share a device: they lose their executors together, and are started again together.
    pub device: u32,
}

/// Everything needed to start the actors, and to start them again.
pub struct Blueprint {
    /// Label of metrics.
    pub model_name: String,
    /// The number of units, at least 1.
    pub units: u32,
    /// How requests are divided among several units.
    pub load_balance: LoadBalance,
    /// Setup of the scheduler, cache and pools. Its names and sizes have been checked.
    pub control: ControlSetup,
    /// The message log, to which every unit writes its part, if one is kept.
    pub record: Option<Arc<LogSink>>,
    /// Publishers of the changes of the units' caches, if they are published.
    pub kv_events: Option<KvEventPublishers>,
    pub tokenizer: TokenizerSettings,
    /// The units' executors, indexed by the unit's id.
    pub executors: Vec<UnitExecutor>,
    pub bind_thread: Arc<BindThread>,
    pub store: Option<Arc<StoreSetup>>,
    /// `None` without a vision tower.
    pub vision: Option<Arc<VisionSetup>>,
    pub rebuild: RebuildRules,
    /// How many restarts are allowed before the engine ends.
    pub rules: Rules,
    /// The signs of life of the engine's threads.
    pub beats: Beats,
    /// Time after which, and then interval at which, a request in flight is logged; `None` for never.
    pub log_long_requests: Option<Duration>,
    /// The faults that actors inject into themselves.
    pub chaos: Chaos,
}

impl Blueprint {
    pub fn kv_events_outlet(&self) -> Option<KvEventsOutlet> {
        let publishers = self.kv_events.as_ref();
        publishers.map(|publishers| publishers.outlet().clone())
    }

    pub(crate) fn router_setup(&self) -> RouterSetup {
        let limits = &self.control.limits;
        let pool_tokens = limits.page_size.tokens_in(limits.total_pages);
        RouterSetup {
            replicas: self.units,
            rule: self.load_balance,
            has_cache: limits.queue.eviction_policy.is_some(),
            window_tokens: recent_window(pool_tokens, self.units),
        }
    }

    /// The metrics of a unit's Scheduler, with the unit's rank if there are replicas.
    fn scheduler_metrics(&self, unit: UnitId) -> SchedulerMetrics {
        let metrics = if self.units > 1 {
            SchedulerMetrics::register_replica(&self.model_name, unit.get())
        } else {
            SchedulerMetrics::register(&self.model_name)
        };
        metrics.record_room(self.tokenizer.room);
        metrics
    }

    /// Clears the gauges of a replica that has stopped, since the others have its requests. The requests of a single
    /// unit wait for it.
    pub(crate) fn clear_gauges(&self, unit: UnitId) {
        if self.units > 1 {
            let metrics = self.scheduler_metrics(unit);
            metrics.record_plan(&EngineStats {
                page_size: self.control.limits.page_size.get(),
                ..EngineStats::default()
            });
            metrics.clear_drafts();
        }
    }

    /// Loads the executor of a unit on a new thread.
    ///
    /// # Errors
    /// If the executor cannot be loaded, or its thread cannot be started or dies.
    pub async fn load_executor(&self, unit: UnitId) -> Result<ExecutorThread, StartError> {
        let make = self.executors[unit.index()].make.clone();
        let beat = self.beats.executor(unit).clone();
        let bind_thread = self.bind_thread.clone();
        let factory = move || -> Result<Box<dyn souffleur_executor::Executor>, LoadError> {
            bind_thread(unit);
            Ok(Box::new(BeatingExecutor::new(make()?, beat.clone())))
        };
        let (thread, loaded) = ExecutorThread::spawn(
            Arc::new(factory),
            self.control.limits.eos_token_ids.clone(),
        )
        .map_err(|error| {
            StartError::Thread(format!(
                "the executor's thread could not be started: {error}; raise the limit of threads (ulimit -u)"
            ))
        })?;
        let panicked = |_| {
            StartError::Thread(
                "the thread that loads the executor panicked (see the log)".to_owned(),
            )
        };
        loaded.await.map_err(panicked)??;
        Ok(thread)
    }
}

/// What outlives a unit, and its actors need.
pub struct Survivors<'a> {
    pub died: Recipient<ActorDied>,
    pub keeper: Recipient<HostSettings>,
    pub tokenizer: &'a Addr<Tokenizer>,
    pub executor: &'a ExecutorThread,
    pub store: Option<Mailbox<StoreOrders>>,
}

/// The running control actors of one generation; they stop when it is dropped.
pub struct Unit {
    scheduler: Addr<Scheduler>,
    radix_cache: Addr<RadixCache>,
    stop: Vec<Recipient<StopActor>>,
    ledger: Arc<PoolLedger>,
}

impl Unit {
    /// Starts the actors, on the Arbiter of the caller. `settings` are those that hosts made before.
    pub fn start(
        blueprint: &Blueprint,
        at: Incarnation,
        survivors: Survivors<'_>,
        settings: HostSettings,
    ) -> Self {
        let Survivors {
            died,
            keeper,
            tokenizer,
            executor: thread,
            store,
        } = survivors;
        let states = blueprint.control.build();
        let ControlStates {
            scheduler: state,
            cache,
            pools,
            ledger,
            evicted_nodes: _,
        } = states.expect("the names and sizes were checked with the configuration");
        let (generation, chaos) = (at.generation, &blueprint.chaos);
        let note = |actor| DeathNote::new(actor, at, died.clone(), ledger.clone());
        let events = blueprint.kv_events.as_ref();
        let events = events.map(|publishers| publishers.feed(at));
        let mut parts = None;
        let scheduler = Scheduler::create(|ctx| {
            let me = ctx.address();
            let planned = GrantReceiver::Scheduler(Mailbox::of(&me, "scheduler", "StepPlanned"));
            let allocator = Allocator::new(pools, planned, note("allocator"));
            let allocator = allocator.with_chaos(chaos.clone()).start();
            let reserve = Mailbox::of(&allocator, "allocator", "ReservePages");
            let radix_cache = RadixCache::new(cache, reserve.clone(), note("radix_cache"))
                .with_scheduler(Mailbox::of(&me, "scheduler", "PrefixesProbed"))
                .with_feed(events)
                .with_chaos(chaos.clone())
                .start();
            let done = Mailbox::of(&me, "scheduler", "StepDone");
            let vision = start_vision(blueprint, &me, || note(VISION));
            let sender = thread.connect(done, vision.encoded, note("executor_thread"));
            let executor = Executor::new(sender, note("executor"));
            let executor = executor.with_chaos(chaos.clone()).start();
            let orders = (store, vision.orders);
            let links = links(&radix_cache, reserve, &executor, tokenizer, orders);
            let recorder = blueprint.record.as_ref();
            let mut state =
                RecordedScheduler::new(state, recorder.map(|sink| sink.recorder(generation)));
            // Before the first plan: a host's pin may open one before the requests are resumed.
            state.resume(floor(generation), 0.0);
            let metrics = blueprint.scheduler_metrics(at.unit);
            let control = (me, radix_cache.clone(), allocator);
            let stop = to_stop(control, executor, vision.stop);
            parts = Some((radix_cache, stop));
            Scheduler::new(state, links, metrics, note("scheduler"))
                .with_chaos(chaos.clone())
                .incarnated(at)
                .with_settings(settings, keeper)
                .logging_long_requests(blueprint.log_long_requests)
        });
        let (radix_cache, stop) = parts.expect("create runs its closure before it returns");
        Self {
            scheduler,
            radix_cache,
            stop,
            ledger,
        }
    }

    /// The addresses that the Tokenizer needs.
    pub fn links(&self) -> SchedulerLinks {
        let scheduler = &self.scheduler;
        SchedulerLinks {
            submit: Mailbox::of(scheduler, "scheduler", "Submit"),
            resume: Mailbox::of(scheduler, "scheduler", "ResumeRequests"),
            stop_found: Mailbox::of(scheduler, "scheduler", "StopFound"),
            cancel: scheduler.clone().recipient(),
            cancel_all: scheduler.clone().recipient(),
            drain: scheduler.clone().recipient(),
        }
    }

    /// The addresses with which the KvStore serves this unit of `generation`.
    pub fn store_links(&self, generation: u64) -> StoreLinks {
        StoreLinks {
            generation,
            news: Mailbox::of(&self.scheduler, "scheduler", "StoreNews"),
            use_store: self.scheduler.clone().recipient(),
        }
    }

    pub fn doors(&self, tokenizer: &Addr<Tokenizer>) -> Doors {
        let (scheduler, radix_cache) = (&self.scheduler, &self.radix_cache);
        Doors {
            generate: tokenizer.clone().recipient(),
            cancel: tokenizer.clone().recipient(),
            cancel_all: tokenizer.clone().recipient(),
            peek: radix_cache.clone().recipient(),
            pin: scheduler.clone().recipient(),
            unpin: scheduler.clone().recipient(),
            pin_softly: scheduler.clone().recipient(),
            unpin_softly: scheduler.clone().recipient(),
            set_policy: scheduler.clone().recipient(),
            flush: scheduler.clone().recipient(),
            pause: scheduler.clone().recipient(),
            stats: scheduler.clone().recipient(),
            load: scheduler.clone().recipient(),
            loads: None,
            view: scheduler.clone().recipient(),
            requests: tokenizer.clone().recipient(),
            tree_notes: radix_cache.clone().recipient(),
            locks: radix_cache.clone().recipient(),
            prefix_report: tokenizer.clone().recipient(),
            drain: tokenizer.clone().recipient(),
        }
    }

    /// Stops the actors after all messages that were sent to them before.
    pub async fn stop(self) {
        self.ledger.close();
        let stopping: Vec<_> = self
            .stop
            .iter()
            .map(|actor| actor.send(StopActor))
            .collect();
        for stopped in stopping {
            // A dead actor has stopped too.
            let _ = stopped.await;
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.ledger.close();
        for actor in &self.stop {
            actor.do_send(StopActor);
        }
    }
}

/// The smallest number of a generation's steps.
fn floor(generation: u64) -> Resume {
    Resume {
        floor: IdFloor {
            step: docket::first_number(generation),
            ..IdFloor::default()
        },
        ..Resume::default()
    }
}

fn links(
    radix_cache: &Addr<RadixCache>,
    allocator: Mailbox<Box<ReservePages>>,
    executor: &Addr<Executor>,
    tokenizer: &Addr<Tokenizer>,
    (store, vision): (Option<Mailbox<StoreOrders>>, Option<Mailbox<VisionOrders>>),
) -> Links {
    Links {
        probe: Mailbox::of(radix_cache, "radix_cache", "ProbePrefixes"),
        radix_cache: Mailbox::of(radix_cache, "radix_cache", "PlanStep"),
        allocator,
        executor: Mailbox::of(executor, "executor", "RunStep"),
        ended: Mailbox::of(executor, "executor", "SequencesEnded"),
        tokenizer: Mailbox::of(tokenizer, "tokenizer", "TokensReady"),
        store,
        vision,
    }
}

/// The addresses at which the actors are told to stop.
fn to_stop(
    (scheduler, radix_cache, allocator): (Addr<Scheduler>, Addr<RadixCache>, Addr<Allocator>),
    executor: Addr<Executor>,
    vision: Option<Recipient<StopActor>>,
) -> Vec<Recipient<StopActor>> {
    let always = [
        scheduler.recipient(),
        radix_cache.recipient(),
        allocator.recipient(),
        executor.recipient(),
    ];
    always.into_iter().chain(vision).collect()
}

/// The addresses of the Vision actor; `None` without a vision tower.
#[derive(Default)]
struct StartedVision {
    orders: Option<Mailbox<VisionOrders>>,
    encoded: Option<Mailbox<ImageEncoded>>,
    stop: Option<Recipient<StopActor>>,
}

/// Starts the Vision actor, if the engine has a vision tower.
fn start_vision(
    blueprint: &Blueprint,
    scheduler: &Addr<Scheduler>,
    note: impl FnOnce() -> DeathNote,
) -> StartedVision {
    let Some(setup) = blueprint.vision.clone() else {
        return StartedVision::default();
    };
    let told = Mailbox::of(scheduler, "scheduler", "VisionTold");
    let vision = Vision::new(setup, told, note());
    let vision = vision.with_chaos(blueprint.chaos.clone()).start();
    StartedVision {
        orders: Some(Mailbox::of(&vision, VISION, "VisionOrders")),
        encoded: Some(Mailbox::of(&vision, VISION, "ImageEncoded")),
        stop: Some(vision.recipient()),
    }
}
