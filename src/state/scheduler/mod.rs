//! The scheduler as a pure state machine: requests and step results go in, plans and news come out.
//!
//! It is the only initiator, with at most one plan open and at most two steps under way. Step N+1 is planned while
//! N runs, so it knows lengths, never the tokens of the step before. The handlers in [`crate::actors::scheduler`]
//! only carry its values.
//!
//! - [`intake`](self): `submit`, `cancel`, `stop_found` (who is inside)
//! - planning: `next` (what to settle, whom to admit, whom to decode)
//! - queue: in which order; what the policy asks the cache first (`probed`)
//! - planned: `planned` (grants become a step)
//! - results: `step_done` (tokens, ends, lost steps)
//! - rules: which rows share a step, who waits for whom
//! - retraction: who gives way when decode runs out of pages
//! - preemption: who gives way to a higher priority
//! - deadlines: who has waited or run for too long
//! - pins: prefixes kept for hosts
//! - flush: the cache emptied for hosts
//! - misses: what is told to whoever diagnoses them

mod deadlines;
mod flush;
mod intake;
mod misses;
pub mod news;
mod pins;
mod planned;
mod planning;
pub mod policy;
mod preemption;
mod queue;
mod results;
mod retraction;
mod rules;
pub mod sequence;
pub mod stats;
pub mod submission;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::ids::{IntakeId, RequestId, RowId, SeqId, StepId};
use crate::state::cache::eviction::EvictionPolicy;
use crate::state::cache::prefix_history::PrefixEvent;
use crate::state::plan::probe::Matched;
use crate::state::plan::probe::ProbeRequest;
use crate::state::plan::token_ratio::NewTokenRatio;
use crate::state::plan::{CacheCounts, PlanRequest, ReserveRequest};
use crate::state::pool::pages::{PageSize, Pages, PoolLedger};
use crate::state::sampling::RowLogprobs;
use crate::state::scheduler::news::{RequestEnd, RequestTokens};
use crate::state::scheduler::policy::{SchedulePolicy, effective_policy};
use crate::state::scheduler::sequence::{Phase, SequenceTable};
use crate::state::scheduler::stats::EngineStats;
use crate::state::step::{PIPELINE_DEPTH, RowResult, StepPlan, TableDelta};

pub use flush::CacheFlushed;
pub use intake::IntakeLimits;
pub use queue::QueueRules;
pub use rules::{BatchRules, PREFILL_DECODE_INTERVAL, PREFILL_DECODE_INTERVAL_MIN_BS};

/// What bounds the scheduler.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct SchedulerLimits {
    /// Tokens a page.
    pub page_size: PageSize,
    /// Pages of the KV pool.
    pub total_pages: usize,
    /// Rows of the page table: the most requests that run.
    pub total_rows: usize,
    /// Most input tokens of a prefill step.
    pub max_prefill_tokens: usize,
    /// Most input tokens of a chunk; `None` with chunked prefill off.
    pub chunk_tokens: Option<usize>,
    /// Holds requests whose prefix is being prefilled.
    pub prefix_wait: bool,
    /// How prefills and decodes share the steps.
    pub rules: BatchRules,
    /// See [`NewTokenRatio`].
    pub schedule_conservativeness: f64,
    /// Most pins.
    pub max_pins: usize,
    /// What orders the queue besides the policy.
    pub queue: QueueRules,
    /// Tokens that end an output.
    pub eos_token_ids: Arc<[u32]>,
}

/// What to send next.
#[derive(Debug)]
pub enum Next {
    /// Nothing: wait for a message.
    Nothing,
    /// To the tree, which answers with what the policy wants to know; the plan follows.
    Probe(Box<ProbeRequest>),
    /// To the tree.
    Plan(Box<PlanRequest>),
    /// Straight to the pools: a decode that only grows.
    Reserve(Box<ReserveRequest>),
    /// To the executor.
    Run(Box<StepPlan>),
}

/// The state of the scheduler.
pub struct Scheduler {
    limits: SchedulerLimits,
    policy: Box<dyn SchedulePolicy>,
    /// Comes once the plan that is being asked for is open.
    next_policy: Option<Box<dyn SchedulePolicy>>,
    sequences: SequenceTable,
    by_rid: FxHashMap<RequestId, SeqId>,
    /// In the order of the last plan, with who arrived since behind it.
    waiting: VecDeque<SeqId>,
    /// Ahead of `waiting`, oldest first.
    retracted: VecDeque<SeqId>,
    running: Vec<SeqId>,
    chunked: Option<SeqId>,
    /// Prefilled by the last steps and not yet published.
    extended: Vec<SeqId>,
    /// Ended, with memory to give back.
    ended: Vec<SeqId>,
    pins: pins::Pins,
    flushes: flush::Flushes,
    steps: VecDeque<StepRecord>,
    open: Option<OpenPlan>,
    /// The plan that is out has only asked the tree so far.
    is_probing: bool,
    /// What the tree answered.
    matches: FxHashMap<SeqId, Matched>,
    /// What a probe settled and the plan takes to the pools.
    carried: Carried,
    /// A swap that the tree does not know of yet.
    new_eviction_policy: Option<EvictionPolicy>,
    /// Prompt tokens prefilled by the steps planned so far: the clock of policies that age by work.
    prefilled_tokens: u64,
    /// Plans that looked at the queue.
    admission_passes: u64,
    /// Page-table edits that ride in the next step.
    deltas: Vec<TableDelta>,
    ratio: NewTokenRatio,
    /// No memory or rows for a further request until one leaves.
    batch_is_full: bool,
    /// Decode steps that come before the next prefill.
    owed_decodes: usize,
    /// Preempted for the step that is being planned: no candidates of it.
    preempted: Vec<SeqId>,
    /// A step was lost: no plan until the steps under way are back, then everything is retracted and the tree flushed.
    recovering: bool,
    /// Something happened since the last plan was opened; without it the next plan would come out the same.
    is_dirty: bool,
    /// See [`Scheduler::cancels_seen`].
    cancels_seen: Vec<IntakeId>,
    /// Whose flags this plan has looked at, if the queue is longer than what is looked at.
    swept: FxHashSet<SeqId>,
    next_step: StepId,
    free_pages: usize,
    free_rows: usize,
    cache: CacheCounts,
    census: Census,
    news: Vec<RequestTokens>,
    /// When the requests came in that were admitted for the first time since this was last taken.
    first_admissions: Vec<f64>,
    counters: Counters,
    prefix_events: Vec<PrefixEvent>,
    /// A request inside may have a time limit.
    has_timeouts: bool,
    /// Rows of the last result, emptied.
    spent: Option<Vec<RowResult>>,
    ledger: Arc<PoolLedger>,
}

#[derive(Debug, Default)]
struct Counters {
    steps: u64,
    mixed_steps: u64,
    integrity_failures: u64,
    stale_messages: u64,
    retractions: u64,
    preemptions: u64,
    retracted_input_tokens: u64,
    retracted_output_tokens: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    evicted_tokens: u64,
}

/// A step under way.
#[derive(Debug)]
struct StepRecord {
    step: StepId,
    rows: Vec<SeqId>,
    /// An earlier step was lost: whatever this one answers is dropped.
    is_void: bool,
}

/// Pages and rows on their way from a probe to the pools.
#[derive(Debug, Default)]
struct Carried {
    pages: Pages,
    rows: Vec<RowId>,
}

impl Carried {
    fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.rows.is_empty()
    }
}

/// What the sequences hold, as of the last plan.
#[derive(Clone, Copy, Debug, Default)]
struct Census {
    /// Tokens of pages that belong to single sequences.
    private_tokens: usize,
    /// Tokens of those that run, prompt and output.
    decode_tokens: usize,
}

/// The plan that is out.
#[derive(Debug)]
struct OpenPlan {
    step: StepId,
    /// The decode to run when nothing is admitted.
    decode: Vec<SeqId>,
    /// Number of the last flush that it carries out for hosts.
    flush: Option<u64>,
}

impl Scheduler {
    /// A scheduler with nothing inside.
    pub fn new(
        limits: SchedulerLimits,
        policy: Box<dyn SchedulePolicy>,
        ledger: Arc<PoolLedger>,
    ) -> Self {
        Self {
            policy: effective_policy(policy, limits.queue.eviction_policy.is_some()),
            next_policy: None,
            sequences: SequenceTable::default(),
            by_rid: FxHashMap::default(),
            waiting: VecDeque::new(),
            retracted: VecDeque::new(),
            running: Vec::new(),
            chunked: None,
            extended: Vec::new(),
            ended: Vec::new(),
            pins: pins::Pins::default(),
            flushes: flush::Flushes::default(),
            steps: VecDeque::with_capacity(PIPELINE_DEPTH),
            open: None,
            is_probing: false,
            matches: FxHashMap::default(),
            carried: Carried::default(),
            new_eviction_policy: None,
            prefilled_tokens: 0,
            admission_passes: 0,
            deltas: Vec::new(),
            ratio: NewTokenRatio::new(limits.schedule_conservativeness),
            batch_is_full: false,
            owed_decodes: 0,
            preempted: Vec::new(),
            recovering: false,
            is_dirty: false,
            cancels_seen: Vec::new(),
            swept: FxHashSet::default(),
            next_step: StepId::new(1),
            free_pages: limits.total_pages,
            free_rows: limits.total_rows,
            cache: CacheCounts::default(),
            census: Census::default(),
            news: Vec::new(),
            first_admissions: Vec::new(),
            counters: Counters::default(),
            prefix_events: Vec::new(),
            has_timeouts: false,
            spent: None,
            ledger,
            limits,
        }
    }

    /// Takes what there is to tell about requests, in the order it happened.
    pub fn take_news(&mut self) -> Vec<RequestTokens> {
        std::mem::take(&mut self.news)
    }

    /// Takes the `submitted_s` of the requests that were admitted for the first time since the last call.
    pub fn take_first_admissions(&mut self) -> Vec<f64> {
        std::mem::take(&mut self.first_admissions)
    }

    /// True when no request is inside and nothing is under way or to be settled.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && !self.has_open_plan() && self.steps.is_empty()
    }

    fn reset_ratio_when_idle(&mut self) {
        if self.is_idle() {
            self.ratio.reset();
        }
    }

    /// True while a plan is out.
    pub fn has_open_plan(&self) -> bool {
        self.open.is_some() || self.is_probing
    }

    /// Queues, pools and counters as of the last plan.
    pub fn stats(&self) -> EngineStats {
        let page = self.limits.page_size;
        let eviction_policy = self.limits.queue.eviction_policy;
        EngineStats {
            schedule_policy: self.policy_name(),
            radix_eviction_policy: eviction_policy.map_or("none", EvictionPolicy::name),
            running_requests: self.running.len() + usize::from(self.chunked.is_some()),
            decode_tokens: self.census.decode_tokens,
            waiting_requests: self.waiting.len() + self.retracted.len(),
            retracted_requests: self.retracted.len(),
            total_tokens: page.tokens_in(self.limits.total_pages),
            page_size: page.get(),
            free_tokens: page.tokens_in(self.free_pages),
            evictable_tokens: self.cache.evictable_tokens,
            protected_tokens: self.cache.protected_tokens,
            private_tokens: self.census.private_tokens,
            total_rows: self.limits.total_rows,
            free_rows: self.free_rows,
            pins: self.pins.len(),
            new_token_ratio: self.ratio.get(),
            steps: self.counters.steps,
            mixed_steps: self.counters.mixed_steps,
            integrity_failures: self.counters.integrity_failures,
            lost_pages: self.ledger.lost_pages() + self.ledger.lost_locks(),
            stale_messages: self.counters.stale_messages,
            retractions: self.counters.retractions,
            preemptions: self.counters.preemptions,
            retracted_input_tokens: self.counters.retracted_input_tokens,
            retracted_output_tokens: self.counters.retracted_output_tokens,
            prompt_tokens: self.counters.prompt_tokens,
            cached_tokens: self.counters.cached_tokens,
            evicted_tokens: self.counters.evicted_tokens,
        }
    }

    /// Pages that belong to single sequences: for page-by-page accounts in tests.
    pub fn private_pages(&self) -> impl Iterator<Item = crate::ids::PageId> + '_ {
        let holds = self
            .sequences
            .iter()
            .filter_map(|(_, sequence)| sequence.kv.as_ref());
        holds.flat_map(|kv| kv.private.ids().iter().copied())
    }

    /// Only those that run, are chunked or have just ended hold memory: the queue may be long.
    fn take_census(&self) -> Census {
        let (mut private_pages, mut decode_tokens) = (0, 0);
        for &seq in &self.running {
            let sequence = &self.sequences[seq];
            decode_tokens += sequence.request.prompt.len() + sequence.output.len();
            private_pages += sequence.private_pages();
        }
        let others = self.chunked.iter().chain(&self.ended);
        private_pages += others
            .map(|seq| self.sequences[*seq].private_pages())
            .sum::<usize>();
        Census {
            private_tokens: self.limits.page_size.tokens_in(private_pages),
            decode_tokens,
        }
    }

    /// Ends a sequence: says so at once, gives its memory back with the next plan.
    fn finish(&mut self, seq: SeqId, end: RequestEnd, kept_output: usize, publish: bool) {
        let sequence = &mut self.sequences[seq];
        if sequence.has_ended {
            return;
        }
        let phase = sequence.phase;
        self.is_dirty = true;
        sequence.has_ended = true;
        sequence.kept_output = kept_output;
        sequence.publish = publish;
        let rid = sequence.request.rid.clone();
        match phase {
            Phase::Waiting => {
                leave(&mut self.waiting, seq);
                leave(&mut self.retracted, seq);
            }
            Phase::Chunked => self.chunked = None,
            Phase::Running => {
                // Those that end in one step stand in its order: the search is short.
                if let Some(place) = self.running.iter().position(|other| *other == seq) {
                    self.running.remove(place);
                }
            }
        }
        self.batch_is_full = false;
        if self.by_rid.get(&rid) == Some(&seq) {
            self.by_rid.remove(&rid);
        }
        self.ended.push(seq);
        self.tell(seq, SmallVec::new(), None, Some(Box::new(end)));
    }

    /// Adds to the news; tokens and end of one request in one result become one entry.
    #[inline]
    fn tell(
        &mut self,
        seq: SeqId,
        tokens: SmallVec<[u32; 2]>,
        logprobs: Option<Box<RowLogprobs>>,
        end: Option<Box<RequestEnd>>,
    ) {
        let sequence = &self.sequences[seq];
        let intake = sequence.request.intake;
        if let Some(last) = self.news.last_mut()
            && last.intake == intake
            && last.end.is_none()
            && tokens.is_empty()
            && logprobs.is_none()
        {
            last.end = end;
            return;
        }
        self.news.push(RequestTokens {
            intake,
            tokens,
            logprobs,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
            num_retractions: sequence.retractions,
            end,
        });
    }
}

fn leave(queue: &mut VecDeque<SeqId>, seq: SeqId) {
    if let Some(place) = queue.iter().position(|other| *other == seq) {
        queue.remove(place);
    }
}
