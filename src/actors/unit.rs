//! The unit of failure: five actors and the executor thread, which start and stop together, and an optional KV store.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Recipient};
use actix_rt::Arbiter;
use tokio::sync::oneshot;

use crate::allocator::{Allocator, GrantReceiver};
use crate::death::{DeathNote, Obituary, StopActor};
use crate::executor::{Executor, ExecutorFactory, ExecutorThread};
use crate::kv_store::{KvStore, StoreSetup};
use crate::mailbox::Mailbox;
use crate::messages::{ActorDied, Doors, HostSettings, ReservePages};
use crate::radix_cache::RadixCache;
use crate::rebuild::RebuildRules;
use crate::scheduler::{Links, Scheduler};
use crate::tokenizer::{self, Tokenizer, TokenizerSettings};
use souffleur_base::error::StartError;
use souffleur_kv_events::{KvEventPublisher, KvEventsOutlet};
use souffleur_metrics::{RequestMetrics, SchedulerMetrics};
use souffleur_record::{LogSink, RecordedScheduler};
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PoolLedger;

/// Stack size of threads that render templates, encode prompts and parse requests: their libraries are recursive.
const TOKENIZER_STACK_BYTES: usize = 16 << 20;

/// The runtime of the Tokenizer's Arbiter, whose blocking threads have large stacks.
fn tokenizer_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(TOKENIZER_STACK_BYTES)
        .build()
}

/// Everything needed to build a unit, and to rebuild it.
pub struct Blueprint {
    /// Label of metrics.
    pub model_name: String,
    /// Setup of the scheduler, cache and pools. Its names and sizes have been checked.
    pub control: ControlSetup,
    /// The message log, to which every unit writes its part, if one is kept.
    pub record: Option<Arc<LogSink>>,
    /// Publisher of the changes of every unit's cache, if they are published.
    pub kv_events: Option<KvEventPublisher>,
    pub tokenizer: TokenizerSettings,
    pub executor: Arc<ExecutorFactory>,
    pub store: Option<Arc<StoreSetup>>,
    pub rebuild: RebuildRules,
    /// Time after which, and then interval at which, a request in flight is logged; `None` for never.
    pub log_long_requests: Option<Duration>,
}

impl Blueprint {
    pub fn kv_events_outlet(&self) -> Option<KvEventsOutlet> {
        let publisher = self.kv_events.as_ref();
        publisher.map(|publisher| publisher.outlet().clone())
    }
}

#[derive(Clone)]
pub struct Survivor {
    pub died: Recipient<ActorDied>,
    pub keeper: Recipient<HostSettings>,
}

/// The running actors of one generation; they stop when it is dropped.
pub struct Unit {
    generation: u64,
    doors: Doors,
    stop: Vec<Recipient<StopActor>>,
    /// Stops last, after the other actors' last orders.
    store: Option<Recipient<StopActor>>,
    /// `None` once the unit is being stopped.
    executor_thread: Option<JoinHandle<()>>,
    tokenizer_arbiter: Option<Arbiter>,
    ledger: Arc<PoolLedger>,
}

impl Unit {
    /// Loads the executor and starts the actors. The Tokenizer runs on a separate Arbiter, because encoding a long
    /// prompt must not delay a step. `settings` are those that hosts made before.
    ///
    /// # Errors
    /// If the executor cannot be loaded, or its thread cannot be started or dies.
    pub async fn build(
        blueprint: Arc<Blueprint>,
        generation: u64,
        (survivor, settings): (Survivor, HostSettings),
    ) -> Result<Self, StartError> {
        let (thread, loaded) = ExecutorThread::spawn(
            blueprint.executor.clone(),
            blueprint.control.limits.eos_token_ids.clone(),
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
        Ok(start(&blueprint, generation, (survivor, settings), thread))
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn doors(&self) -> Doors {
        self.doors.clone()
    }

    /// Stops the actors after all messages that were sent to them before, and waits until the executor thread has
    /// ended. Requests in flight get their terminal event from their sinks.
    pub async fn stop(mut self) {
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
        let (executor, tokenizer) = (self.executor_thread.take(), self.tokenizer_arbiter.take());
        let (joined, is_joined) = oneshot::channel();
        std::thread::spawn(move || {
            // If the thread panicked, its note has reported this.
            let _ = executor.map(JoinHandle::join);
            if let Some(arbiter) = tokenizer {
                arbiter.stop();
                let _ = arbiter.join();
            }
            let _ = joined.send(());
        });
        let _ = is_joined.await;
        if let Some(store) = self.store.take() {
            // If the store has died, there is nothing to stop.
            let _ = store.send(StopActor).await;
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.ledger.close();
        for actor in self.stop.iter().chain(&self.store) {
            actor.do_send(StopActor);
        }
        if let Some(arbiter) = &self.tokenizer_arbiter {
            arbiter.stop();
        }
    }
}

fn start(
    blueprint: &Blueprint,
    generation: u64,
    (survivor, settings): (Survivor, HostSettings),
    thread: ExecutorThread,
) -> Unit {
    let Survivor { died, keeper } = survivor;
    let states = blueprint.control.build();
    let ControlStates {
        scheduler: state,
        cache,
        pools,
        ledger,
        evicted_nodes: _,
    } = states.expect("the names and sizes were checked with the configuration");
    let note = |actor| DeathNote::new(actor, generation, died.clone(), ledger.clone());
    let tokenizer_arbiter = Arbiter::try_with_tokio_rt(tokenizer_runtime);
    let tokenizer_arbiter = tokenizer_arbiter.unwrap_or_else(|_| Arbiter::new());
    let events = blueprint.kv_events.as_ref();
    let events = events.map(|publisher| publisher.feed(generation));
    let mut parts = None;
    let scheduler = Scheduler::create(|ctx| {
        let me = ctx.address();
        let planned = GrantReceiver::Scheduler(Mailbox::of(&me, "scheduler", "StepPlanned"));
        let allocator = Allocator::new(pools, planned, note("allocator")).start();
        let reserve = Mailbox::of(&allocator, "allocator", "ReservePages");
        let radix_cache = RadixCache::new(cache, reserve.clone(), note("radix_cache"))
            .with_scheduler(Mailbox::of(&me, "scheduler", "PrefixesProbed"))
            .with_feed(events)
            .start();
        let done = Mailbox::of(&me, "scheduler", "StepDone");
        let (sender, executor_thread) = thread.connect(done, note("executor_thread"));
        let executor = Executor::new(sender, note("executor")).start();
        let obituary = |who| Obituary::new(who, generation, died.clone());
        let store = blueprint.store.as_ref();
        let store = store.map(|setup| start_store(setup, &me, obituary));
        let tokenizer = start_tokenizer(blueprint, &tokenizer_arbiter, &me, note("tokenizer"));
        let links = links(&radix_cache, reserve, &executor, &tokenizer, store.as_ref());
        let recorder = blueprint.record.as_ref();
        let state = RecordedScheduler::new(state, recorder.map(|sink| sink.recorder(generation)));
        let metrics = SchedulerMetrics::register(&blueprint.model_name);
        let stop = vec![
            me.recipient(),
            radix_cache.clone().recipient(),
            allocator.recipient(),
            executor.recipient(),
            tokenizer.clone().recipient(),
        ];
        let store = store.map(Addr::recipient);
        parts = Some((tokenizer, radix_cache, executor_thread, (stop, store)));
        Scheduler::new(state, links, metrics, note("scheduler"))
            .with_settings(settings, keeper)
            .logging_long_requests(blueprint.log_long_requests)
    });
    let (tokenizer, radix_cache, executor_thread, (stop, store)) =
        parts.expect("create runs its closure before it returns");
    Unit {
        generation,
        doors: doors(&scheduler, &tokenizer, &radix_cache),
        stop,
        store,
        executor_thread: Some(executor_thread),
        tokenizer_arbiter: Some(tokenizer_arbiter),
        ledger,
    }
}

fn start_store(
    setup: &Arc<StoreSetup>,
    scheduler: &Addr<Scheduler>,
    obituary: impl Fn(&'static str) -> Obituary,
) -> Addr<KvStore> {
    let news = Mailbox::of(scheduler, "scheduler", "StoreNews");
    let store = KvStore::new(setup.clone(), news);
    store
        .supervised(obituary("kv_store"), obituary("kv_store_thread"))
        .start()
}

fn links(
    radix_cache: &Addr<RadixCache>,
    allocator: Mailbox<Box<ReservePages>>,
    executor: &Addr<Executor>,
    tokenizer: &Addr<Tokenizer>,
    store: Option<&Addr<KvStore>>,
) -> Links {
    Links {
        probe: Mailbox::of(radix_cache, "radix_cache", "ProbePrefixes"),
        radix_cache: Mailbox::of(radix_cache, "radix_cache", "PlanStep"),
        allocator,
        executor: Mailbox::of(executor, "executor", "RunStep"),
        ended: Mailbox::of(executor, "executor", "SequencesEnded"),
        tokenizer: Mailbox::of(tokenizer, "tokenizer", "TokensReady"),
        store: store.map(|store| Mailbox::of(store, "kv_store", "StoreOrders")),
    }
}

fn start_tokenizer(
    blueprint: &Blueprint,
    arbiter: &Arbiter,
    scheduler: &Addr<Scheduler>,
    note: DeathNote,
) -> Addr<Tokenizer> {
    let settings = blueprint.tokenizer.clone();
    let links = tokenizer::Links {
        submit: Mailbox::of(scheduler, "scheduler", "Submit"),
        stop_found: Mailbox::of(scheduler, "scheduler", "StopFound"),
        cancel: scheduler.clone().recipient(),
        cancel_all: scheduler.clone().recipient(),
        drain: scheduler.clone().recipient(),
    };
    let metrics = RequestMetrics::register(&blueprint.model_name);
    Tokenizer::start_in_arbiter(&arbiter.handle(), move |_| {
        Tokenizer::new(settings, links, metrics, note)
    })
}

fn doors(
    scheduler: &Addr<Scheduler>,
    tokenizer: &Addr<Tokenizer>,
    radix_cache: &Addr<RadixCache>,
) -> Doors {
    Doors {
        generate: tokenizer.clone().recipient(),
        cancel: scheduler.clone().recipient(),
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
        view: scheduler.clone().recipient(),
        tree_notes: radix_cache.clone().recipient(),
        locks: radix_cache.clone().recipient(),
        prefix_report: tokenizer.clone().recipient(),
        drain: tokenizer.clone().recipient(),
    }
}
