//! The tree's decisions about a step.

use smallvec::SmallVec;

use crate::ids::{SeqId, StateSlot};
use crate::state::cache::prefix_cache::{CheckpointedWindows, SaveCounts, UnsavedBlock};
use crate::state::cache::prefix_history::{Departure, EvictedEdge};
use crate::state::plan::candidate::{FetchWish, LoadGrant};
use crate::state::plan::prefill_adder::Budget;
use crate::state::plan::save_rules::SaveAt;
use crate::state::plan::settle::Pinned;
use crate::state::pool::pages::{NodeLock, PageRun, Pages, WindowRun};

/// The tree's decisions.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Sequences that were published and continue.
    pub checkpointed: Vec<CheckpointedSeq>,
    /// Pins granted.
    pub pinned: Vec<Pinned>,
    /// Candidates admitted, in order. Empty: the decode runs, if one was requested.
    pub admitted: Vec<Admitted>,
    /// The decode runs in the same step.
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
    /// Window pages evicted, in addition to those of evicted nodes.
    pub evicted_windows: usize,
    /// Tokens evicted.
    pub evicted_tokens: usize,
    /// Nodes evicted.
    pub evicted_nodes: usize,
    /// The tokens that they held, or that were flushed, if misses are diagnosed.
    pub evicted_edges: Vec<EvictedEdge>,
    /// Pages that a flush took out of the cache; `None` without a flush.
    pub flushed_pages: Option<usize>,
    /// The tree's counters after all this; `None` without a request to the tree.
    pub cache: Option<CacheCounts>,
}

/// Running requests to preempt for a candidate of higher priority.
#[derive(Debug)]
pub struct Preempt {
    /// The candidate.
    pub seq: SeqId,
    /// The sequences to preempt.
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
    /// The lock on the published tokens.
    pub lock: NodeLock,
    /// Pages private to the sequence: the partial last one, over-allocation.
    pub private: Pages,
    /// Pages of the sequence that the tree owns now.
    pub protected_pages: usize,
    /// Index of the first page of `remap`.
    pub remap_from: usize,
    /// The tree's pages for `remap_from..protected_pages`: to be used from the next step on.
    pub remap: PageRun,
    /// Tokens of this request that counted as a hit.
    pub inserted_tokens: usize,
    /// Its window pages, where layers have windows; the duplicates are returned.
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
    /// The prefill does not end with this extent, which is empty where a load continues.
    pub chunked: bool,
    /// The tree's view of the prompt's miss point, if misses are diagnosed.
    pub departure: Option<Box<Departure>>,
    /// Tokens that had K/V in the cache when it was admitted: more than `prefix_len` where there was no state to resume
    /// from.
    pub kv_tokens: usize,
    /// The cached state that its row starts from.
    pub state: Option<StateSlot>,
    /// The positions at which its extent leaves copies of its state.
    pub saves: SmallVec<[SaveAt; 2]>,
    /// A state is granted for copies at the ends of pages that its decode fills.
    pub keeps_tail: bool,
    /// Blocks that are loaded after its prefix, before the extent.
    pub load: Option<LoadGrant>,
}

impl Admitted {
    /// The start of the extent: after the prefix and the loaded blocks.
    pub fn extend_start(&self) -> usize {
        self.load.map_or(self.prefix_len, |load| load.to)
    }
}
