//! A gateway's prefix index, made of the radix cache and the page allocator without a model.
//!
//! A gateway sends each prompt to the worker that caches its longest prefix. The gateway keeps one index for each
//! worker: a RadixCache and an Allocator as large as the worker's KV pool, with the gateway's actor `WorkerIndex`
//! instead of the Scheduler. A routed prompt goes through two plans, as a request in the engine does: the first locks
//! the cached prefix and reserves pages for the rest, the second publishes the whole prompt. When the pool is full, the
//! least recently routed prompts are evicted, much as on the worker.
//!
//! ```text
//! cargo run --example prefix_index
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{
    Actor, Addr, AsyncContext, Context, Handler, Message, MessageResult, Recipient, ResponseFuture,
    System,
};
use anyhow::{Context as _, ensure};
use souffleur::actors::messages::{PeekPrefix, StepPlanned};
use souffleur::actors::prefix_index::{IndexCapacity, PrefixIndex};
use souffleur::ids::{IntakeId, SeqId, StepId};
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::plan::preemption::Rank;
use souffleur::state::plan::prefill_adder::{PrefillAdder, PrefillLimits};
use souffleur::state::plan::{
    AdmitRequest, Admitted, CacheCounts, Candidate, Grant, PlanStep, PublishKey, Reservation,
    Settle, SettleRelease, StoredPrefix,
};
use souffleur::state::pool::pages::PageSize;
use tokio::sync::oneshot;

const PAGE_TOKENS: u32 = 16;
const WORKER_PAGES: u32 = 64;

/// The gateway's view of one worker's cache.
struct WorkerIndex {
    index: PrefixIndex,
    waiting: VecDeque<Routed>,
    /// Pages granted by the last plan, which the next plan publishes.
    granted: Option<(Settle, oneshot::Sender<()>)>,
    open: Option<OpenPlan>,
    next_step: StepId,
    free_pages: usize,
    free_rows: usize,
    cache: CacheCounts,
}

/// A prompt that the index has not recorded yet.
struct Routed {
    tokens: Arc<[u32]>,
    recorded: oneshot::Sender<()>,
}

/// The plan in flight: the reply channel of the prompt that it publishes, and the prompt that it reserves pages for.
struct OpenPlan {
    publishes: Option<oneshot::Sender<()>>,
    reserves: Option<Routed>,
}

/// Gateway -> WorkerIndex: the worker got this prompt. Answered when the index has recorded it.
#[derive(Message)]
#[rtype(result = "()")]
struct RecordPrompt {
    tokens: Arc<[u32]>,
}

/// Gateway -> WorkerIndex: asks for the recipient of prefix queries.
#[derive(Message)]
#[rtype(result = "Recipient<PeekPrefix>")]
struct GetPeek;

/// Gateway -> WorkerIndex: asks how many tokens are free, evictable and protected.
#[derive(Message)]
#[rtype(result = "TokenCounts")]
struct GetTokenCounts;

#[derive(Debug)]
struct TokenCounts {
    free: usize,
    evictable: usize,
    protected: usize,
}

impl Actor for WorkerIndex {
    type Context = Context<Self>;
}

impl WorkerIndex {
    fn start() -> Addr<Self> {
        Self::create(|ctx| {
            let capacity = IndexCapacity {
                pages: WORKER_PAGES,
                rows: 1,
                page_size: PageSize::new(PAGE_TOKENS).expect("the page size is not 0"),
            };
            let index = PrefixIndex::start(
                capacity,
                EvictionPolicy::from_name("lru").expect("lru is a policy"),
                ctx.address().recipient(),
            );
            Self {
                index,
                waiting: VecDeque::new(),
                granted: None,
                open: None,
                next_step: StepId::new(1),
                free_pages: WORKER_PAGES as usize,
                free_rows: 1,
                cache: CacheCounts::default(),
            }
        })
    }

    /// Opens the next plan: publishes the last grant, then requests the next prompt's pages.
    fn plan(&mut self) {
        if self.open.is_some() || (self.granted.is_none() && self.waiting.is_empty()) {
            return;
        }
        let mut request = PlanStep::empty(self.next_step, self.free_pages, self.free_rows);
        let publishes = self.granted.take().map(|(settle, recorded)| {
            request.settle.push(settle);
            recorded
        });
        let reserves = self.waiting.pop_front();
        request.admit = reserves.as_ref().map(|routed| self.admit(&routed.tokens));
        self.open = Some(OpenPlan {
            publishes,
            reserves,
        });
        self.next_step = StepId::new(self.next_step.get() + 1);
        self.index.plan(request);
    }

    fn admit(&self, tokens: &Arc<[u32]>) -> AdmitRequest {
        let limits = PrefillLimits {
            page_size: PAGE_TOKENS as usize,
            max_prefill_tokens: tokens.len(),
            chunked_prefill_size: None,
            mixed_rows: 0,
        };
        AdmitRequest {
            adder: PrefillAdder::new(limits, 0.0, std::iter::empty()),
            candidates: vec![Candidate {
                seq: SeqId::new(self.next_step.get()),
                intake: IntakeId::new(self.next_step.get()),
                namespace: Namespace::default(),
                bypasses_cache: false,
                tokens: tokens.clone(),
                match_limit: tokens.len(),
                max_new_tokens: 0,
                ignore_eos: false,
                waits: 0,
                rank: Rank::default(),
                wants_logprobs: false,
                continues_at: None,
                anchors: Arc::default(),
                kv_tokens: 0,
                stored: StoredPrefix::default(),
                unencoded: Default::default(),
                whole: None,
            }],
            max_new_rows: self.free_rows,
            prefix_wait: false,
            mixes: false,
            preemption: None,
            states: None,
            windows: None,
            block_tokens: 0,
        }
    }

    /// The settlement that publishes the pages of an admitted prompt and releases its lock.
    fn publish(&self, admitted: Admitted, grant: Grant, tokens: Arc<[u32]>) -> Settle {
        Settle::Release(Box::new(SettleRelease {
            seq: admitted.seq,
            intake: IntakeId::new(self.next_step.get()),
            row: grant.row,
            key: Some(PublishKey {
                namespace: Namespace::default(),
                len: tokens.len(),
                prompt_len: tokens.len(),
                tokens,
                inserted_tokens: 0,
                stored_tokens: 0,
                priority: 0,
                written_by: self.next_step,
                boundaries: Default::default(),
            }),
            protected_pages: admitted.prefix.len(),
            private: grant.pages,
            lock: admitted.lock.unwrap_or_default(),
            states: Vec::new(),
            returned_states: Vec::new(),
            windows: None,
        }))
    }
}

impl Handler<Box<StepPlanned>> for WorkerIndex {
    type Result = ();

    fn handle(&mut self, planned: Box<StepPlanned>, _: &mut Context<Self>) {
        let StepPlanned {
            reservation,
            verdict,
            free_pages,
            free_rows,
            ..
        } = *planned;
        self.free_pages = free_pages;
        self.free_rows = free_rows;
        self.cache = verdict.cache.unwrap_or(self.cache);
        let grants = match reservation {
            Reservation::Granted { grants, .. } => grants,
            Reservation::Short { .. } => unreachable!("a plan admits only requests that fit"),
        };
        let OpenPlan {
            publishes,
            reserves,
        } = self.open.take().expect("plans are answered once");
        if let Some(recorded) = publishes {
            // The receiver may be gone.
            let _ = recorded.send(());
        }
        // A prompt larger than the worker's pool is not admitted: it is dropped, which notifies its sender.
        let admitted = verdict.admitted.into_iter().zip(grants).next();
        if let (Some(routed), Some((admitted, grant))) = (reserves, admitted) {
            let settle = self.publish(admitted, grant, routed.tokens);
            self.granted = Some((settle, routed.recorded));
        }
        self.plan();
    }
}

impl Handler<RecordPrompt> for WorkerIndex {
    type Result = ResponseFuture<()>;

    fn handle(
        &mut self,
        RecordPrompt { tokens }: RecordPrompt,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let (recorded, is_recorded) = oneshot::channel();
        self.waiting.push_back(Routed { tokens, recorded });
        self.plan();
        Box::pin(async move {
            let _ = is_recorded.await;
        })
    }
}

impl Handler<GetPeek> for WorkerIndex {
    type Result = MessageResult<GetPeek>;

    fn handle(&mut self, _: GetPeek, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.index.peek())
    }
}

impl Handler<GetTokenCounts> for WorkerIndex {
    type Result = MessageResult<GetTokenCounts>;

    fn handle(&mut self, _: GetTokenCounts, _: &mut Context<Self>) -> Self::Result {
        MessageResult(TokenCounts {
            free: self.free_pages * PAGE_TOKENS as usize,
            evictable: self.cache.evictable_tokens,
            protected: self.cache.protected_tokens,
        })
    }
}

/// Sends each prompt to the worker that caches its longest prefix.
struct Gateway {
    workers: Vec<(Addr<WorkerIndex>, Recipient<PeekPrefix>)>,
}

impl Gateway {
    async fn start(n_workers: usize) -> anyhow::Result<Self> {
        let mut workers = Vec::new();
        for _ in 0..n_workers {
            let worker = WorkerIndex::start();
            let peek = worker.send(GetPeek).await?;
            workers.push((worker, peek));
        }
        Ok(Self { workers })
    }

    /// The number of a prompt's tokens that each worker caches.
    async fn cached(&self, prompt: &str) -> anyhow::Result<Vec<usize>> {
        let tokens = tokens(prompt);
        let mut cached = Vec::new();
        for (_, peek) in &self.workers {
            let query = PeekPrefix {
                namespace: Namespace::default(),
                tokens: tokens.clone(),
            };
            cached.push(peek.send(query).await?);
        }
        Ok(cached)
    }

    async fn record(&self, worker: usize, prompt: &str) -> anyhow::Result<()> {
        let tokens = tokens(prompt);
        Ok(self.workers[worker].0.send(RecordPrompt { tokens }).await?)
    }

    /// Chooses a worker for a prompt and remembers the choice.
    async fn route(&self, prompt: &str) -> anyhow::Result<usize> {
        let cached = self.cached(prompt).await?;
        let longest = cached.iter().max().copied().unwrap_or(0);
        let worker = cached
            .iter()
            .position(|cached| *cached == longest)
            .context("no workers")?;
        self.record(worker, prompt).await?;
        println!(
            "{cached:?} -> worker {worker}  {:?}",
            prompt.get(..40).unwrap_or(prompt)
        );
        Ok(worker)
    }
}

/// One token per byte; a real gateway has the model's tokenizer.
fn tokens(prompt: &str) -> Arc<[u32]> {
    prompt.bytes().map(u32::from).collect()
}

fn main() -> anyhow::Result<()> {
    System::new().block_on(run())
}

async fn run() -> anyhow::Result<()> {
    let gateway = Gateway::start(2).await?;
    let play = "You prompt the actors of a small theatre and never speak louder than a whisper. "
        .repeat(4);
    let shop =
        "You sell tickets at the box office of a small theatre and you know every seat. ".repeat(4);
    gateway.record(0, &play).await?;
    gateway.record(1, &shop).await?;
    for question in ["What comes after 'to be'?", "Who enters next?"] {
        let worker = gateway.route(&format!("{play}{question}")).await?;
        ensure!(worker == 0, "worker {worker} got the play");
    }
    let worker = gateway
        .route(&format!("{shop}Two seats for tonight, please."))
        .await?;
    ensure!(worker == 1, "worker {worker} got the shop");

    // These prompts have far more tokens than worker 0 can cache.
    for visitor in 0..12 {
        let prompt = format!("Visitor {visitor:2} asks something long. ").repeat(6);
        gateway.record(0, &prompt).await?;
    }
    let cached = gateway.cached(&play).await?;
    println!("{cached:?}  the play, after twelve other prompts went to worker 0");
    ensure!(cached[0] == 0, "worker 0 still holds the play");

    for (worker, (index, _)) in gateway.workers.iter().enumerate() {
        let counts = index.send(GetTokenCounts).await?;
        let TokenCounts {
            free,
            evictable,
            protected,
        } = counts;
        let total = (WORKER_PAGES * PAGE_TOKENS) as usize;
        println!(
            "worker {worker}: free {free} + evictable {evictable} + protected {protected} = {total} tokens"
        );
        ensure!(
            free + evictable + protected == total,
            "worker {worker} lost tokens: {counts:?}"
        );
    }
    Ok(())
}
