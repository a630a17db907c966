//! The scheduler as a pure state machine: takes requests and step results, and produces plans and messages.
//!
//! Only the scheduler starts plans. At most one plan is open, and at most two steps are in flight. Step N+1 is planned
//! while step N runs, so a plan knows how many tokens step N samples, but not which.
//!
//! Each part is a file and owns some state: requests (live requests), queue and order (the waiting queue), batch
//! (running requests), memory (counts from pools and tree), pipeline (the open plan, steps in flight), hosts (pins,
//! flushes and pauses, requested by the embedding program, the host), trials (suspects of lost steps), outbox
//! (messages, counters). Files with rules:
//!
//! - intake: `submit`, `cancel`, `stop_found`
//! - resume: requests that a dead unit has left
//! - planning: `next` (settlements, candidates, decode)
//! - order: the queue's order; the policy's probes of the cache (`prefixes_probed`)
//! - planned: `step_planned` (grants become a step)
//! - results: `step_done` (tokens, ends, lost steps)
//! - trials: finds the request that makes steps fail
//! - rules: which rows share a step, and when prefills wait for decodes
//! - retraction: frees pages when decode runs out of them
//! - preemption: frees memory for higher priorities
//! - deadlines: timeouts of waiting and running requests
//! - pins: prefixes pinned by hosts
//! - soft pins: prefixes pinned until their memory is needed
//! - flush: cache flushes for hosts
//! - pause: no work is planned while a host pauses the engine
//! - pending: tokens to compute, counted for gateways
//! - live: requests and pools, listed for the console
//! - windows: pages that left the attention window
//! - tier: fetches from the store and saves to it
//! - vision: images that are encoded before their prefill
//! - misses: events that explain cache misses

mod batch;
mod deadlines;
pub mod draft_counts;
mod flush;
mod hosts;
mod intake;
pub mod live;
mod long_requests;
mod memory;
mod misses;
pub mod news;
mod order;
mod outbox;
mod pause;
pub mod pending;
mod pins;
mod pipeline;
mod planned;
mod planning;
pub mod policy;
mod preemption;
mod queue;
mod requests;
mod results;
mod resume;
mod retraction;
mod rooms;
mod row_states;
mod rules;
pub mod sequence;
mod soft_pins;
pub mod stats;
pub mod submission;
pub mod tier;
mod trials;
pub mod vision;
mod windows;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::eviction::EvictionPolicy;
use crate::plan::prefill_pace::PrefillPace;
use crate::plan::probe::ProbePrefixes;
use crate::plan::saves::StateRules;
use crate::plan::token_ratio::NewTokenRatio;
use crate::plan::{PlanStep, ReservePages};
use crate::pool::pages::{PageSize, PoolLedger, WindowPages};
use crate::pool::state_pool::StateLimits;
use crate::pool::window_pool::WindowLimits;
use crate::step::StepPlan;
use batch::Batch;
use draft_counts::DraftCounts;
use hosts::Hosts;
use memory::{Census, Memory};
use news::{FirstAdmission, RequestEnd, RequestTokens};
use order::QueueOrder;
use outbox::{Counter, Outbox};
use pipeline::Pipeline;
use policy::SchedulePolicy;
use queue::Queue;
use requests::Requests;
use sequence::Phase;
use souffleur_base::error::RequestError;
use souffleur_base::ids::{PageId, SeqId, StateSlot};
use stats::EngineStats;
use tier::{StoreOrder, Tier, TierLimits};
use trials::Trials;
use vision::{Vision, VisionLimits};

pub use flush::CacheFlushed;
pub use intake::IntakeLimits;
pub use long_requests::LongRequest;
pub use order::QueueRules;
pub use pins::HeldPin;
pub use rules::{
    BatchRules, MAX_PREFILL_STEP_MS, PREFILL_DECODE_INTERVAL, PREFILL_DECODE_INTERVAL_MIN_BS,
};

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct SchedulerLimits {
    pub page_size: PageSize,
    pub total_pages: usize,
    /// Rows of the page table: bounds the running requests.
    pub total_rows: usize,
    pub max_prefill_tokens: usize,
    /// Upper bound of a chunk's input tokens; `None` with chunked prefill off.
    pub chunk_tokens: Option<usize>,
    /// Delays a request while another request's prefill computes its prefix.
    pub prefix_wait: bool,
    pub rules: BatchRules,
    pub schedule_conservativeness: f64,
    pub max_pins: usize,
    pub queue: QueueRules,
    pub eos_token_ids: Arc<[u32]>,
    /// Limits of recurrent states; `None` without recurrent layers.
    #[serde(default)]
    pub states: Option<StateLimits>,
    /// Limits of window pages; `None` without window layers.
    #[serde(default)]
    pub windows: Option<WindowLimits>,
    /// Limits for the use of a KV store; `None` without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierLimits>,
    /// Limits for images that the engine encodes; `None` without a vision tower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<VisionLimits>,
}

impl SchedulerLimits {
    fn state_rules(&self) -> Option<StateRules> {
        self.states.map(|limits| StateRules {
            limits,
            page_size: self.page_size.get(),
            grain: self
                .tier
                .map_or(self.page_size.get(), |tier| tier.saves.block_tokens),
        })
    }

    /// One state is reserved for each row; pins hold at most half of the others.
    fn max_pinned_states(&self) -> usize {
        let total = self.states.map_or(0, |states| states.total_slots);
        total.saturating_sub(self.total_rows) / 2
    }
}

#[derive(Debug)]
pub enum Next {
    Nothing,
    /// Sent to the tree, which looks up the prefixes for the policy. The plan follows.
    ProbePrefixes(Box<ProbePrefixes>),
    PlanStep(Box<PlanStep>),
    /// Sent to the allocator directly: a decode that only appends pages.
    ReservePages(Box<ReservePages>),
    RunStep(Box<StepPlan>),
}

pub struct Scheduler {
    limits: SchedulerLimits,
    requests: Requests,
    queue: Queue,
    batch: Batch,
    memory: Memory,
    pipeline: Pipeline,
    hosts: Hosts,
    trials: Trials,
    outbox: Outbox,
    /// Window pages whose tokens have left the window; the next plan returns them to the pool.
    passed_windows: WindowPages,
    /// `None` without a store.
    tier: Option<Box<Tier>>,
    /// `None` without a vision tower.
    vision: Option<Box<Vision>>,
    /// Measured prefill speed; `None` if the time of steps is unbounded.
    pace: Option<Box<PrefillPace>>,
}

/// Whether a sequence that ends leaves its K/V in the prefix cache (publishes it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KvAtEnd {
    Publish,
    Discard,
}

impl Scheduler {
    pub fn new(
        limits: SchedulerLimits,
        policy: Box<dyn SchedulePolicy>,
        ledger: Arc<PoolLedger>,
    ) -> Self {
        let ratio = NewTokenRatio::new(limits.schedule_conservativeness);
        Self {
            requests: Requests::default(),
            queue: Queue::new(QueueOrder::new(policy, limits.queue)),
            batch: Batch::new(ratio),
            memory: Memory::new(&limits, ledger),
            pipeline: Pipeline::new(),
            hosts: Hosts::default(),
            trials: Trials::default(),
            outbox: Outbox::default(),
            passed_windows: WindowPages::empty(),
            tier: limits.tier.map(|tier| Box::new(Tier::new(tier))),
            vision: limits.vision.map(|vision| Box::new(Vision::new(vision))),
            pace: limits
                .rules
                .max_prefill_step_ms
                .map(|step_ms| Box::new(PrefillPace::new(step_ms))),
            limits,
        }
    }

    /// Takes the new tokens and ends of requests, in order.
    pub fn take_news(&mut self) -> Vec<RequestTokens> {
        self.outbox.take_news()
    }

    /// Takes the requests first admitted since the last call.
    pub fn take_first_admissions(&mut self) -> Vec<FirstAdmission> {
        self.outbox.take_first_admissions()
    }

    /// Takes sequences that ended with decodes in flight, for a reason that no step's result shows: an executor that
    /// knows these sequences can skip their decodes.
    pub fn take_ended(&mut self) -> Vec<SeqId> {
        self.outbox.take_ended()
    }

    pub fn reported_tokens(&self) -> u64 {
        self.outbox.reported_tokens()
    }

    pub fn draft_counts(&self) -> &DraftCounts {
        self.outbox.draft_counts()
    }

    pub fn take_store_orders(&mut self) -> Vec<StoreOrder> {
        let tier = self.tier.as_mut();
        tier.map_or_else(Vec::new, |tier| tier.take_orders())
    }

    /// True if there are no requests, no open plan and no steps in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && !self.has_open_plan() && self.pipeline.is_drained()
    }

    fn reset_ratio_when_idle(&mut self) {
        if self.is_idle() {
            self.batch.ratio_mut().reset();
        }
    }

    pub fn has_open_plan(&self) -> bool {
        self.pipeline.is_planning()
    }

    pub fn stats(&self) -> EngineStats {
        let eviction_policy = self.queue.order().eviction_policy();
        let stats = EngineStats {
            schedule_policy: self.policy_name(),
            radix_eviction_policy: eviction_policy.map_or("none", EvictionPolicy::name),
            running_requests: self.batch.len(),
            waiting_requests: self.queue.len(),
            retracted_requests: self.queue.n_retracted(),
            pins: self.hosts.pins().len(),
            soft_pins: self.hosts.pins().soft().len(),
            is_paused: self.hosts.is_paused(),
            store: self.tier.as_ref().map(|tier| tier.stats()),
            new_token_ratio: self.batch.ratio().get(),
            ..EngineStats::default()
        };
        self.outbox.stats(self.memory.add_counts(stats))
    }

    /// Pages private to sequences, for page-by-page checks in tests.
    pub fn private_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        let owned = self
            .requests
            .iter()
            .filter_map(|(_, sequence)| sequence.kv.as_ref());
        owned.flat_map(|kv| kv.private.ids().iter().copied())
    }

    /// Window pages private to sequences or waiting to be returned, for page-by-page checks in tests.
    pub fn private_windows(&self) -> impl Iterator<Item = PageId> + '_ {
        let sequences = self.requests.iter();
        let owned = sequences.filter_map(|(_, sequence)| sequence.kv.as_ref()?.windows.as_ref());
        let passed = self.passed_windows.ids().iter().copied();
        owned
            .flat_map(|windows| windows.pages.ids().iter().copied())
            .chain(passed)
    }

    pub fn held_states(&self) -> impl Iterator<Item = StateSlot> + '_ {
        let sequences = self.requests.iter();
        let owned = sequences.filter_map(|(_, sequence)| sequence.kv.as_ref()?.states.as_ref());
        owned.flat_map(|states| states.slots())
    }

    /// Only running, chunked and just ended sequences hold memory: the queue, which may be long, is skipped.
    fn census(&self) -> Census {
        let (mut private_pages, mut decode_tokens, mut states) = (0, 0, 0);
        let mut rows = 0;
        let mut windows = self.passed_windows.len();
        for &seq in self.batch.running() {
            let sequence = &self.requests[seq];
            decode_tokens += sequence.request.prompt.len() + sequence.output.len();
            private_pages += sequence.private_pages();
            states += sequence.states();
            windows += sequence.private_windows();
            rows += usize::from(sequence.kv.is_some());
        }
        let others = self.batch.chunked().into_iter();
        let others = others.chain(self.batch.ended().iter().copied());
        for seq in others {
            let sequence = &self.requests[seq];
            private_pages += sequence.private_pages();
            states += sequence.states();
            windows += sequence.private_windows();
            rows += usize::from(sequence.kv.is_some());
        }
        Census {
            states,
            rows,
            windows,
            private_tokens: self.limits.page_size.tokens_in(private_pages),
            decode_tokens,
        }
    }

    /// The counts are exact: between a plan's start and its answer, nothing else changes the pools or the tree.
    fn check_integrity(&mut self) {
        let census = self.census();
        let is_whole = self.memory.set_census(census);
        self.outbox
            .count(Counter::IntegrityFailures, usize::from(!is_whole));
    }

    /// Ends a sequence and reports its end; the next plan releases its memory. The first `kept_output` output tokens
    /// are valid.
    fn finish(&mut self, seq: SeqId, end: RequestEnd, kept_output: usize, kv: KvAtEnd) {
        let sequence = &mut self.requests[seq];
        if sequence.has_ended {
            return;
        }
        let phase = sequence.phase;
        sequence.has_ended = true;
        sequence.kept_output = kept_output;
        sequence.publish = kv == KvAtEnd::Publish;
        if phase == Phase::Running && sequence.rows_in_flight > 0 && !end.shows_in_results() {
            self.outbox.note_ended(seq);
        }
        self.outbox
            .report(sequence, SmallVec::new(), None, Some(Box::new(end)));
        self.trials.ended(sequence.request.intake);
        if phase == Phase::Waiting {
            self.queue.remove(seq);
        }
        self.discard_fetch(seq);
        self.release_vectors(seq);
        self.batch.end(seq, phase);
        self.requests.release_rid(seq);
        self.pipeline.note_change();
    }

    fn fail(&mut self, seq: SeqId, error: RequestError) {
        let kept = self.requests[seq].output.len();
        self.finish(seq, RequestEnd::Failed(error), kept, KvAtEnd::Discard);
    }
}
