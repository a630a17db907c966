//! The messages that plan a step: the scheduler's request, the radix tree's verdict, the pools' grants.
//!
//! A plan passes Scheduler -> RadixCache -> Allocator -> Scheduler. Each message is one leg of the plan and owns the
//! pages, rows and locks inside it.
//!
//! At most one plan is open: each actor forwards it, and none awaits a reply. A step costs one message for a decode
//! without new pages, three for a decode that only needs new pages, four with settlements, admissions or evictions, and
//! six with a probe. A retraction adds three messages for each victim. A preemption adds three in all: only the tree
//! knows how much memory is missing, so its verdict names the victims and undoes the admissions, and a second plan of
//! the same step releases the victims' memory.

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

pub use self::candidate::{Candidate, EncodeDemand, FetchDemand, LoadGrant, StoredPrefix};
pub use self::granted::{Grant, Growth, Reservation, StepPlanned};
pub use self::settle::{PinDemand, Pinned, PublishKey, Settle, SettleCheckpoint, SettleRelease};
pub use self::verdict::{Admitted, CacheCounts, CheckpointedSeq, Preempt, Verdict};
use crate::cache::eviction::EvictionPolicy;
use crate::cache::prefix_cache::StoreRecordChange;
use crate::plan::preemption::Preemption;
use crate::plan::prefill_adder::PrefillAdder;
use crate::plan::probe_key::ProbeKey;
use crate::plan::save_rules::StateRules;
use crate::plan::window_budget::WindowBudget;
use crate::pool::pages::{EvictedPages, Pages, WindowPages};
use crate::pool::state_pool::OwnedState;
use souffleur_base::ids::{IntakeId, RowId, SeqId, StepId};

/// First leg: the scheduler's request for one step.
#[derive(Debug)]
pub struct PlanStep {
    pub step: StepId,
    /// Memory of earlier steps to publish or release before any prefix is matched.
    pub settle: Vec<Settle>,
    /// Flushes every cached prefix after `settle`, because a step was lost or the host requested it. Locked prefixes
    /// stay; after a lost step nothing may be locked.
    pub flush: bool,
    /// The new eviction policy, if it changes.
    pub eviction_policy: Option<EvictionPolicy>,
    /// Memory that the probe of this plan released.
    pub returned: Pages,
    pub returned_rows: Vec<RowId>,
    pub returned_states: Vec<OwnedState>,
    /// Window pages to free, among them pages of running sequences that no later query attends to.
    pub returned_windows: WindowPages,
    pub pins: Vec<PinDemand>,
    pub max_pinned_states: usize,
    /// Prefixes to mark as used, in order of use.
    pub touch: Vec<ProbeKey>,
    pub admit: Option<AdmitRequest>,
    /// The decode to run if nothing is admitted, or together with the admitted prefills ([`AdmitRequest::mixes`]).
    pub decode_demand: Option<DecodeDemand>,
    /// Tokens that must be free in any case (after a retraction, to avoid the next one).
    pub evict_tokens: usize,
    /// Pages in the free list; exact, since only plans change it.
    pub free_pages: usize,
    pub free_rows: usize,
    /// Recurrent states in the free list; 0 for models without recurrent layers.
    pub free_states: usize,
    /// Window pages in the free list; 0 for models without window layers.
    pub free_windows: usize,
    /// For models with window layers: every page comes with a window page.
    pub has_windows: bool,
    /// Cached blocks to save with this step; `None` without a KV store that accepts blocks.
    pub saves: Option<SaveBudget>,
}

/// The number of cached blocks that a step may save to the KV store. It depends on the step's other work, since copies
/// delay decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveBudget {
    /// Blocks that every step may save; a prefill adds the number of blocks that its tokens fill.
    pub base: usize,
    /// Further blocks of an otherwise idle step.
    pub extra_when_idle: usize,
    pub max_blocks: usize,
    pub max_states: usize,
    pub block_tokens: usize,
    /// How the tree changes its record of stored blocks before it takes blocks to save.
    pub store_record: StoreRecordChange,
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
            decode_demand: None,
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

/// Candidates in policy order (the chunked request first) and the limits for their admission.
#[derive(Debug)]
pub struct AdmitRequest {
    /// The memory budget, less the running batch's reservations.
    pub adder: PrefillAdder,
    pub candidates: Vec<Candidate>,
    /// Most candidates to admit that need a row: the free rows. The chunked request has its row already.
    pub max_new_rows: usize,
    /// Delays candidates whose prefix another request's prefill is computing.
    pub prefix_wait: bool,
    /// The decode may run in the same step, if pages suffice for it and no admitted candidate wants log probabilities.
    pub mixes: bool,
    /// The sequences that may be preempted for a candidate that lacks a row or memory.
    pub preemption: Option<Preemption>,
    /// Rules for copies of the rows' recurrent states; `None` for models without recurrent layers.
    pub states: Option<StateRules>,
    /// The budget of window pages, of which each page needs one; `None` for models without window layers.
    pub windows: Option<WindowBudget>,
    /// Tokens per block of the KV store; 0 without a store. A candidate waits for a fetch only if the store has this
    /// many tokens more than the tree.
    pub block_tokens: usize,
}

#[derive(Debug, Default)]
pub struct DecodeDemand {
    pub growing: Vec<SeqId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub seq: SeqId,
    pub intake: IntakeId,
    pub pages: u32,
    pub row: bool,
    /// States: the row's private one, if the row is new, and copies.
    pub states: u32,
}

/// Second leg: all memory to free, all demands, and the tree's verdict, which the pools pass on.
#[derive(Debug)]
pub struct ReservePages {
    pub step: StepId,
    /// Pages to free: duplicates, flushed pages, and private pages of ended sequences.
    pub returned: Pages,
    pub evicted: EvictedPages,
    pub returned_rows: Vec<RowId>,
    /// States to free: of ended sequences, or dropped from the cache.
    pub returned_states: Vec<OwnedState>,
    pub returned_windows: WindowPages,
    /// All demands are granted, or none.
    pub demands: Vec<Demand>,
    /// Sequences that need one more page each, after the demands.
    pub growing: Vec<SeqId>,
    pub verdict: Box<Verdict>,
}
