//! The planning transaction as data: what the scheduler asks, what the tree answers, what the pools grant.
//!
//! One plan runs Scheduler -> RadixCache -> Allocator -> Scheduler. Each value here is one leg of it; pages,
//! rows and locks move inside and are owned by whoever holds the value.

pub mod completion_order;
mod granted;
pub mod plan_step;
pub mod preemption;
pub mod prefill_adder;
pub mod prefill_pace;
pub mod probe;
mod reservation;
pub mod saves;
mod settle;
pub mod token_ratio;
pub mod window_budget;

use std::sync::Arc;

use smallvec::SmallVec;

pub use self::granted::{Grant, Growth, Reservation, StepPlanned};
pub use self::settle::{PinDemand, Pinned, PublishKey, Settle, SettleCheckpoint, SettleRelease};
use crate::ids::{RowId, SeqId, StateSlot, StepId, Ticket};
use crate::state::cache::eviction::EvictionPolicy;
use crate::state::cache::namespace::Namespace;
use crate::state::cache::prefix_cache::{
    CheckpointedWindows, SaveAccount, SaveCounts, UnsavedBlock,
};
use crate::state::cache::prefix_history::{Departure, EvictedEdge};
use crate::state::plan::preemption::{Preemption, Rank};
use crate::state::plan::prefill_adder::{Budget, PrefillAdder};
use crate::state::plan::probe::ProbeKey;
use crate::state::plan::saves::{SaveAt, StateRules};
use crate::state::plan::window_budget::WindowBudget;
use crate::state::pool::pages::{EvictedPages, NodeLock, PageRun, Pages, WindowPages, WindowRun};
use crate::state::pool::state_pool::OwnedState;

/// First leg: what the scheduler wants for one step.
#[derive(Debug)]
pub struct PlanStep {
    /// The step being planned.
    pub step: StepId,
    /// The holdings that earlier steps left to be settled, before anything is matched.
    pub settle: Vec<Settle>,
    /// Forgets every cached prefix after the settling: a step was lost, or a host asked for it. What a lock protects
    /// stays; after a lost step nothing may be locked.
    pub flush: bool,
    /// Evicts by this policy from now on.
    pub eviction_policy: Option<EvictionPolicy>,
    /// Pages that the plan's own probe gave back already.
    pub returned: Pages,
    /// Rows likewise.
    pub returned_rows: Vec<RowId>,
    /// States likewise.
    pub returned_states: Vec<OwnedState>,
    /// Window pages likewise, and those that no later query sees.
    pub returned_windows: WindowPages,
    /// Locks prefixes for hosts.
    pub pins: Vec<PinDemand>,
    /// States that pins keep, at most.
    pub max_pinned_states: usize,
    /// Prefixes to make young, the youngest last.
    pub touch: Vec<ProbeKey>,
    /// Candidates for a prefill, if any may be admitted.
    pub admit: Option<AdmitRequest>,
    /// The decode to run when nothing is admitted, or beside what is ([`AdmitRequest::mixes`]).
    pub else_decode: Option<DecodeDemand>,
    /// Tokens to evict besides (after a retraction, to keep clear of the next one).
    pub evict_tokens: usize,
    /// Pages in the free list; exact, since only the plan chain changes it.
    pub free_pages: usize,
    /// Rows in the free list.
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

/// How many cached blocks a step may save, by what it does besides: copies hold up whoever decodes in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveBudget {
    /// Blocks, whatever the step does. Besides, as many as hold the tokens that it prefills.
    pub base: usize,
    /// Blocks of a step that does nothing else.
    pub at_rest: usize,
    /// Blocks in all.
    pub most: usize,
    /// States in all.
    pub most_states: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// What becomes of the account of what the store has.
    pub account: SaveAccount,
}

impl PlanStep {
    /// A plan that asks for nothing, for pools with so many free pages and rows.
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
    /// The arithmetic, with the running batch's reservations taken already.
    pub adder: PrefillAdder,
    /// Candidates, in order.
    pub candidates: Vec<Candidate>,
    /// Most candidates to admit (free rows; a chunked one has its row already).
    pub max_new_rows: usize,
    /// Holds candidates whose prefix is being prefilled at this moment (`protocol`: in-flight prefix).
    pub prefix_wait: bool,
    /// The decode rides along if its pages are there besides, and no candidate that is admitted wants log
    /// probabilities.
    pub mixes: bool,
    /// The sequences that may give way to a candidate for which there is no row or no memory.
    pub preemption: Option<Preemption>,
    /// Rows need a state each, and leave copies by these rules; `None` where no layer keeps any.
    pub states: Option<StateRules>,
    /// Every page comes with a window page, which these are counted by; `None` where no layer has a window.
    pub windows: Option<WindowBudget>,
    /// Tokens of a block, which the store must have beyond the tree for a candidate to wait for them; 0 without a store.
    pub block_tokens: usize,
}

/// The part of a candidate's prefix that the store has, and how far it is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredPrefix {
    /// None, or none that is worth it.
    #[default]
    None,
    /// So many tokens, which can be fetched.
    Found {
        /// From the beginning on.
        tokens: usize,
    },
    /// Some of it is on its way.
    Fetching,
    /// Some of it is in memory.
    Ready {
        /// Names the run of blocks.
        ticket: Ticket,
        /// The first token of the run.
        from: usize,
        /// Behind its last token.
        to: usize,
        /// Behind the last token of what can be fetched in further rounds: `to`, if there is no more.
        until: usize,
    },
}

/// A run of blocks that an admitted sequence begins with, behind the prefix that the tree has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadGrant {
    /// Names the run.
    pub ticket: Ticket,
    /// The first token of the run, before or at the end of the tree's prefix.
    pub begins: usize,
    /// Where the loaded K/V ends and the extent begins: whole pages.
    pub to: usize,
    /// More is fetched and loaded behind it in a further round: nothing is computed before.
    pub goes_on: bool,
}

/// A candidate whose blocks are to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchWish {
    /// The candidate.
    pub seq: SeqId,
    /// Tokens that the tree has.
    pub cached_tokens: usize,
}

/// One waiting request, or the one whose prefill goes on.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The sequence.
    pub seq: SeqId,
    /// Where its prefix may be shared.
    pub namespace: Namespace,
    /// Prompt and output so far.
    pub tokens: Arc<[u32]>,
    /// Longest prefix that may come from the cache: at least one token must be computed.
    pub match_limit: usize,
    /// Tokens it may still generate.
    pub max_new_tokens: usize,
    /// It will generate all of them.
    pub ignore_eos: bool,
    /// How many plans it was held back for a prefix in flight.
    pub waits: u8,
    /// Its place by priority.
    pub rank: Rank,
    /// It keeps a step to itself.
    pub wants_logprobs: bool,
    /// For the chunked one: tokens whose K/V it has (cached, written or under way).
    pub continues_at: Option<usize>,
    /// Positions that other prompts are likely to leave this one at, ascending: ends of turns, and one beyond the prompt's
    /// end if other outputs of it are asked for.
    pub anchors: Arc<[u32]>,
    /// Its K/V neither comes from the cache nor goes there: its tokens are placeholders.
    pub bypasses_cache: bool,
    /// For the chunked one: tokens that had K/V in the cache when it was admitted.
    pub kv_tokens: usize,
    /// The part of it that the store has.
    pub stored: StoredPrefix,
}

impl Candidate {
    /// Other outputs of the prompt are asked for: they go on from a state before its last token.
    fn has_siblings(&self) -> bool {
        let last = self.anchors.last();
        last.is_some_and(|anchor| *anchor as usize > self.tokens.len())
    }

    /// How many of the anchors are ends of turns.
    fn n_turns(&self) -> usize {
        self.anchors.len() - usize::from(self.has_siblings())
    }
}

/// A decode of the running batch.
#[derive(Debug, Default)]
pub struct DecodeDemand {
    /// Sequences that need a new page for their next token.
    pub growing: Vec<SeqId>,
}

/// Pages and a row that a sequence needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The sequence.
    pub seq: SeqId,
    /// New pages.
    pub pages: u32,
    /// Needs a row as well.
    pub row: bool,
    /// States: the row's own, if it begins, and copies.
    pub states: u32,
}

/// Second leg: everything given back, everything asked for, and the tree's verdict to carry through.
#[derive(Debug)]
pub struct ReservePages {
    /// The step being planned.
    pub step: StepId,
    /// Pages given back: duplicates, tails.
    pub returned: Pages,
    /// Pages evicted.
    pub evicted: EvictedPages,
    /// Rows given back.
    pub returned_rows: Vec<RowId>,
    /// States given back or dropped from the cache.
    pub returned_states: Vec<OwnedState>,
    /// Window pages given back or dropped from the cache.
    pub returned_windows: WindowPages,
    /// The demands: all of them are granted, or nothing.
    pub demands: Vec<Demand>,
    /// Sequences that need one more page each, behind the demands.
    pub growing: Vec<SeqId>,
    /// The tree's verdict.
    pub verdict: Box<Verdict>,
}

/// The tree's decisions.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Sequences that were published and go on.
    pub checkpointed: Vec<CheckpointedSeq>,
    /// Pins granted.
    pub pinned: Vec<Pinned>,
    /// Candidates admitted, in order. Empty: the decode runs, if one was asked for.
    pub admitted: Vec<Admitted>,
    /// The decode rides along with them.
    pub mixed: bool,
    /// Nothing is admitted and nothing runs: the same step is to be planned again without these.
    pub preempt: Option<Preempt>,
    /// Candidates held back for a prefix in flight.
    pub held: Vec<SeqId>,
    /// Candidates that wait for blocks which are to be fetched.
    pub fetches: Vec<FetchWish>,
    /// Blocks to save.
    pub saves: Vec<UnsavedBlock>,
    /// Why the admission stopped.
    pub budget: Option<Budget>,
    /// The candidate at which it stopped.
    pub refused: Option<SeqId>,
    /// Window pages evicted, beside those of nodes that went.
    pub evicted_windows: usize,
    /// Tokens evicted.
    pub evicted_tokens: usize,
    /// Nodes evicted.
    pub evicted_nodes: usize,
    /// The tokens that they held, or that were flushed, if misses are diagnosed.
    pub evicted_edges: Vec<EvictedEdge>,
    /// Pages that a flush took out of the cache; `None` without a flush.
    pub flushed_pages: Option<usize>,
    /// The tree's counters after all this; `None` when the tree was not asked.
    pub cache: Option<CacheCounts>,
}

/// Running requests that give way to a candidate of higher priority.
#[derive(Debug)]
pub struct Preempt {
    /// The candidate.
    pub seq: SeqId,
    /// The sequences that give way.
    pub victims: Vec<SeqId>,
}

/// Tokens in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Tokens that could be evicted.
    pub evictable_tokens: usize,
    /// Tokens that a lock protects.
    pub protected_tokens: usize,
    /// States of sequences.
    pub states: usize,
    /// Window pages that could be evicted.
    pub evictable_windows: usize,
    /// Window pages that a lock keeps.
    pub protected_windows: usize,
    /// Numbers of blocks that are to be saved.
    pub saves: SaveCounts,
}

/// A sequence after its checkpoint.
#[derive(Debug)]
pub struct CheckpointedSeq {
    /// The sequence.
    pub seq: SeqId,
    /// The lock on what is published.
    pub lock: NodeLock,
    /// The sequence's own pages: the partial last one, over-allocation.
    pub private: Pages,
    /// Pages of the sequence that the tree owns now.
    pub protected_pages: usize,
    /// Index of the first page of `remap`.
    pub remap_from: usize,
    /// The tree's pages for `remap_from..protected_pages`: to be used from the next step on.
    pub remap: PageRun,
    /// Tokens of this request that counted as a hit.
    pub inserted_tokens: usize,
    /// Its window pages, where layers have windows; the duplicates are given back.
    pub windows: Option<Box<CheckpointedWindows>>,
}

/// A candidate with its prefix locked and its extent decided.
#[derive(Debug)]
pub struct Admitted {
    /// The sequence.
    pub seq: SeqId,
    /// The lock on its prefix; `None` for the chunked one, which holds its own.
    pub lock: Option<NodeLock>,
    /// The cached pages; empty for the chunked one.
    pub prefix: PageRun,
    /// Of these, the window pages that it sees.
    pub windows: WindowRun,
    /// Tokens whose K/V exists before the extent.
    pub prefix_len: usize,
    /// End of the extent, in tokens.
    pub extend_end: usize,
    /// The prefill does not end with this extent, which is empty where a load goes on.
    pub chunked: bool,
    /// The tree's view where the prompt left it, if misses are diagnosed.
    pub departure: Option<Box<Departure>>,
    /// Tokens that had K/V in the cache when it was admitted: more than `prefix_len` where there was no state to go on
    /// with.
    pub kv_tokens: usize,
    /// The cached state that its row begins with.
    pub state: Option<StateSlot>,
    /// Where its extent leaves copies of its state.
    pub saves: SmallVec<[SaveAt; 2]>,
    /// A state is granted for copies at the ends of pages that its decode fills.
    pub keeps_tail: bool,
    /// Blocks that are loaded behind its prefix, before the extent.
    pub load: Option<LoadGrant>,
}

impl Admitted {
    /// Where the extent begins: behind the prefix and what is loaded.
    pub fn extend_start(&self) -> usize {
        self.load.map_or(self.prefix_len, |load| load.to)
    }
}
