//! A whole engine without actors: scheduler, cache, pools, fake executor, and the expected output of every request.
//!
//! Events may come between any two legs of a plan. Every invariant is asserted here, so a test only lists
//! events.

mod checks;
mod events;
mod legs;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use souffleur_base::ids::{RequestId, SeqId, StepId};
use souffleur_executor::ended::EndedRows;
use souffleur_executor::fake::{FakeDrafts, FakeExecutor, FakeOptions};
use souffleur_state::cache::changes::Observer;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::prefix_history::{HistoryLimits, PrefixHistory, PrefixReport};
use souffleur_state::control::{ControlSetup, ControlStates, Leg};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::scheduler::policy::{PriorityOrder, SchedulePolicy, schedule_policy};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::{BatchRules, QueueRules, SchedulerLimits};
use souffleur_state::step::StepPlan;

use crate::drafts_seen::DraftsSeen;
use crate::kv_events::KvReader;
use crate::planted_drafts::Planted;
use crate::policy_model::OrderCheck;
pub use crate::scheduler_requests::{Ask, EOS, End, RequestView, VOCAB};
use crate::scheduler_waits::{WaitLog, WaitRules};
use crate::scheduler_watch::Watch;

/// The most evicted pages that the history records.
const MAX_EVICTED_PAGES: usize = 4096;
/// The number of tokens that every step has time for, even under a time limit.
const MIN_TIMED_TOKENS: usize = 16;

#[derive(Clone, Debug)]
pub struct Setup {
    pub page_size: u32,
    pub n_pages: u32,
    pub n_rows: u32,
    pub chunk_tokens: Option<usize>,
    pub max_prefill_tokens: usize,
    pub prefix_wait: bool,
    pub has_radix_cache: bool,
    /// The factor of the memory reserved for outputs: 0 admits requests that will not fit together.
    pub conservativeness: f64,
    /// Clips `max_new_tokens` as the tokenizer does.
    pub clips: bool,
    pub rules: BatchRules,
    pub policy: &'static str,
    /// Used only if `rules` has no priority rules, which determine the order themselves.
    pub priority: PriorityOrder,
    pub eviction: &'static str,
    pub states: Option<StateLimits>,
    pub windows: Option<WindowLimits>,
    /// Plans from one full check to the next: of each page, of each node, of the whole order of the queue.
    pub full_check_every: usize,
    /// Which drafts are right; `None`: the executor has no drafts.
    pub drafts: Option<FakeDrafts>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            page_size: 1,
            n_pages: 1024,
            n_rows: 8,
            chunk_tokens: None,
            max_prefill_tokens: 16384,
            prefix_wait: true,
            has_radix_cache: true,
            conservativeness: 1.0,
            clips: true,
            rules: BatchRules::default(),
            policy: "fcfs",
            priority: PriorityOrder::Ignored,
            eviction: "lru",
            states: None,
            windows: None,
            full_check_every: 1,
            drafts: None,
        }
    }
}

impl Setup {
    pub fn priority_order(&self) -> PriorityOrder {
        match self.rules.priority {
            None => self.priority,
            Some(rules) if rules.low_values_first => PriorityOrder::SmallerFirst,
            Some(_) => PriorityOrder::LargerFirst,
        }
    }

    fn page_size(&self) -> PageSize {
        PageSize::new(self.page_size).expect("tests use positive page sizes")
    }

    fn eviction_policy(&self) -> Option<EvictionPolicy> {
        self.has_radix_cache.then(|| {
            EvictionPolicy::from_name(self.eviction).expect("tests name policies that exist")
        })
    }

    fn limits(&self) -> SchedulerLimits {
        SchedulerLimits {
            page_size: self.page_size(),
            total_pages: self.n_pages as usize,
            total_rows: self.n_rows as usize,
            max_prefill_tokens: self.max_prefill_tokens,
            chunk_tokens: self.chunk_tokens,
            prefix_wait: self.prefix_wait,
            rules: self.rules,
            schedule_conservativeness: self.conservativeness,
            max_pins: 4,
            queue: QueueRules {
                priority: self.priority_order(),
                eviction_policy: self.eviction_policy(),
            },
            eos_token_ids: Arc::from([EOS]),
            states: self.states,
            windows: self.windows,
            tier: None,
            vision: None,
        }
    }

    fn wait_rules(&self) -> WaitRules {
        let page_size = self.page_size as usize;
        let by_time = self.rules.max_prefill_step_ms.is_some();
        let mixed_rows = if self.rules.mixed_chunk || by_time {
            self.n_rows as usize
        } else {
            0
        };
        let chunk = if by_time {
            self.chunk_tokens.map(|chunk| chunk.min(MIN_TIMED_TOKENS))
        } else {
            self.chunk_tokens
        };
        WaitRules {
            min_chunk: WaitRules::min_chunk(chunk, mixed_rows, page_size),
            due_decodes: self.rules.prefill_decode_interval,
            prefix_wait: self.prefix_wait,
            priority_first: self.rules.priority.is_some(),
            page_size,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Rejected,
    LostBeforeItRan,
    LostAfterItRan,
}

pub struct World {
    pub setup: Setup,
    pub states: ControlStates,
    pub views: Vec<RequestView>,
    pub history: Vec<StepPlan>,
    executor: FakeExecutor,
    ended: EndedRows,
    /// Steps from which rows were removed because their requests had ended.
    pub skipped_steps: usize,
    /// Steps that computed rows.
    pub computed_steps: usize,
    pub drafts_seen: DraftsSeen,
    /// A fault at the boundary of scheduler and executor.
    pub planted: Option<Planted>,
    leg: Option<Leg>,
    steps: VecDeque<StepPlan>,
    /// The results of steps up to this one are void, because an earlier step failed.
    void_until: StepId,
    /// The request numbers, in the order in which the scheduler accepted the requests.
    numbers: Vec<usize>,
    pub watch: Watch,
    pub waits: WaitLog,
    /// Requests that have not ended or still hold memory.
    unfinished: Vec<usize>,
    /// The number of plans that the pools have answered.
    plans: usize,
    /// The number of victims of each preemption.
    pub preempted: Vec<usize>,
    pins: Vec<u64>,
    soft_pins: u64,
    plans_since_progress: usize,
    /// While true, no plans are made.
    defers_plans: bool,
    pub has_failures: bool,
    /// Lost steps, without those that were void already.
    pub lost_steps: usize,
    /// Steps sent while suspects of lost steps were tried.
    pub trial_steps: usize,
    pub misses: PrefixHistory,
    reported: HashSet<RequestId>,
    /// The current (virtual) time.
    pub now_s: f64,
    /// The cache's contents according to its events, if events are enabled.
    pub kv_reader: Option<KvReader>,
    order: OrderCheck,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let policy = schedule_policy(setup.policy).expect("tests name policies that exist");
        Self::with_policy(setup, policy)
    }

    pub fn with_policy(setup: Setup, policy: Box<dyn SchedulePolicy>) -> Self {
        let page_size = setup.page_size();
        let control = ControlSetup {
            limits: setup.limits(),
            schedule_policy: policy.name().to_owned(),
            diagnoses_misses: true,
        };
        let states = control.build_with(policy).expect("the pools are small");
        let executor = FakeExecutor::new(FakeOptions {
            page_size: page_size.get(),
            n_pages: setup.n_pages as usize,
            vocab_size: VOCAB,
            verify: true,
            n_states: setup.states.map_or(0, |states| states.total_slots),
            hidden_size: 0,
            faults: Vec::new(),
        });
        let executor = match setup.windows {
            Some(windows) => executor.with_windows(windows),
            None => executor,
        };
        let executor = match &setup.drafts {
            Some(drafts) => executor.with_drafts(drafts.clone()),
            None => executor,
        };
        Self {
            states,
            views: Vec::new(),
            history: Vec::new(),
            executor,
            ended: EndedRows::new(Arc::from([EOS])),
            skipped_steps: 0,
            computed_steps: 0,
            drafts_seen: DraftsSeen::default(),
            planted: None,
            leg: None,
            steps: VecDeque::new(),
            void_until: StepId::new(0),
            numbers: Vec::new(),
            watch: Watch::new(setup.rules, setup.chunk_tokens),
            waits: WaitLog::new(setup.wait_rules()),
            unfinished: Vec::new(),
            plans: 0,
            preempted: Vec::new(),
            pins: Vec::new(),
            soft_pins: 0,
            plans_since_progress: 0,
            defers_plans: false,
            has_failures: false,
            lost_steps: 0,
            trial_steps: 0,
            misses: PrefixHistory::new(HistoryLimits {
                page_size,
                max_requests: usize::MAX,
                max_evicted_pages: MAX_EVICTED_PAGES,
            }),
            reported: HashSet::new(),
            now_s: 0.0,
            kv_reader: None,
            order: OrderCheck::default(),
            setup,
        }
    }

    /// Enables the cache's events, which a new [`KvReader`] with blocks of this size applies.
    pub fn read_kv_events(&mut self, block_size: usize) -> &KvReader {
        self.states.cache.restart_changes(Observer::Publisher);
        let page_size = self.setup.page_size();
        self.kv_reader.insert(KvReader::new(page_size, block_size))
    }

    /// True while a request waits in the queue after it has run.
    pub fn is_retracted(&self, number: usize) -> bool {
        let view = &self.views[number];
        view.end.is_none() && !view.holds_memory && self.was_started(number)
    }

    fn was_started(&self, number: usize) -> bool {
        let mut starts = self.history.iter().flat_map(|step| &step.starts);
        starts.any(|start| self.number_of(start.seq) == number)
    }

    /// The report on the request's prefix-cache miss.
    #[track_caller]
    pub fn report(&self, number: usize) -> &PrefixReport {
        let report = self.misses.report(&self.views[number].rid);
        report.unwrap_or_else(|| panic!("request {number} was not admitted"))
    }

    /// Plans that touched prefixes: each plan's number among the plans with candidates, and its requests in order.
    pub fn touched(&self) -> &[(usize, Vec<usize>)] {
        self.order.touched()
    }

    /// Plans of this world whose queue was compared with the naive model's.
    pub fn checked_orders(&self) -> usize {
        self.order.checked
    }

    pub fn stats(&self) -> EngineStats {
        self.states.scheduler.stats()
    }

    pub fn not_ended(&self) -> Vec<usize> {
        let is_live = |number: &usize| self.views[*number].end.is_none();
        self.unfinished.iter().copied().filter(is_live).collect()
    }

    pub fn is_idle(&self) -> bool {
        self.states.scheduler.is_idle() && self.leg.is_none()
    }

    /// True if a full check is due at this plan.
    pub fn is_full_check(&self) -> bool {
        self.plans.is_multiple_of(self.setup.full_check_every)
    }

    /// Number of steps in flight.
    pub fn depth(&self) -> usize {
        self.steps.len()
    }

    pub fn number_of(&self, seq: SeqId) -> usize {
        self.numbers[(seq.get() >> 32) as usize - 1]
    }
}
