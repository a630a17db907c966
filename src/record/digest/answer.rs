//! Digests of the answers of the radix tree and the page pools to plans and probes.

use serde::{Deserialize, Serialize};

use super::{PageRuns, Seq, Sum, seqs};
use souffleur_base::ids::{RowId, StepId};
use souffleur_state::cache::prefix_cache::CheckpointedWindows;
use souffleur_state::plan::probe::Matched;
use souffleur_state::plan::probe::PrefixesProbed;
use souffleur_state::plan::{
    Admitted, CacheCounts, CheckpointedSeq, Grant, Growth, Preempt, Reservation, StepPlanned,
    Verdict,
};

/// Digest of a [`StepPlanned`]: the decisions of the tree and the pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedDigest {
    step: StepId,
    missing_pages: Option<u64>,
    /// The number of sequences with a grant; the grants themselves appear in the step.
    granted: u64,
    granted_sum: u64,
    checkpointed: Vec<CheckpointedDigest>,
    pinned: Vec<(u64, u64)>,
    admitted: Vec<AdmittedDigest>,
    held: Vec<Seq>,
    budget: Option<String>,
    mixed: bool,
    /// The sequence that preempts others, and its victims.
    preempt: Option<(Seq, Vec<Seq>)>,
    refused: Option<Seq>,
    evicted_tokens: u64,
    evicted_nodes: u64,
    /// Evictable and protected tokens.
    cache: Option<(u64, u64)>,
    free_pages: u64,
    free_rows: u64,
    /// Window pages: free, evictable, protected, and evicted by this plan; `None` if all are zero.
    windows: Option<[u64; 4]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CheckpointedDigest {
    seq: Seq,
    private_pages: u64,
    protected_pages: u64,
    remap_from: u64,
    remap: PageRuns,
    inserted_tokens: u64,
    windows: Option<WindowsDigest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WindowsDigest {
    first: u64,
    own: PageRuns,
    remap_from: u64,
    remap: PageRuns,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AdmittedDigest {
    seq: Seq,
    is_start: bool,
    prefix: PageRuns,
    prefix_len: u64,
    extend_end: u64,
    chunked: bool,
}

impl PlannedDigest {
    pub fn step(&self) -> StepId {
        self.step
    }
}

impl From<&StepPlanned> for PlannedDigest {
    fn from(planned: &StepPlanned) -> Self {
        let StepPlanned {
            step,
            reservation,
            verdict,
            free_pages,
            free_rows,
            // Differences appear in later grants.
            free_states: _,
            free_windows,
        } = planned;
        let Verdict {
            checkpointed,
            pinned,
            admitted,
            held,
            // Differences appear in the orders to the store and to the tower, and in the step.
            fetches: _,
            encodings: _,
            saves: _,
            budget,
            mixed,
            preempt,
            refused,
            evicted_tokens,
            evicted_windows,
            evicted_nodes,
            // Only explains misses; evictions appear in later grants.
            evicted_edges: _,
            // A flush appears in the free pages.
            flushed_pages: _,
            cache,
        } = verdict.as_ref();
        let (granted, granted_sum, missing_pages) = match reservation {
            Reservation::Granted { grants, growth } => {
                let n_granted = grants.len() + growth.seqs.len();
                (n_granted, sum_of(grants, growth), None)
            }
            Reservation::Short { missing_pages } => {
                (0, Sum::default(), Some(*missing_pages as u64))
            }
        };
        Self {
            step: *step,
            missing_pages,
            granted: granted as u64,
            granted_sum: granted_sum.0,
            checkpointed: checkpointed.iter().map(CheckpointedDigest::from).collect(),
            pinned: pinned
                .iter()
                .map(|pin| (pin.pin, pin.tokens as u64))
                .collect(),
            admitted: admitted.iter().map(AdmittedDigest::from).collect(),
            held: seqs(held),
            budget: budget.map(|budget| format!("{budget:?}")),
            mixed: *mixed,
            preempt: preempt
                .as_ref()
                .map(|Preempt { seq, victims }| ((*seq).into(), seqs(victims))),
            refused: refused.map(Seq::from),
            evicted_tokens: *evicted_tokens as u64,
            evicted_nodes: *evicted_nodes as u64,
            cache: cache.map(tree_tokens),
            free_pages: *free_pages as u64,
            free_rows: *free_rows as u64,
            windows: window_counts(*free_windows, *evicted_windows, *cache),
        }
    }
}

/// Evictable and protected tokens.
fn tree_tokens(cache: CacheCounts) -> (u64, u64) {
    let (evictable, protected) = (cache.evictable_tokens, cache.protected_tokens);
    (evictable as u64, protected as u64)
}

fn window_counts(free: usize, evicted: usize, cache: Option<CacheCounts>) -> Option<[u64; 4]> {
    let cache = cache.unwrap_or_default();
    let counts = [
        free,
        cache.evictable_windows,
        cache.protected_windows,
        evicted,
    ];
    let counts = counts.map(|count| count as u64);
    counts.iter().any(|count| *count > 0).then_some(counts)
}

fn sum_of(grants: &[Grant], growth: &Growth) -> Sum {
    let mut sum = Sum::default();
    for Grant {
        seq,
        pages,
        row,
        states,
        windows,
    } in grants
    {
        sum.add(seq.get());
        sum.add(row.map_or(0, |row| u64::from(row.get()) + 1));
        let ids = pages.ids().iter();
        ids.for_each(|page| sum.add(u64::from(page.get())));
        for state in states {
            sum.add(u64::from(state.slot().get()));
        }
        let windows = windows.ids().iter();
        windows.for_each(|page| sum.add(u64::from(page.get())));
    }
    let windows = growth.windows.ids().iter();
    windows.for_each(|page| sum.add(u64::from(page.get())));
    // Equivalent to a grant of one page and no row.
    for (seq, page) in growth.seqs.iter().zip(growth.pages.ids()) {
        sum.add(seq.get());
        sum.add(0);
        sum.add(u64::from(page.get()));
    }
    sum
}

impl From<&CheckpointedSeq> for CheckpointedDigest {
    fn from(checkpointed: &CheckpointedSeq) -> Self {
        let CheckpointedSeq {
            seq,
            lock: _,
            private,
            protected_pages,
            remap_from,
            remap,
            inserted_tokens,
            windows,
        } = checkpointed;
        Self {
            seq: (*seq).into(),
            private_pages: private.len() as u64,
            protected_pages: *protected_pages as u64,
            remap_from: *remap_from as u64,
            remap: remap.iter().collect(),
            inserted_tokens: *inserted_tokens as u64,
            windows: windows.as_deref().map(|windows| {
                let CheckpointedWindows {
                    own,
                    // Already freed.
                    duplicates: _,
                    remap,
                } = windows;
                WindowsDigest {
                    first: own.first as u64,
                    own: own.pages.ids().iter().copied().collect(),
                    remap_from: remap.from as u64,
                    remap: remap.pages.iter().collect(),
                }
            }),
        }
    }
}

impl From<&Admitted> for AdmittedDigest {
    fn from(admitted: &Admitted) -> Self {
        let Admitted {
            seq,
            lock,
            prefix,
            prefix_len,
            extend_end,
            chunked,
            // Explains a miss; the other fields appear in the step.
            departure: _,
            kv_tokens: _,
            state: _,
            saves: _,
            keeps_tail: _,
            windows: _,
            load: _,
        } = admitted;
        Self {
            seq: (*seq).into(),
            is_start: lock.is_some(),
            prefix: prefix.iter().collect(),
            prefix_len: *prefix_len as u64,
            extend_end: *extend_end as u64,
            chunked: *chunked,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedDigest {
    checkpointed: Vec<CheckpointedDigest>,
    returned: PageRuns,
    returned_rows: Vec<RowId>,
    matches: Vec<MatchDigest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MatchDigest {
    seq: Seq,
    tokens: u64,
    is_deprioritised: bool,
    path_sum: u64,
}

impl From<&PrefixesProbed> for ProbedDigest {
    fn from(reply: &PrefixesProbed) -> Self {
        let PrefixesProbed {
            checkpointed,
            returned,
            returned_rows,
            // Differences appear in later grants.
            returned_states: _,
            returned_windows: _,
            matches,
        } = reply;
        let matches = matches.iter().map(|(seq, matched)| {
            let Matched {
                tokens,
                is_deprioritised,
                path,
            } = matched;
            MatchDigest {
                seq: (*seq).into(),
                tokens: *tokens as u64,
                is_deprioritised: *is_deprioritised,
                path_sum: Sum::of(path.iter().copied()),
            }
        });
        Self {
            checkpointed: checkpointed.iter().map(CheckpointedDigest::from).collect(),
            returned: returned.ids().iter().copied().collect(),
            returned_rows: returned_rows.clone(),
            matches: matches.collect(),
        }
    }
}
