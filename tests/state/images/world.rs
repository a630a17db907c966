//! A whole engine without actors that encodes images: scheduler, tree, pools, the queue of images, and a block store.
//!
//! Messages between the scheduler and the queue of images arrive at once, or one by one when a test chooses
//! ([`World::is_slow`]). Every plan is checked.

use std::collections::VecDeque;
use std::sync::Arc;

use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{IntakeId, RequestId, StepId};
use souffleur_executor::Executor;
use souffleur_executor::fake::{FAKE_TOKEN_BYTES, FakeExecutor, FakeOptions, expected_output};
use souffleur_request::{CancelFlag, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::SaveRules;
use souffleur_state::control::{ControlSetup, ControlStates};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::news::{FinishReason, RequestEnd};
use souffleur_state::scheduler::policy::PriorityOrder;
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::scheduler::tier::{StoreOrder, TierLimits, TierStats};
use souffleur_state::scheduler::vision::VisionLimits;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::{StepOutput, StepPlan};

use super::hand_out::HandOut;
use super::prompts::{Prompt, VOCAB};
use super::tower::{FLOPS_PER_TOKEN, Tower};
use crate::scheduler_world::Outcome;
use crate::tiers::store::{Disk, NaiveStore};

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub page_size: u32,
    /// Tokens of the pool.
    pub n_tokens: usize,
    pub n_rows: usize,
    pub chunk_tokens: Option<usize>,
    pub conservativeness: f64,
    pub decode_interval: usize,
    pub priority: PriorityOrder,
    pub max_vectors: usize,
    /// Bytes of vectors that stay without a ticket.
    pub cache_bytes: usize,
    /// Buffers of the block store; 0 without a store.
    pub buffers: usize,
    pub blocks_per_load: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            page_size: 1,
            n_tokens: 4096,
            n_rows: 8,
            chunk_tokens: None,
            conservativeness: 0.3,
            decode_interval: 1,
            priority: PriorityOrder::Ignored,
            max_vectors: 4096,
            cache_bytes: 0,
            buffers: 0,
            blocks_per_load: 2,
        }
    }
}

impl Setup {
    fn n_pages(&self) -> usize {
        self.n_tokens / self.page_size as usize
    }

    fn block_tokens(&self) -> usize {
        16.max(self.page_size as usize)
    }

    fn limits(&self) -> SchedulerLimits {
        SchedulerLimits {
            page_size: PageSize::new(self.page_size).expect("a page size"),
            total_pages: self.n_pages(),
            total_rows: self.n_rows,
            max_prefill_tokens: 4096,
            chunk_tokens: self.chunk_tokens,
            prefix_wait: true,
            rules: BatchRules {
                prefill_decode_interval: self.decode_interval,
                ..BatchRules::default()
            },
            schedule_conservativeness: self.conservativeness,
            max_pins: 4,
            queue: QueueRules {
                priority: self.priority,
                ..QueueRules::default()
            },
            eos_token_ids: Arc::from([]),
            states: None,
            windows: None,
            tier: (self.buffers > 0).then_some(TierLimits {
                saves: SaveRules {
                    block_tokens: self.block_tokens(),
                    min_hits: 1,
                },
                buffers: self.buffers,
                state_buffers: 0,
                saves_per_step: 1,
                steps_per_save: 1,
                saves_when_idle: 2,
                blocks_per_load: self.blocks_per_load,
            }),
            vision: Some(VisionLimits {
                max_vectors: self.max_vectors,
                flops_per_token: FLOPS_PER_TOKEN,
            }),
        }
    }

    /// Whether a request runs to its end if it is alone.
    fn fits(&self, prompt: &Prompt, max_new_tokens: usize) -> bool {
        let page = self.page_size as usize;
        let paged = prompt.n_tokens().next_multiple_of(page);
        paged + page + 1 + max_new_tokens <= self.n_tokens
    }
}

pub struct View {
    pub prompt: Prompt,
    pub max_new_tokens: usize,
    pub flag: CancelFlag,
    pub delivered: Vec<u32>,
    pub cached_tokens: u32,
    pub loaded_tokens: u32,
    pub retractions: u32,
    pub end: Option<RequestEnd>,
}

pub struct World {
    pub setup: Setup,
    pub states: ControlStates,
    pub store: NaiveStore,
    pub tower: Tower,
    pub views: Vec<View>,
    pub steps: VecDeque<StepPlan>,
    pub hand_out: HandOut,
    /// Messages to and from the queue of images wait for [`Self::deliver`].
    pub is_slow: bool,
    /// While true, nothing is planned.
    pub holds_plans: bool,
    executor: FakeExecutor,
    void_until: StepId,
    has_failures: bool,
}

/// Pages that the tree holds at the end of an engine are not lost.
impl Drop for World {
    fn drop(&mut self) {
        self.states.ledger.close();
    }
}

impl World {
    /// An engine whose store, if it has one, serves and holds `disk`.
    pub fn new(setup: Setup, disk: Disk) -> Self {
        let control = ControlSetup {
            limits: setup.limits(),
            schedule_policy: "fcfs".to_owned(),
            diagnoses_misses: false,
        };
        let store = NaiveStore::new(setup.block_tokens(), false, disk);
        let executor = FakeExecutor::new(FakeOptions {
            page_size: setup.page_size as usize,
            n_pages: setup.n_pages(),
            vocab_size: VOCAB,
            verify: true,
            n_states: 0,
            hidden_size: 0,
            faults: Vec::new(),
        });
        let port = store.port(FAKE_TOKEN_BYTES);
        let mut world = Self {
            setup,
            states: control.build().expect("the pools are small"),
            tower: Tower::new(setup.cache_bytes),
            views: Vec::new(),
            steps: VecDeque::new(),
            hand_out: HandOut::default(),
            is_slow: false,
            holds_plans: false,
            executor: executor.with_store(setup.block_tokens(), port),
            store,
            void_until: StepId::new(0),
            has_failures: false,
        };
        world.states.scheduler.store_serves(true);
        world.plan();
        world
    }

    /// The same engine after a restart: only the disk is left.
    pub fn restart(mut self) -> Self {
        self.drain();
        Self::new(self.setup, std::mem::take(&mut self.store.disk))
    }

    pub fn submit(&mut self, prompt: Prompt, max_new_tokens: usize) -> usize {
        self.submit_ranked(prompt, max_new_tokens, None)
    }

    pub fn submit_ranked(
        &mut self,
        prompt: Prompt,
        max_new_tokens: usize,
        priority: Option<i64>,
    ) -> usize {
        assert!(self.setup.fits(&prompt, max_new_tokens));
        let number = self.views.len();
        let flag = CancelFlag::default();
        let sampling = SamplingParams {
            max_new_tokens: max_new_tokens as u32,
            ignore_eos: false,
            sampling_seed: Some(number as u64),
            ..SamplingParams::default()
        };
        let submission = Submission {
            rid: RequestId::new(format!("r{number}")),
            intake: IntakeId::new(number as u64),
            prompt: prompt.tokens.clone(),
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            logprobs: None,
            opening: Arc::default(),
            grammar: None,
            anchors: Arc::default(),
            vectors: None,
            images: prompt.images.clone(),
            bypasses_cache: false,
            pooling: None,
            priority,
            cancel: flag.clone(),
            submitted_s: 0.0,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        };
        self.views.push(View {
            prompt,
            max_new_tokens,
            flag,
            delivered: Vec::new(),
            cached_tokens: 0,
            loaded_tokens: 0,
            retractions: 0,
            end: None,
        });
        self.states.scheduler.submit(submission);
        self.plan();
        number
    }

    pub fn cancel(&mut self, number: usize) {
        self.views[number].flag.raise();
        let rid = RequestId::new(format!("r{number}"));
        self.states.scheduler.cancel(&rid, None);
        self.plan();
    }

    /// Delivers a message to or from the queue of images, of this channel if it has any; false if there is none.
    pub fn deliver(&mut self, channel: usize) -> bool {
        let is_delivered = self.tower.deliver(channel, &mut self.states.scheduler);
        self.plan();
        is_delivered
    }

    /// Answers an order to the store, a fetch with at most `limit` blocks; false if there is none.
    pub fn answer(&mut self, index: usize, limit: usize) -> bool {
        if index >= self.store.pending.len() {
            return false;
        }
        self.store.answer(index, limit, &mut self.states.scheduler);
        self.plan();
        true
    }

    /// Answers the first fetch; false if there is none.
    pub fn answer_fetch(&mut self, limit: usize) -> bool {
        let mut pending = self.store.pending.iter();
        let fetch = pending.position(|order| matches!(order, StoreOrder::Fetch { .. }));
        fetch.is_some_and(|index| self.answer(index, limit))
    }

    /// Kills the store: pending orders are never answered.
    pub fn kill_store(&mut self) {
        self.store.pending.clear();
        self.states.scheduler.store_serves(false);
        self.plan();
    }

    /// Starts another store on the same disk.
    pub fn start_store_again(&mut self) {
        let mut buffers = self.store.buffers.lock().expect("no holder panics");
        buffers.saved.clear();
        drop(buffers);
        self.states.scheduler.store_serves(true);
        self.plan();
    }

    pub fn end_step(&mut self, end: Outcome) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        let is_void = plan.step <= self.void_until;
        let result = match end {
            Outcome::Done => self.run(&plan),
            Outcome::Rejected => Err(StepError::Rejected("injected".into())),
            Outcome::LostBeforeItRan => Err(StepError::Lost("injected".into())),
            Outcome::LostAfterItRan => {
                let _ = self.run_rows(&plan);
                Err(StepError::Lost("injected".into()))
            }
        };
        if let Err(error) = &result {
            self.tower.forget();
            if !is_void {
                assert_ne!(end, Outcome::Done, "step {}: {error}", plan.step);
                self.has_failures = true;
                self.void_until = self.steps.back().map_or(plan.step, |last| last.step);
            }
        }
        self.states.scheduler.step_done(plan.step, result);
        self.plan();
        true
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let output = self.run_rows(plan)?;
        if let Some(slice) = &plan.vision {
            self.tower.run(slice)?;
        }
        Ok(output)
    }

    /// Runs a plan without its slice.
    fn run_rows(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let rows = StepPlan {
            vision: None,
            ..plan.clone()
        };
        self.executor.run(&rows)
    }

    /// Lets one event happen: a message, an answer of the store, or the end of a step. False if there is none.
    pub fn tick(&mut self) -> bool {
        self.deliver(0) || self.answer(0, usize::MAX) || self.end_step(Outcome::Done)
    }

    /// Ends all steps, answers all orders and delivers all messages.
    pub fn drain(&mut self) {
        let mut ticks = 0;
        while self.tick() {
            ticks += 1;
            assert!(ticks < 100_000, "{:?}", self.states.scheduler.stats());
        }
        let stats = self.states.scheduler.stats();
        assert!(self.states.scheduler.is_idle(), "{stats:?}");
    }

    /// Drains the engine, and checks that every request got its output, and that nothing is left of any.
    pub fn assert_clean(&mut self) {
        self.drain();
        for (number, view) in self.views.iter().enumerate() {
            let end = view.end.as_ref().expect("every request ends");
            match end {
                RequestEnd::Finished(FinishReason::Abort) => assert!(view.flag.is_raised()),
                RequestEnd::Finished(_) => {
                    let (prompt, seed) = (&view.prompt.tokens, number as u64);
                    let expected = expected_output(prompt, seed, view.max_new_tokens, VOCAB);
                    assert_eq!(view.delivered, expected, "request {number}");
                }
                RequestEnd::Failed(RequestError::Field(error)) => {
                    assert!(view.prompt.is_broken(), "request {number}: {error}");
                }
                RequestEnd::Failed(RequestError::Step(_)) if self.has_failures => {}
                other => panic!("request {number} ended with {other:?}"),
            }
        }
        let stats = self.states.scheduler.stats();
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        assert_eq!(self.states.scheduler.wanted_vectors(), (0, 0));
        let encodings = &self.tower.encodings;
        assert_eq!(encodings.n_waiting(), 0);
        let (n_held, bytes) = encodings.held();
        // Vectors without a ticket stay as long as they fit.
        assert!(bytes <= self.setup.cache_bytes, "{n_held} images");
        if let Some(tier) = stats.store.filter(|tier| tier.serves) {
            assert_eq!(tier.free_buffers, tier.buffers, "{tier:?}");
        }
        let buffers = self.store.buffers.lock().expect("no holder panics");
        assert!(buffers.fetched.is_empty(), "fetched blocks were not taken");
        drop(buffers);
        let ledger = &self.states.ledger;
        assert_eq!((ledger.lost_pages(), ledger.lost_locks()), (0, 0));
        assert_eq!(self.states.cache.check_integrity(), Ok(()));
    }

    /// # Panics
    /// If there is no store.
    pub fn tier(&self) -> TierStats {
        let store = self.states.scheduler.stats().store;
        store.expect("a store")
    }

    pub fn free_pages(&self) -> usize {
        self.states.pools.pages.free_pages()
    }

    /// Makes all possible plans, and checks everything.
    pub fn plan(&mut self) {
        if self.holds_plans {
            return;
        }
        loop {
            while self.steps.len() < 2
                && let Some(plan) = self.states.advance()
            {
                self.take_plan(*plan);
            }
            let orders = self.states.scheduler.take_store_orders();
            self.store.take(orders);
            self.tower.take_orders(&mut self.states.scheduler);
            if self.is_slow || !self.tower.deliver(0, &mut self.states.scheduler) {
                break;
            }
        }
        self.states.scheduler.take_first_admissions();
        self.states.scheduler.take_prefix_events();
        self.states.scheduler.take_ended();
        for news in self.states.scheduler.take_news() {
            let view = &mut self.views[news.intake.index()];
            assert_eq!(view.end, None, "a request gets tokens after its end");
            view.delivered.extend(news.tokens);
            view.cached_tokens = news.cached_tokens;
            view.loaded_tokens = news.loaded_tokens;
            view.retractions = news.num_retractions;
            view.end = news.end.map(|end| *end);
        }
        self.check();
    }

    fn take_plan(&mut self, plan: StepPlan) {
        let has_copies = plan
            .copies
            .as_ref()
            .is_some_and(|copies| !copies.is_empty());
        let has_slice = plan.vision.is_some();
        assert!(!plan.rows.is_empty() || has_copies || has_slice);
        let (prefilled, _) = plan.query_tokens();
        assert!(prefilled == 0 || !has_slice, "a step prefills and encodes");
        let views = &self.views;
        self.hand_out
            .take(&plan, self.setup.page_size as usize, |number| {
                &views[number].prompt
            });
        self.steps.push_back(plan);
    }

    fn check(&self) {
        let stats = self.states.scheduler.stats();
        assert_eq!(stats.integrity_failures, 0);
        if let Some(tier) = &stats.store {
            let used = tier.saving_buffers + tier.fetching_buffers + tier.ready_buffers;
            assert_eq!(tier.free_buffers + used, tier.buffers, "{tier:?}");
        }
        if !self.states.scheduler.has_open_plan() {
            let private = self.states.scheduler.private_pages().count();
            let cached = self.states.cache.total_size() / self.setup.page_size as usize;
            assert_eq!(self.free_pages() + private + cached, self.setup.n_pages());
        }
    }
}
