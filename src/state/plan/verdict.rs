//! The radix tree's decisions about a step: admissions, evictions, preemption, blocks to save.

use smallvec::SmallVec;

use crate::cache::prefix_cache::{CheckpointedWindows, SaveCounts, UnsavedBlock};
use crate::cache::prefix_history::{Departure, EvictedEdge};
use crate::plan::candidate::{FetchWish, LoadGrant};
use crate::plan::prefill_adder::Budget;
use crate::plan::save_rules::SaveAt;
use crate::plan::settle::Pinned;
use crate::pool::pages::{NodeLock, PageRun, Pages, WindowRun};
use souffleur_base::ids::{SeqId, StateSlot};

#[derive(Debug, Default)]
pub struct Verdict {
    /// Sequences that were published and continue.
    pub checkpointed: Vec<CheckpointedSeq>,
    pub pinned: Vec<Pinned>,
    /// Candidates admitted, in order. Empty: the decode runs, if one was requested.
    pub admitted: Vec<Admitted>,
    /// The decode runs in the same step.
    pub mixed: bool,
    /// Nothing is admitted and nothing runs: the same step is to be planned again without the victims.
    pub preempt: Option<Preempt>,
    /// Candidates held back for a prefix in flight.
    pub held: Vec<SeqId>,
    /// Candidates that wait for blocks which are to be fetched.
    pub fetches: Vec<FetchWish>,
    pub saves: Vec<UnsavedBlock>,
    /// Why the admission stopped.
    pub budget: Option<Budget>,
    /// The candidate at which the admission stopped.
    pub refused: Option<SeqId>,
    /// Window pages evicted, in addition to those of evicted nodes.
    pub evicted_windows: usize,
    pub evicted_tokens: usize,
    pub evicted_nodes: usize,
    /// The tokens of evicted or flushed nodes, if misses are diagnosed.
    pub evicted_edges: Vec<EvictedEdge>,
    /// Pages that a flush took out of the cache; `None` without a flush.
    pub flushed_pages: Option<usize>,
    /// The tree's counters after all this; `None` without a request to the tree.
    pub cache: Option<CacheCounts>,
}

#[derive(Debug)]
pub struct Preempt {
    pub seq: SeqId,
    pub victims: Vec<SeqId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    pub evictable_tokens: usize,
    pub protected_tokens: usize,
    pub states: usize,
    pub evictable_windows: usize,
    pub protected_windows: usize,
    pub saves: SaveCounts,
}

#[derive(Debug)]
pub struct CheckpointedSeq {
    pub seq: SeqId,
    pub lock: NodeLock,
    /// Pages private to the sequence: the partial last one, over-allocation.
    pub private: Pages,
    /// Pages of the sequence that the tree owns now.
    pub protected_pages: usize,
    /// Index of the first page of `remap`.
    pub remap_from: usize,
    /// The tree's pages for `remap_from..protected_pages`: to be used from the next step on.
    pub remap: PageRun,
    pub inserted_tokens: usize,
    /// The sequence's window pages, where layers have windows; the duplicates are returned.
    pub windows: Option<Box<CheckpointedWindows>>,
}

/// A candidate with its prefix locked and its extent decided.
#[derive(Debug)]
pub struct Admitted {
    pub seq: SeqId,
    /// The lock on its prefix; `None` for the chunked request, which has its lock already.
    pub lock: Option<NodeLock>,
    /// The cached pages; empty for the chunked request.
    pub prefix: PageRun,
    /// The cached window pages that the sequence sees.
    pub windows: WindowRun,
    /// Tokens whose K/V exists before the extent.
    pub prefix_len: usize,
    pub extend_end: usize,
    /// The prefill does not end with this extent, which is empty where a load continues.
    pub chunked: bool,
    /// The tree's view of the prompt's miss point, if misses are diagnosed.
    pub departure: Option<Box<Departure>>,
    /// Tokens with cached K/V at its admission: more than `prefix_len` where there was no state to resume from.
    pub kv_tokens: usize,
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
