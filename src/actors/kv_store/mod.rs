//! The KvStore actor: passes the Scheduler's orders to the KV store, and the store's answers back. Instead of a late
//! answer, it sends a miss.
//!
//! It does no I/O and never waits: the [`Store`] has its own thread. The actor outlives units: [`ServeUnit`] makes it
//! forget the orders of the Scheduler before. Its death ends only the store, and the [`StoreKeeper`] starts another.

mod chaos;
mod desk;
mod keeper;

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, ResponseFuture, SpawnHandle};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::oneshot;

use crate::death::{Obituary, StopActor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{ServeUnit, StoreAnswered, StoreNews, StoreOrders};
use souffleur_base::ids::{SeqId, Ticket};
use souffleur_chaos::{Chaos, Phase};
use souffleur_metrics::StoreMetrics;
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::docket;
use souffleur_state::scheduler::tier::{PrefixFound, StoreOrder};
use souffleur_state::tiers::Paths;
use souffleur_store::{
    Answer, BlockUse, Buffers, Commit, Fetch, Find, Geometry, Identify, Outcome, Refusal, Short,
    Sink, Store, StoreConfig, TierState,
};

pub use desk::BlockDesk;
pub use keeper::{StoreKeeper, StoreLinks};

/// Grace after an answer's deadline, in case the store's thread cannot answer.
const GRACE: Duration = Duration::from_millis(500);
const STATS_EVERY: Duration = Duration::from_secs(2);

/// Everything needed to start a store, and to start it again after its death.
pub struct StoreSetup {
    pub config: StoreConfig,
    pub geometry: Geometry,
    pub identify: Box<dyn Fn() -> Identify + Send + Sync>,
    pub desk: BlockDesk,
}

pub struct KvStore {
    /// Reports of this actor's and the store thread's death to the Watchdog; `None` if it does not supervise them.
    supervised: Option<(Obituary, Obituary)>,
    setup: Arc<StoreSetup>,
    /// The buffers of the store before, if there are any.
    buffers: Option<Buffers>,
    /// `None` before the first unit.
    unit: Option<ServedUnit>,
    store: Option<Store>,
    /// Computes the keys of blocks; `None` unless the store serves.
    paths: Option<Paths>,
    /// Unanswered requests to the store, and the timers that answer in its place.
    finds: FxHashMap<SeqId, SpawnHandle>,
    fetches: FxHashMap<Ticket, SpawnHandle>,
    /// Blocks that the store has not written yet.
    writes: FxHashSet<Ticket>,
    /// An answer is overdue, and none has arrived since.
    is_late: bool,
    /// The store serves no more.
    is_over: bool,
    metrics: StoreMetrics,
    chaos: Chaos,
}

/// The unit whose Scheduler sends orders and gets the news.
struct ServedUnit {
    generation: u64,
    news: Mailbox<StoreNews>,
}

impl KvStore {
    /// A store that serves no unit yet.
    pub fn new(setup: Arc<StoreSetup>, buffers: Option<Buffers>) -> Self {
        Self {
            supervised: None,
            metrics: StoreMetrics::register(setup.geometry.block_tokens),
            setup,
            buffers,
            unit: None,
            store: None,
            paths: None,
            finds: FxHashMap::default(),
            fetches: FxHashMap::default(),
            writes: FxHashSet::default(),
            is_late: false,
            is_over: false,
            chaos: Chaos::default(),
        }
    }

    /// Reports the deaths of the actor and of the store's thread.
    pub fn supervised(mut self, own: Obituary, thread: Obituary) -> Self {
        self.supervised = Some((own, thread));
        self
    }

    fn disarm(&mut self) {
        if let Some((own, thread)) = &mut self.supervised {
            own.disarm();
            thread.disarm();
        }
    }

    fn find(&mut self, find: Find, ctx: &mut Context<Self>) {
        let seq = find.seq;
        let refusal = match &self.store {
            Some(_) if self.refuses("Find") => Some(Refusal::Full),
            Some(store) => store.find(find).err(),
            None => Some(Refusal::NotServing),
        };
        if let Some(refusal) = refusal {
            let miss = (refusal == Refusal::Full).then_some(StoredMiss::Late);
            return self.report_found(seq, nothing_found(miss));
        }
        if self.is_late {
            // The request does not wait for the answer, which only shows that the store responds again.
            return self.report_found(seq, nothing_found(Some(StoredMiss::Late)));
        }
        let wait = self.setup.config.prefetch_timeout.base + GRACE;
        let timer = ctx.run_later(wait, move |actor, _| {
            if actor.finds.remove(&seq).is_some() {
                actor.note_late();
                actor.report_found(seq, nothing_found(Some(StoredMiss::Late)));
            }
        });
        self.finds.insert(seq, timer);
    }

    fn fetch(&mut self, mut fetch: Fetch, ctx: &mut Context<Self>) {
        let ticket = fetch.ticket;
        let n_tokens = fetch.blocks.len() * self.setup.geometry.block_tokens;
        fetch.timeout = self.setup.config.prefetch_timeout.of(n_tokens);
        let wait = fetch.timeout + GRACE;
        let is_refused = self.refuses("Fetch");
        let is_accepted = |store: &Store| !is_refused && store.fetch(fetch).is_ok();
        if !self.store.as_ref().is_some_and(is_accepted) {
            return self.report_fetched(ticket, 0, Some(StoredMiss::Late));
        }
        let timer = ctx.run_later(wait, move |actor, _| {
            if actor.fetches.remove(&ticket).is_some() {
                actor.note_late();
                actor.cancel(ticket);
                actor.report_fetched(ticket, 0, Some(StoredMiss::Late));
            }
        });
        self.fetches.insert(ticket, timer);
    }

    /// Lets requests run without the store until it answers again.
    fn note_late(&mut self) {
        if !std::mem::replace(&mut self.is_late, true) {
            tracing::warn!(
                "the KV store is not responding: requests run without it until it recovers"
            );
        }
    }

    fn cancel(&self, ticket: Ticket) {
        if let Some(store) = &self.store {
            // If the store accepts no orders, it has dropped the fetch.
            let _ = store.cancel(ticket);
        }
    }

    /// Passes the store a block that a step has copied. Without a free buffer, the block was not copied.
    fn write(&mut self, ticket: Ticket, place: Option<souffleur_state::tiers::BlockPlace>) {
        let saved = self.setup.desk.take_saved(ticket);
        let commit = saved.zip(place).map(|(block, place)| Commit {
            ticket,
            place,
            block,
        });
        let is_accepted = match (&self.store, commit) {
            (Some(_), Some(_)) if self.refuses("Write") => false,
            (Some(store), Some(commit)) => store.commit(commit).is_ok(),
            _ => false,
        };
        if is_accepted {
            self.writes.insert(ticket);
        } else {
            self.metrics.not_written("refused");
            let kept = false;
            self.tell(StoreNews::Written { ticket, kept });
        }
    }

    /// Drops all that the Scheduler has ordered. Blocks that the store is writing are written.
    fn forget_orders(&mut self, ctx: &mut Context<Self>) {
        for (_, timer) in self.finds.drain() {
            ctx.cancel_future(timer);
        }
        for (ticket, timer) in std::mem::take(&mut self.fetches) {
            ctx.cancel_future(timer);
            self.cancel(ticket);
        }
        self.writes.clear();
    }

    fn note_state(&mut self, state: TierState) {
        match state {
            TierState::Identifying => tracing::info!("KV store: computing the model fingerprint"),
            TierState::Recovering => tracing::info!("KV store: recovering its index"),
            TierState::Serving { keys, records } => {
                tracing::info!(records, "KV store ready");
                self.paths = Some(Paths::new(keys));
                self.tell(StoreNews::Serves(true));
            }
            // The thread's end, after the store has reported its reason.
            TierState::Off { .. } if self.is_over => (),
            TierState::Off { reason, panicked } => {
                tracing::warn!(
                    reason,
                    "KV store disabled: prefixes are cached in memory only"
                );
                self.end();
                if let (true, Some((_, thread))) = (panicked, &mut self.supervised) {
                    thread.report(panicked);
                }
            }
        }
    }

    /// Tells the Scheduler, once, that the store has ended. This replaces all outstanding answers.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.setup.desk.close();
        self.paths = None;
        self.finds.clear();
        self.fetches.clear();
        self.writes.clear();
        self.tell(StoreNews::Serves(false));
    }

    fn report_found(&self, seq: SeqId, found: PrefixFound) {
        self.tell(StoreNews::Found { seq, found });
    }

    fn report_fetched(&self, ticket: Ticket, blocks: usize, miss: Option<StoredMiss>) {
        self.tell(StoreNews::Fetched {
            ticket,
            blocks,
            miss,
        });
    }

    fn tell(&self, news: StoreNews) {
        if let Some(unit) = &self.unit {
            unit.news.post(news);
        }
    }
}

fn nothing_found(miss: Option<StoredMiss>) -> PrefixFound {
    PrefixFound {
        path: Arc::default(),
        blocks: 0,
        worth: 0,
        miss,
    }
}

/// Sends the store's answers to the actor. Its drop reports that the store's thread has ended, for any reason.
struct AnswerSender(Mailbox<StoreAnswered>);

impl Drop for AnswerSender {
    fn drop(&mut self) {
        let reason = "the KV store's thread has stopped or could not be started".to_owned();
        let panicked = std::thread::panicking();
        let state = TierState::Off { reason, panicked };
        self.0.post(StoreAnswered(Answer::State(state)));
    }
}

impl Actor for KvStore {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let answers = AnswerSender(Mailbox::of(&ctx.address(), "kv_store", "StoreAnswered"));
        let sink: Sink = Box::new(move |answer| answers.0.post(StoreAnswered(answer)));
        let StoreSetup {
            config,
            geometry,
            identify,
            desk,
        } = self.setup.as_ref();
        let (config, geometry) = (config.clone(), geometry.clone());
        let reused = (&self.chaos, self.buffers.take());
        match Store::start_with(reused, config, geometry, identify(), sink) {
            Ok(store) => {
                desk.open(store.pools().clone());
                self.store = Some(store);
            }
            // Dropping the sender reports that the store is off.
            Err(error) => tracing::error!(%error, "failed to start the KV store"),
        }
        ctx.run_interval(STATS_EVERY, |actor, _| {
            if let Some(store) = &actor.store {
                actor.metrics.set_disk_bytes(store.stats().disk_bytes);
            }
        });
    }
}

impl Drop for KvStore {
    fn drop(&mut self) {
        if let Some((_, thread)) = &mut self.supervised {
            // The thread ends with the actor: this is no death.
            thread.disarm();
        }
        self.end();
        if let Some(store) = self.store.take() {
            // Dropping the store waits for the disk, which must not block the engine's Arbiter.
            // Without a thread, the store is dropped here.
            let _ = std::thread::Builder::new().spawn(move || drop(store));
        }
    }
}

impl Handler<ServeUnit> for KvStore {
    type Result = ();

    fn handle(&mut self, ServeUnit { generation, news }: ServeUnit, ctx: &mut Context<Self>) {
        self.forget_orders(ctx);
        let first = docket::first_number(generation);
        self.setup.desk.begin_unit(Ticket::new(first));
        self.unit = Some(ServedUnit { generation, news });
        if self.paths.is_some() {
            self.tell(StoreNews::Serves(true));
        }
    }
}

impl Handler<Posted<StoreOrders>> for KvStore {
    type Result = ();

    fn handle(&mut self, posted: Posted<StoreOrders>, ctx: &mut Context<Self>) {
        self.strike(Phase::Entry, "StoreOrders");
        let (orders, _timer) = posted.open();
        let generation = self.unit.as_ref().map(|unit| unit.generation);
        if generation != Some(orders.generation) {
            return self.metrics.stale_orders();
        }
        let prefill_tokens_per_s = orders.prefill_tokens_per_s;
        for order in orders.orders {
            match order {
                StoreOrder::Find {
                    seq,
                    namespace,
                    tokens,
                } => {
                    let find = Find {
                        seq,
                        namespace,
                        tokens,
                        from: 0,
                        prefill_tokens_per_s,
                    };
                    self.find(find, ctx);
                }
                StoreOrder::Fetch {
                    seq,
                    ticket,
                    path,
                    blocks,
                } => {
                    let fetch = Fetch {
                        seq,
                        ticket,
                        path,
                        blocks,
                        timeout: Duration::ZERO,
                    };
                    self.fetch(fetch, ctx);
                }
                StoreOrder::Write {
                    ticket,
                    namespace,
                    tokens,
                    block,
                } => {
                    let paths = self.paths.as_mut();
                    let place = paths.and_then(|paths| paths.place(&namespace, &tokens, block));
                    self.write(ticket, place);
                }
                StoreOrder::Discard { ticket } => {
                    if self.fetches.contains_key(&ticket) {
                        self.cancel(ticket);
                    }
                    self.setup.desk.discard(ticket);
                }
            }
        }
        self.strike(Phase::Exit, "StoreOrders");
    }
}

impl Handler<Posted<StoreAnswered>> for KvStore {
    type Result = ();

    fn handle(&mut self, posted: Posted<StoreAnswered>, ctx: &mut Context<Self>) {
        self.strike(Phase::Entry, "StoreAnswered");
        let (StoreAnswered(answer), _timer) = posted.open();
        if self.drops(&answer) {
            return;
        }
        self.is_late = false;
        match answer {
            Answer::State(state) => self.note_state(state),
            Answer::Found {
                seq,
                path,
                blocks,
                worth,
                miss,
            } => {
                if let Some(timer) = self.finds.remove(&seq) {
                    ctx.cancel_future(timer);
                    let found = PrefixFound {
                        path,
                        blocks,
                        worth,
                        miss,
                    };
                    self.report_found(seq, found);
                }
            }
            Answer::Fetched {
                ticket,
                mut loaded,
                short,
                ..
            } => {
                let Some(timer) = self.fetches.remove(&ticket) else {
                    return;
                };
                ctx.cancel_future(timer);
                let blocks = loaded.kv.len();
                for block in loaded.kv.iter_mut().chain(&mut loaded.state) {
                    block.set_usage(BlockUse::Ready);
                }
                self.metrics
                    .fetched(blocks, short.map(|short| short.name()));
                self.setup.desk.put_fetched(ticket, loaded);
                self.report_fetched(ticket, blocks, short.map(Short::miss));
            }
            Answer::Late { ticket, reason, .. } => {
                if let Some(timer) = self.fetches.remove(&ticket) {
                    ctx.cancel_future(timer);
                    self.metrics.fetched(0, Some(reason.name()));
                    self.report_fetched(ticket, 0, Some(reason.miss()));
                }
            }
            Answer::Committed { ticket, outcome } => {
                match outcome {
                    Outcome::Written => self.metrics.written(),
                    Outcome::Known => {}
                    other => self.metrics.not_written(other.name()),
                }
                if self.writes.remove(&ticket) {
                    let kept = outcome.is_kept();
                    self.tell(StoreNews::Written { ticket, kept });
                }
            }
        }
    }
}

/// Answers once the store has written all its commits, or after its time limit.
impl Handler<StopActor> for KvStore {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) -> Self::Result {
        ctx.stop();
        self.disarm();
        self.end();
        let store = self.store.take();
        let (ended, has_ended) = oneshot::channel();
        // Without a thread, the store is dropped here, and the receiver notified.
        let _ = std::thread::Builder::new().spawn(move || {
            if store.is_some_and(|store| !store.shut_down()) {
                tracing::warn!(
                    "the KV store did not stop in time: its disk is slow or not responding, and its latest blocks may \
                     be lost"
                );
            }
            // The waiting side may have gone.
            let _ = ended.send(());
        });
        Box::pin(async move {
            let _ = has_ended.await;
        })
    }
}
