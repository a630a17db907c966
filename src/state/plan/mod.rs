//! The planning transaction as data: the scheduler's request, the tree's verdict, the pools' grants.
//!
//! One plan runs Scheduler -> RadixCache -> Allocator -> Scheduler. Each value here is one leg of it; its holder owns
//! the pages, rows and locks inside.
//!
//! At most one plan is open: each actor forwards it, and none awaits a reply. A step costs one message for a decode
//! that needs no page, three for one that only grows, four with settlements, admissions or evictions, six with a probe.
//! A retraction adds three for each victim. A preemption adds three for all of its victims: only the tree knows how
//! much memory is missing, so its verdict names them and takes the admissions back, and the next plan of the same step
//! settles their release.

mod candidate;
pub mod completion_order;
mod granted;
pub mod plan_step;
pub mod preemption;
pub mod prefill_adder;
pub mod prefill_pace;
pub mod probe;
mod probe_key;
mod reservation;
mod save_rules;
pub mod saves;
mod settle;
pub mod token_ratio;
mod verdict;
pub mod window_budget;

pub use reservation::reserve_pages;

pub use self::candidate::{Candidate, FetchWish, LoadGrant, StoredPrefix};
pub use self::granted::{Grant, Growth, Reservation, StepPlanned};
pub use self::settle::{PinDemand, Pinned, PublishKey, Settle, SettleCheckpoint, SettleRelease};
pub use self::verdict::{Admitted, CacheCounts, CheckpointedSeq, Preempt, Verdict};
use crate::cache::eviction::EvictionPolicy;
use crate::cache::prefix_cache::SaveAccount;
use crate::plan::preemption::Preemption;
use crate::plan::prefill_adder::PrefillAdder;
use crate::plan::probe_key::ProbeKey;
use crate::plan::save_rules::StateRules;
use crate::plan::window_budget::WindowBudget;
use crate::pool::pages::{EvictedPages, Pages, WindowPages};
use crate::pool::state_pool::OwnedState;
use souffleur_base::ids::{RowId, SeqId, StepId};

/// First leg: the scheduler's request for one step.
#[derive(Debug)]
pub struct PlanStep {
    pub step: StepId,
    /// The holdings that earlier steps left to be settled, before anything is matched.
    pub settle: Vec<Settle>,
    /// Flushes every cached prefix after the settling: a step was lost, or a host requested it. Locked prefixes stay;
    /// after a lost step nothing may be locked.
    pub flush: bool,
    pub eviction_policy: Option<EvictionPolicy>,
    /// Memory that the plan's own probe returned already.
    pub returned: Pages,
    pub returned_rows: Vec<RowId>,
    pub returned_states: Vec<OwnedState>,
    /// Window pages to free, including those that no later query attends to.
    pub returned_windows: WindowPages,
    pub pins: Vec<PinDemand>,
    pub max_pinned_states: usize,
    /// Prefixes to touch, the youngest last.
    pub touch: Vec<ProbeKey>,
    pub admit: Option<AdmitRequest>,
    /// The decode to run when nothing is admitted, or together with the admitted prefills ([`AdmitRequest::mixes`]).
    pub else_decode: Option<DecodeDemand>,
    /// Tokens that must be free in any case (after a retraction, to avoid the next one).
    pub evict_tokens: usize,
    /// Pages in the free list; exact, since only the plan chain changes it.
    pub free_pages: usize,
    pub free_rows: usize,
    /// States in the free list; 0 where no layer keeps any.
    pub free_states: usize,
    /// Window pages in the free list; 0 where no layer has a window.
    pub free_windows: usize,
    /// Every page comes with a window page: some layers have windows.
    pub has_windows: bool,
    /// Cached blocks to save with this step; `None` without a store that takes any.
    pub saves: Option<SaveBudget>,
}

/// Number of cached blocks that a step may save, by its other work: copies delay the step's decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveBudget {
    /// Blocks of every step; a prefill adds as many as hold its tokens.
    pub base: usize,
    /// Further blocks of an otherwise idle step.
    pub at_rest: usize,
    pub most: usize,
    pub most_states: usize,
    pub block_tokens: usize,
    pub account: SaveAccount,
}

impl PlanStep {
    /// A plan without demands, for pools with this many free pages and rows.
    pub fn empty(step: StepId, free_pages: usize, free_rows: usize) -> Self {
        Self {
            step,
            settle: Vec::new(),
            flush: false,
            eviction_policy: None,
            returned: Pages::empty(),
            returned_rows: Vec::new(),
            returned_states: Vec::new(),
            returned_windows: WindowPages::empty(),
            pins: Vec::new(),
            max_pinned_states: 0,
            touch: Vec::new(),
            admit: None,
            else_decode: None,
            evict_tokens: 0,
            free_pages,
            free_rows,
            free_states: 0,
            free_windows: 0,
            has_windows: false,
            saves: None,
        }
    }
}

/// Candidates in policy order (the one being chunked first) and the budget that judges them.
#[derive(Debug)]
pub struct AdmitRequest {
    /// The memory budget, less the running batch's reservations.
    pub adder: PrefillAdder,
    pub candidates: Vec<Candidate>,
    /// Most candidates to admit (free rows; a chunked one has its row already).
    pub max_new_rows: usize,
    /// Delays candidates whose prefix another request's prefill is computing.
    pub prefix_wait: bool,
    /// The decode runs in the same step, if pages suffice for it and no admitted candidate wants log probabilities.
    pub mixes: bool,
    /// The sequences that may be preempted for a candidate that lacks a row or memory.
    pub preemption: Option<Preemption>,
    /// Rows need a state each, and leave copies by these rules; `None` where no layer keeps any.
    pub states: Option<StateRules>,
    /// Every page comes with a window page, which this budget counts; `None` where no layer has a window.
    pub windows: Option<WindowBudget>,
    /// Tokens of a block; 0 without a store. A candidate waits for a fetch only if the store has this many tokens more
    /// than the tree.
    pub block_tokens: usize,
}

#[derive(Debug, Default)]
pub struct DecodeDemand {
    pub growing: Vec<SeqId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub seq: SeqId,
    pub pages: u32,
    pub row: bool,
    /// States: the row's private one, if the row is new, and copies.
    pub states: u32,
}

/// Second leg: all returns, all demands, and the tree's verdict to carry through.
#[derive(Debug)]
pub struct ReservePages {
    pub step: StepId,
    /// Pages returned: duplicates, tails.
    pub returned: Pages,
    pub evicted: EvictedPages,
    pub returned_rows: Vec<RowId>,
    /// States returned or dropped from the cache.
    pub returned_states: Vec<OwnedState>,
    pub returned_windows: WindowPages,
    /// The demands: all of them are granted, or nothing.
    pub demands: Vec<Demand>,
    /// Sequences that need one more page each, after the demands.
    pub growing: Vec<SeqId>,
    pub verdict: Box<Verdict>,
}
