//! The radix tree's decisions about a step: admissions, evictions, preemption, blocks to save.

use smallvec::SmallVec;

use crate::cache::prefix_cache::{CheckpointedWindows, SaveCounts, UnsavedBlock};
use crate::cache::prefix_history::{Departure, EvictedEdge};
use crate::plan::candidate::{EncodeDemand, FetchDemand, LoadGrant};
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
    /// Candidates admitted, in order. If there are none and nothing is preempted, a requested decode runs.
    pub admitted: Vec<Admitted>,
    /// The decode runs in the same step as the admitted prefills.
    pub mixed: bool,
    /// Requests to preempt: nothing is admitted and nothing runs, and the same step is planned again without them.
    pub preempt: Option<Preempt>,
    /// Candidates that wait for another request's prefill of their prefix.
    pub held: Vec<SeqId>,
    /// Fetches from the KV store to start, for candidates that wait for them.
    pub fetches: Vec<FetchDemand>,
    /// Candidates that wait for the vectors of their images.
    pub encodings: Vec<EncodeDemand>,
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
    /// The tree's counters after the plan; `None` if the plan skipped the tree.
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
    /// Pages private to the sequence: the partial last page and over-allocated pages.
    pub private: Pages,
    /// Pages of the sequence that the tree owns now.
    pub protected_pages: usize,
    /// Page index at which `remap` begins.
    pub remap_from: usize,
    /// The tree's pages for `remap_from..protected_pages`, which the sequence uses from the next step on.
    pub remap: PageRun,
    pub inserted_tokens: usize,
    /// For models with window layers: the sequence's window pages, without duplicates of the tree's.
    pub windows: Option<Box<CheckpointedWindows>>,
}

/// A candidate whose prefix is locked. Its chunk, the tokens that this step computes, ends at `extend_end`.
#[derive(Debug)]
pub struct Admitted {
    pub seq: SeqId,
    /// The lock on the cached prefix; `None` for the chunked request, which has its lock already.
    pub lock: Option<NodeLock>,
    /// The cached pages; empty for the chunked request.
    pub prefix: PageRun,
    /// The cached window pages that the sequence attends to.
    pub windows: WindowRun,
    /// Tokens whose K/V is in the pool: the cached prefix, or the earlier chunks.
    pub prefix_len: usize,
    pub extend_end: usize,
    /// The prefill continues after this chunk, which is empty if the step only loads blocks.
    pub chunked: bool,
    /// Where the prompt diverges from the tree, if misses are diagnosed.
    pub departure: Option<Box<Departure>>,
    /// Tokens with cached K/V at the admission: more than `prefix_len` if no recurrent state was cached at their end.
    pub kv_tokens: usize,
    /// The cached state from which the row starts.
    pub state: Option<StateSlot>,
    /// The positions in the chunk at which the recurrent state is copied.
    pub saves: SmallVec<[SaveAt; 2]>,
    /// A state slot is granted for a copy at the end of the last whole page, which moves as the decode fills pages.
    pub keeps_tail: bool,
    /// Blocks that are loaded after the cached prefix, before the chunk.
    pub load: Option<LoadGrant>,
}

impl Admitted {
    /// The start of the chunk: after the prefix and the loaded blocks.
    pub fn extend_start(&self) -> usize {
        self.load.map_or(self.prefix_len, |load| load.to)
    }
}
