//! An engine without actors on a naive store, which checks its invariants after every event.

use std::collections::VecDeque;
use std::sync::Arc;

use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{IntakeId, RequestId, StepId};
use souffleur_executor::Executor;
use souffleur_executor::fake::{FAKE_TOKEN_BYTES, FakeExecutor, FakeOptions, expected_output};
use souffleur_request::CancelFlag;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::{HistoryLimits, PrefixHistory, PrefixReport};
use souffleur_state::cache::radix_tree::SaveRules;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::news::{FinishReason, RequestEnd};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::submission::{RequestTimeouts, Submission};
use souffleur_state::scheduler::tier::{StoreOrder, TierLimits, TierStats};
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::StepPlan;
use souffleur_state::tiers::BlockKind;

use super::store::{Disk, NaiveStore};
use crate::scheduler_world::Outcome;

pub const VOCAB: u32 = 256;

#[derive(Clone, Copy, Debug)]
pub struct TierSetup {
    pub page_size: u32,
    pub n_pages: usize,
    pub n_rows: usize,
    pub chunk_tokens: Option<usize>,
    pub mixed_chunk: bool,
    pub prefix_wait: bool,
    pub block_tokens: usize,
    pub min_hits: u32,
    pub buffers: usize,
    pub blocks_per_load: usize,
    /// State slots; 0 for models without recurrent layers.
    pub n_states: usize,
}

impl Default for TierSetup {
    fn default() -> Self {
        Self {
            page_size: 1,
            n_pages: 1024,
            n_rows: 8,
            chunk_tokens: None,
            mixed_chunk: false,
            prefix_wait: true,
            block_tokens: 16,
            min_hits: 1,
            buffers: 32,
            blocks_per_load: 1 << 10,
            n_states: 0,
        }
    }
}

pub struct RequestView {
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub flag: CancelFlag,
    pub delivered: Vec<u32>,
    pub cached_tokens: u32,
    pub loaded_tokens: u32,
    pub end: Option<RequestEnd>,
    pub report: Option<PrefixReport>,
    seed: u64,
}

pub struct TierWorld {
    pub setup: TierSetup,
    pub states: ControlStates,
    pub store: NaiveStore,
    pub views: Vec<RequestView>,
    pub steps: VecDeque<StepPlan>,
    history: PrefixHistory,
    executor: FakeExecutor,
    void_until: StepId,
}

/// Pages that the tree holds at the end of an engine are not lost.
impl Drop for TierWorld {
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

impl TierWorld {
    /// An engine whose store serves and holds `disk`.
    pub fn new(setup: TierSetup, disk: Disk) -> Self {
        let page_size = PageSize::new(setup.page_size).expect("a page size");
        let limits = SchedulerLimits {
            page_size,
            total_pages: setup.n_pages,
            total_rows: setup.n_rows,
            max_prefill_tokens: 4096,
            chunk_tokens: setup.chunk_tokens,
            prefix_wait: setup.prefix_wait,
            rules: BatchRules {
                mixed_chunk: setup.mixed_chunk,
                ..BatchRules::default()
            },
            schedule_conservativeness: 0.3,
            max_pins: 4,
            queue: QueueRules::default(),
            eos_token_ids: Arc::from([]),
            states: (setup.n_states > 0).then_some(StateLimits {
                total_slots: setup.n_states,
                grid_tokens: 64,
            }),
            windows: None,
            tier: Some(TierLimits {
                saves: SaveRules {
                    block_tokens: setup.block_tokens,
                    min_hits: setup.min_hits,
                },
                buffers: setup.buffers,
                state_buffers: if setup.n_states > 0 { 3 } else { 0 },
                saves_per_step: 1,
                steps_per_save: 1,
                saves_when_idle: 2,
                blocks_per_load: setup.blocks_per_load,
            }),
            vision: None,
        };
        let control = ControlSetup {
            limits,
            schedule_policy: "fcfs".to_owned(),
            diagnoses_misses: true,
        };
        let store = NaiveStore::new(setup.block_tokens, setup.n_states > 0, disk);
        let executor = FakeExecutor::new(FakeOptions {
            page_size: setup.page_size as usize,
            n_pages: setup.n_pages,
            vocab_size: VOCAB,
            verify: true,
            n_states: setup.n_states,
            hidden_size: 0,
            faults: Vec::new(),
        });
        let executor = executor.with_store(setup.block_tokens, store.port(FAKE_TOKEN_BYTES));
        let mut world = Self {
            setup,
            states: control.build().expect("the pools are small"),
            store,
            views: Vec::new(),
            steps: VecDeque::new(),
            history: PrefixHistory::new(HistoryLimits {
                page_size,
                max_requests: 8,
                max_evicted_pages: 1 << 12,
            }),
            executor,
            void_until: StepId::new(0),
        };
        world.states.scheduler.store_serves(true);
        world.plan_and_check();
        world
    }

    /// The same engine after a restart: only the disk is left.
    pub fn restart(mut self) -> Self {
        self.drain();
        Self::new(self.setup, std::mem::take(&mut self.store.disk))
    }

    pub fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> usize {
        let number = self.views.len();
        let (seed, flag) = (number as u64, CancelFlag::default());
        let sampling = SamplingParams {
            max_new_tokens: max_new_tokens as u32,
            ignore_eos: true,
            sampling_seed: Some(seed),
            ..SamplingParams::default()
        };
        let submission = Submission {
            rid: RequestId::new(format!("r{number}")),
            intake: IntakeId::new(number as u64),
            prompt: prompt.as_slice().into(),
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            logprobs: None,
            opening: Arc::default(),
            grammar: None,
            anchors: Arc::default(),
            vectors: None,
            images: None,
            bypasses_cache: false,
            pooling: None,
            priority: None,
            cancel: flag.clone(),
            submitted_s: 0.0,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        };
        self.views.push(RequestView {
            prompt,
            max_new_tokens,
            flag,
            delivered: Vec::new(),
            cached_tokens: 0,
            loaded_tokens: 0,
            end: None,
            report: None,
            seed,
        });
        self.states.scheduler.submit(submission);
        self.plan_and_check();
        number
    }

    pub fn cancel(&mut self, number: usize) {
        self.views[number].flag.raise();
        let rid = RequestId::new(format!("r{number}"));
        self.states.scheduler.cancel(&rid, None);
        self.plan_and_check();
    }

    /// Answers the oldest order to the store; returns false if there is none.
    pub fn answer(&mut self) -> bool {
        self.answer_with(0, usize::MAX)
    }

    pub fn answer_with(&mut self, index: usize, limit: usize) -> bool {
        if index >= self.store.pending.len() {
            return false;
        }
        self.store.answer(index, limit, &mut self.states.scheduler);
        self.plan_and_check();
        true
    }

    /// Kills the store: pending orders are never answered.
    pub fn kill_store(&mut self) {
        self.store.pending.clear();
        self.states.scheduler.store_serves(false);
        self.plan_and_check();
    }

    /// Starts another store on the same disk, with new buffers.
    pub fn start_store_again(&mut self) {
        let mut buffers = self.store.buffers.lock().expect("no holder panics");
        buffers.saved.clear();
        drop(buffers);
        self.states.scheduler.store_serves(true);
        self.plan_and_check();
    }

    pub fn end_step(&mut self, end: Outcome) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        let is_void = plan.step <= self.void_until;
        let result = match end {
            Outcome::Done => self.executor.run(&plan),
            Outcome::Rejected => Err(StepError::Rejected("injected".into())),
            Outcome::LostBeforeItRan => Err(StepError::Lost("injected".into())),
            Outcome::LostAfterItRan => {
                let _ = self.executor.run(&plan);
                Err(StepError::Lost("injected".into()))
            }
        };
        match &result {
            Err(error) if !is_void && end == Outcome::Done => panic!("step {}: {error}", plan.step),
            Err(_) if !is_void => {
                self.void_until = self.steps.back().map_or(plan.step, |last| last.step);
            }
            _ => {}
        }
        self.states.scheduler.step_done(plan.step, result);
        self.plan_and_check();
        true
    }

    /// Ends all steps, and answers all orders to the store.
    pub fn drain(&mut self) {
        let mut rounds = 0;
        loop {
            let continues = self.end_step(Outcome::Done) || self.answer();
            if !continues {
                break;
            }
            rounds += 1;
            assert!(rounds < 100_000, "{:?}", self.stats());
        }
        assert!(self.states.scheduler.is_idle(), "{:?}", self.stats());
    }

    /// Drains the engine, and checks that every request got its output and all pages and buffers are accounted for.
    pub fn assert_clean(&mut self) {
        self.drain();
        for (number, view) in self.views.iter().enumerate() {
            match view.end.as_ref().expect("every request ends") {
                RequestEnd::Finished(FinishReason::Abort) => assert!(view.flag.is_raised()),
                RequestEnd::Finished(_) => {
                    let expected =
                        expected_output(&view.prompt, view.seed, view.max_new_tokens, VOCAB);
                    assert_eq!(view.delivered, expected, "request {number}");
                    let report = view.report.as_ref().expect("a report");
                    let answered = (view.cached_tokens as usize, view.loaded_tokens as usize);
                    let found = (report.cached_tokens, report.loaded_tokens);
                    assert_eq!(found, answered, "request {number}: {report:?}");
                }
                RequestEnd::Failed(RequestError::Step(_) | RequestError::OutOfMemory) => {}
                other => panic!("request {number} ended with {other:?}"),
            }
        }
        let (stats, tier) = (self.stats(), self.tier());
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        if tier.serves {
            assert_eq!(tier.free_buffers, tier.buffers, "{tier:?}");
            assert_eq!(tier.free_state_buffers, tier.state_buffers, "{tier:?}");
        }
        let buffers = self.store.buffers.lock().expect("no holder panics");
        assert!(buffers.fetched.is_empty(), "fetched blocks were not taken");
        assert!(buffers.saved.is_empty() || !tier.serves);
    }

    pub fn stats(&self) -> EngineStats {
        self.states.scheduler.stats()
    }

    pub fn tier(&self) -> TierStats {
        self.stats().store.expect("a store")
    }

    pub fn written(&self) -> usize {
        let is_write = |order: &&StoreOrder| matches!(order, StoreOrder::Write { .. });
        self.store.seen.iter().filter(is_write).count()
    }

    /// Makes all possible plans, and checks everything.
    pub fn plan_and_check(&mut self) {
        while self.steps.len() < 2
            && let Some(plan) = self.states.advance()
        {
            self.check_plan(&plan);
            self.steps.push_back(*plan);
        }
        let orders = self.states.scheduler.take_store_orders();
        self.store.take(orders);
        self.states.scheduler.take_first_admissions();
        self.diagnose();
        for news in self.states.scheduler.take_news() {
            let view = &mut self.views[news.intake.index()];
            assert_eq!(view.end, None, "a request gets tokens after its end");
            view.delivered.extend(news.tokens);
            view.cached_tokens = news.cached_tokens;
            view.loaded_tokens = news.loaded_tokens;
            view.end = news.end.map(|end| *end);
        }
        self.check();
    }

    fn diagnose(&mut self) {
        for event in self.states.scheduler.take_prefix_events() {
            let Some(report) = self.history.take(event, 0.0) else {
                continue;
            };
            let number = report.rid.as_str()[1..].parse::<usize>();
            let number = number.expect("requests are named by their numbers");
            self.views[number].report = Some(report.clone());
        }
    }

    fn check_plan(&self, plan: &StepPlan) {
        let Some(copies) = &plan.copies else {
            assert!(!plan.rows.is_empty(), "a step has neither rows nor copies");
            return;
        };
        assert!(!copies.is_empty());
        for load in &copies.loads {
            let start = plan.starts.iter().find(|start| start.row == load.row);
            // Without a start this is a later round; the executor checks that it follows the previous one.
            if let Some(start) = start {
                let cached = start.prefix.len() as u32 * self.setup.page_size;
                assert_eq!(load.positions.start, cached);
                assert!((load.positions.end as usize) < start.tokens.len());
            }
            let work = plan.rows.iter().find(|work| work.row == load.row);
            // Without a row, a later round loads more before anything is computed.
            if let Some(work) = work {
                assert_eq!(work.work.positions().start, load.positions.end);
            }
            let limit = self.setup.blocks_per_load * self.setup.block_tokens;
            assert!(self.setup.n_states > 0 || load.positions.len() <= limit);
        }
    }

    fn check(&self) {
        let (stats, tier) = (self.stats(), self.tier());
        assert_eq!(stats.integrity_failures, 0);
        let used = tier.saving_buffers + tier.fetching_buffers + tier.ready_buffers;
        assert_eq!(tier.free_buffers + used, tier.buffers, "{tier:?}");
        let buffers = self.store.buffers.lock().expect("no holder panics");
        let fetched: usize = buffers.fetched.values().map(|run| run.blocks.len()).sum();
        assert!(fetched <= tier.ready_buffers, "{tier:?}");
        if tier.serves {
            let of_blocks = |(kind, _): &&(BlockKind, Vec<u8>)| *kind == BlockKind::Kv;
            let saved = buffers.saved.values().filter(of_blocks).count();
            assert!(saved <= tier.saving_buffers, "{tier:?}");
            assert!(tier.saving_buffers <= tier.buffers.div_ceil(2), "{tier:?}");
        }
        drop(buffers);
        let pages = &self.states.pools.pages;
        let private = self.states.scheduler.private_pages().count();
        if !self.states.scheduler.has_open_plan() {
            let cached = self.states.cache.total_size() / self.setup.page_size as usize;
            assert_eq!(pages.free_pages() + private + cached, self.setup.n_pages);
        }
    }
}

/// A prompt that shares its first tokens with others of its family.
pub fn prompt(family: u32, len: usize, own: usize) -> Vec<u32> {
    let shared = (0..len as u32).map(|i| (i * 7 + family * 31 + i / 5) % VOCAB);
    let tail = (0..own as u32).map(|i| (i * 13 + len as u32 + own as u32 * 17 + family) % VOCAB);
    shared.chain(tail).collect()
}
